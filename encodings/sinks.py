"""A learned logit per head that takes part in the softmax (OpenAI 2025, arXiv 2508.10925)."""

import torch
from torch import Tensor, nn

from pe_bench.api import EncodingSpec, ModelConfig, Wrapper, make_base


class Sinks(Wrapper):
    """share_ij = exp(z_ij) / (exp(s_h) + sum_k exp(z_ik)), z the logits of `base`.

    With it a head of gpt-oss can attend to nothing. It does not encode positions, but it changes
    the behaviour at new lengths. Every layer has separate logits s and a separate instance of
    `base`.

    | published code | here |
    |---|---|
    | s is initialised at random, standard deviation 0.02 | with `initial` |

    Args:
        base: spec of the encoding that makes the logits, with colons between its options.
        initial: initial value of s.
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
