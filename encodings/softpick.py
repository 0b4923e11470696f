"""A rectified softmax whose weights can all be zero (Zuhri et al. 2025, arXiv 2504.20966)."""

import torch
from torch import Tensor

from pe_bench.api import EncodingSpec, ModelConfig, Wrapper, make_base

EPS = 1e-6


class Softpick(Wrapper):
    """share_ij = relu(exp(z_ij) - 1) / (sum_k |exp(z_ik) - 1| + eps), z the logits of `base`.

    Keys with negative logits have a weight of zero, so the first token does not have to absorb
    unused attention. It does not encode positions, but it changes the behaviour at new lengths.
    There is no fused kernel for it.

    Args:
        base: spec of the encoding that makes the logits, with colons between its options.
    """

    family = "softmax"
    colour = "#661100"
    marker = "X"

    variants = ("base=alibi",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        base: EncodingSpec = EncodingSpec("rope"),  # noqa: B008  # as immutable as any str
    ) -> None:
        super().__init__(model, layer, make_base(base, model, layer))
        self.shift_invariant = self.base.shift_invariant

    def normalise(self, logits: Tensor) -> Tensor:
        hidden = logits == -torch.inf
        # Numerator and denominator are divided by exp(largest), so that neither overflows.
        largest = logits.amax(-1, keepdim=True).clamp(min=0).detach()  # (B, H, T, 1)
        one = (-largest).exp()
        picked = ((logits - largest).exp() - one).masked_fill(hidden, 0)  # (B, H, T, S)
        return picked.relu() / (picked.abs().sum(-1, keepdim=True) + EPS * one)
