"""Every token adds a learned penalty to what is older (Veisi et al. 2025, arXiv 2503.08067)."""

import math

import torch.nn.functional as F
from torch import Tensor

from pe_bench.api import ModelConfig, State
from pe_bench.encodings.fox import FoX


class CABLE(FoX):
    """logit_ij += c_i - c_j, with c_t = -sum_{s <= t} softplus(W x_s + b).

    This is FoX with the gate f = sigmoid(-(W x + b)): -softplus(z) = ln sigmoid(-z). W is (H, C),
    from N(0, init_std), and b (H,), from zero, anew in every layer.

    Args:
        scaled: divide q k^T by sqrt(D), as every other encoding here. The published code means to
            but divides by sqrt(C / C) = 1; False does the same.
    """

    variants = ("scaled=false",)

    def __init__(self, model: ModelConfig, layer: int = 0, *, scaled: bool = True) -> None:
        super().__init__(model, layer)
        self.scaled = scaled

    def key_features(self, x: Tensor, state: State) -> Tensor:
        """-softplus(W x + b), (B, H, T, 1)."""
        return F.logsigmoid(-self.gate_logits(x))

    def rotate(
        self, q: Tensor, k: Tensor, state: State, features: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return q if self.scaled else q * math.sqrt(q.shape[-1]), k
