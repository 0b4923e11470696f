"""A learned logit per head that takes part in the softmax (OpenAI 2025, arXiv 2508.10925)."""

import torch
from torch import Tensor, nn

from pe_bench.api import EncodingSpec, ModelConfig, Wrapper, make_base


class Sinks(Wrapper):
    """share_ij = exp(z_ij) / (exp(s_h) + sum_k exp(z_ik)), z the logits of `base`.

    A head of gpt-oss may so look at nothing. It is no encoding of positions, but changes what
    happens at new lengths. Every layer has logits s and an instance of `base` for itself.

    | published code | here |
    |---|---|
    | s starts at random, standard deviation 0.02 | at `initial` |

    Args:
        base: spec of the encoding that makes the logits, colons between its options.
        initial: s at the start.
    """

    family = "softmax"
    colour = "#661100"
    marker = "P"

    shared = False
    parameters_per_layer = "H"
    variants = ("base=alibi,initial=1", "base=t5")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        base: EncodingSpec = EncodingSpec("rope"),  # noqa: B008  # as immutable as any str
        initial: float = 0.0,
    ) -> None:
        super().__init__(model, layer, make_base(base, model, layer))
        self.shared = False
        self.shift_invariant = self.base.shift_invariant
        self.logits = nn.Parameter(torch.full((model.heads,), initial))

    def sink(self) -> Tensor:
        return self.logits
