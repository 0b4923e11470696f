"""Every token adds a learned penalty to older tokens (Veisi et al. 2025, arXiv 2503.08067)."""

import torch.nn.functional as F
from torch import Tensor

from pe_bench.api import ModelConfig, Positions
from pe_bench.encodings.fox import FoX


class CABLE(FoX):
    """logit_ij += c_i - c_j, with c_t = -sum_{s <= t} softplus(W x_s + b).

    This is FoX with the gate f = sigmoid(-(W x + b)): -softplus(z) = ln sigmoid(-z). W is (H, C),
    from N(0, init_std), and b (H,), from zero, in every layer.

    Args:
        scaled: whether q k^T is divided by sqrt(D), as in all other encodings here. The published
            code intends this but divides by sqrt(C / C) = 1, which is False.
    """

    family = "content"
    colour = "#999933"
    marker = "^"

    variants = ("scaled=false",)

    def __init__(self, model: ModelConfig, layer: int = 0, *, scaled: bool = True) -> None:
        super().__init__(model, layer)
        self.divide_scores = scaled

    def token_features(self, x: Tensor, positions: Positions) -> Tensor:
        """Return -softplus(W x + b), (B, H, T, 1)."""
        return F.logsigmoid(-self.gate_logits(x))
