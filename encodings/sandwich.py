"""Biases from products of sinusoidal embeddings (Chi et al. 2023, arXiv 2212.10356)."""

from typing import Any, Literal

import torch
from torch import Tensor

from pe_bench.api import Encoding, InputError, ModelConfig


class Sandwich(Encoding):
    """logit_ij += H / (8 h) (sum_m cos((i - j) 10000^(-2m/d)) - d/2), for the heads h = 1 ... H.

    The sum over m = 1 ... d/2 is the inner product of two sinusoidal position embeddings with d
    channels. It decays roughly with the logarithm of the distance. Nothing is learned.

    No code by the authors was found; the default follows NeMo. The listing in the paper, quoted
    from memory, sums from m = 0: it has cos(i - j) instead of cos((i - j) / 10^4), so logits differ
    by up to H/4.

    Args:
        first: index m of the first frequency; 0 also leaves out the constant d/2, which softmax
            ignores.
        dim: d; None is head_dim, as in NeMo. The paper has 128 (quoted from memory).
    """

    family = "bias"
    colour = "#D55E00"
    marker = "D"

    shift_invariant = True
    variants = ("first=0,dim=none",)

    like: Tensor

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        first: Literal[0, 1] = 1,
        dim: int | None = 128,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        self.first = first
        self.dim = model.head_dim if dim is None else dim
        if self.dim < 2 or self.dim % 2:
            raise InputError(f"sandwich:dim must be even and at least 2, not {self.dim}")
        # The bias has this dtype: float32, or float64 in a float64 model.
        self.register_buffer("like", torch.empty(0), persistent=False)

    def distance_bias(self, distances: Tensor) -> Tensor:
        device = distances.device
        # In float64, because it is a sum of cosines of large angles.
        index = self.first + torch.arange(self.dim // 2, device=device)
        frequencies = 10_000.0 ** (-2 * index.double() / self.dim)  # (dim/2,)
        sums = (distances[:, None] * frequencies).cos().sum(dim=1)  # (N,)
        if self.first:
            sums -= self.dim / 2
        heads = self.model.heads
        per_head = heads / (8 * torch.arange(1, heads + 1, device=device).double())
        return (per_head[:, None] * sums).to(self.like.dtype)
