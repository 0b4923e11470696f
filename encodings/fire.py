"""An MLP of the distance as a share of the position (Li et al. 2024, arXiv 2310.04418)."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pe_bench.api import Encoding, InputError, ModelConfig, Positions

HIDDEN = 2**24
"""Largest number of hidden values of the MLP in memory at once."""


class FIRE(Encoding):
    """logit_ij += MLP(psi(i - j) / (psi(max(i, t)) + eps)), psi(x) = ln(1 + |c x|).

    The MLP is Linear(1, width), an activation, Linear(width, H). c and t = |multiplier threshold|
    are learned, the latter through its multiplier, which starts at 1. Queries before t see
    distances alone, later ones distances as a share of what lies behind them: not invariant to a
    shift. The multiplier learns from queries before t only, so from none if t is 1 or less.

    The numbers are those of the paper's listing, which reimplementations share; no code of the
    authors was found. The MLP runs on every pair of tokens, T x S x width operations, but in
    pieces, whose hidden values are computed again for the gradient: memory is T x S x H.

    Args:
        width: of the MLP.
        c: initial value.
        threshold: initial value of t.
        eps: keeps the quotient finite.
        shared: one MLP for all layers (the paper's FIRE-S), or one for each.
        activation: "relu", or "leaky-relu" (0.01), which DAPE's code has in its place.
        init: of the MLP. "torch": torch's default for linear layers, uniform; "normal":
            N(0, init_std) and no biases, as in TAPE's baseline, where the bias is about 0.001 in
            the beginning.
    """

    shared = False
    parameters_per_layer = "33*H + 66"
    variants = (
        "width=8,c=0.5,threshold=24,eps=0.001,shared=true",
        "activation=leaky-relu,init=normal",
        "train_positions=random",
    )

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        width: int = 32,
        c: float = 0.1,
        threshold: float = 512.0,
        eps: float = 1e-6,
        shared: bool = False,
        activation: Literal["relu", "leaky-relu"] = "relu",
        init: Literal["torch", "normal"] = "torch",
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        if width < 1:
            raise InputError(f"fire:width must be at least 1, not {width}")
        for name, value in {"c": c, "threshold": threshold, "eps": eps}.items():
            if not 0 < value < math.inf:
                raise InputError(f"fire:{name} must be greater than 0, not {value}")
        self.width = width
        self.threshold = threshold
        self.eps = eps
        self.shared = shared
        self.c = nn.Parameter(torch.tensor(c))
        self.multiplier = nn.Parameter(torch.tensor(1.0))
        self.mlp = nn.Sequential(
            nn.Linear(1, width),
            nn.ReLU() if activation == "relu" else nn.LeakyReLU(),
            nn.Linear(width, model.heads),
        )
        if init == "normal":
            for parameter in self.mlp.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=model.init_std)
                else:
                    nn.init.zeros_(parameter)

    def bias(self, positions: Positions) -> Tensor:
        distance = positions.distance.to(self.c.dtype)  # (B or 1, T, S)
        threshold = (self.multiplier * self.threshold).abs()
        furthest = positions.query.to(self.c.dtype).maximum(threshold)  # (B or 1, T)
        share = self.psi(distance) / (self.psi(furthest)[..., None] + self.eps)
        rows = max(1, HIDDEN // (self.width * share[:, 0].numel()))  # queries at a time
        pieces = [
            checkpoint(self.mlp, piece, use_reentrant=False, preserve_rng_state=False)
            for piece in share[..., None].split(rows, dim=1)
        ]
        # Keys go last in memory, which fused attention asks of a bias.
        return torch.cat(pieces, dim=1).permute(0, 3, 1, 2).contiguous()

    def psi(self, x: Tensor) -> Tensor:
        """Compress distances."""
        return (self.c * x).abs().log1p()
