"""One learned bias per head and range of distances (Raffel et al. 2020, arXiv 1910.10683)."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, Tunable


def bucket_table(buckets: int, max_distance: int) -> Tensor:
    """Return the bucket of each distance from 0 to max_distance, (max_distance + 1,)."""
    exact = buckets // 2
    distance = torch.arange(max_distance + 1)
    ratio = distance.clamp(min=exact).double() / exact
    steps = ratio.log() * ((buckets - exact) / math.log(max_distance / exact))
    # The small number keeps rounding from moving a boundary to the bucket below.
    logarithmic = (exact + (steps + 1e-9).long()).clamp(max=buckets - 1)
    return torch.where(distance < exact, distance, logarithmic)


def other_distances(model: ModelConfig) -> list[int]:
    """Return the training length and half of it, with which all buckets are trained.

    With the default of 128 tokens, shorter rows do not train the last buckets.
    """
    return [model.train_length, model.train_length // 2]


class T5(Encoding):
    """logit_ij += table[bucket(i - j), h].

    With n buckets, of which n/2 are the distances 0, 1, ..., and m = max_distance:

        bucket(d) = d                                                        for d < n/2
        bucket(d) = n/2 + floor(n/2 ln(2d/n) / ln(2m/n)), at most n - 1      beyond

    Buckets are computed once, in float64 on the CPU, so that all devices have equal boundaries.
    TAPE's baseline is `buckets=64,shared=false`.

    | T5 | here |
    |---|---|
    | the encoder has buckets for later keys | causal attention only |
    | scores are not divided by sqrt(D) | divided, as in later decoders; `scaled=false` |
    | table from N(0, 1/C), in Hugging Face's port | N(0, init_std), like all weights |

    Args:
        buckets: number of biases per head.
        max_distance: all distances from here on share one bucket.
        shared: whether all layers share one table.
        scaled: whether scores are divided by sqrt(D); false is the original.
    """

    family = "bias"
    colour = "#009E73"
    marker = "D"

    shift_invariant = True
    parameters_per_layer = "32*H once"
    tunable = Tunable("max_distance", other_distances)
    variants = ("buckets=64,shared=false", "max_distance=512,scaled=false")

    bucket_of: Tensor

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        buckets: int = 32,
        max_distance: int = 128,
        shared: bool = True,
        scaled: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        if buckets < 2:
            raise InputError(f"t5:buckets must be at least 2, not {buckets}")
        if max_distance <= buckets // 2:
            raise InputError(
                f"t5:max_distance must be greater than half of the {buckets} buckets, "
                f"not {max_distance}"
            )
        self.shared = shared
        self.divide_scores = scaled
        self.table = nn.Parameter(model.init_std * torch.randn(buckets, model.heads))
        self.register_buffer("bucket_of", bucket_table(buckets, max_distance), persistent=False)

    def distance_bias(self, distances: Tensor) -> Tensor:
        buckets = self.bucket_of[distances.clamp(max=len(self.bucket_of) - 1)]  # (N,)
        # Not plain indexing, whose gradient is slow on a GPU if millions of pairs share a bucket.
        return F.embedding(buckets, self.table).T
