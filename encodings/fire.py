"""An MLP of the distance relative to the position (Li et al. 2024, arXiv 2310.04418)."""

import math
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, Positions, Tunable


def other_thresholds(model: ModelConfig) -> list[float]:
    """Return a half and an eighth of the training length.

    The published threshold of 512 is a quarter of its training rows of 2048 tokens. Queries before
    the threshold only see distances; in shorter rows these are all queries.
    """
    return [max(2.0, model.train_length // 2), max(2.0, model.train_length // 8)]


class FIRE(Encoding):
    """logit_ij += MLP(psi(i - j) / (psi(max(i, t)) + eps)), psi(x) = ln(1 + |c x|).

    The MLP is Linear(1, width), an activation, Linear(width, H). c and t = |multiplier threshold|
    are learned, the latter through its multiplier, which starts at 1. Queries before t only see
    distances. Later queries see distances relative to their positions, so FIRE is not invariant to
    shifts. The multiplier has gradients from queries before t only, and none if t is at most 1.

    The constants are those of the listing in the paper, which reimplementations share; no code by
    the authors was found. If the input of a unit is exactly zero, its gradient is the one from one
    side; that of a ReLU would be zero.

    Args:
        width: hidden size of the MLP.
        c: initial value of c.
        threshold: initial value of t.
        eps: keeps the quotient finite.
        shared: whether all layers share one MLP (FIRE-S in the paper).
        activation: "relu", or "leaky-relu" (0.01) as in the code of DAPE.
        init: initialisation of the MLP. "torch" is torch's default for linear layers; "normal" is
            N(0, init_std) without biases, as in the baseline of TAPE, where the initial bias of the
            logits is about 0.001.
    """

    family = "bias"
    colour = "#E69F00"
    marker = "v"

    shared = False
    tunable = Tunable("threshold", other_thresholds)
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
        self.leak = 0.0 if activation == "relu" else 0.01  # slope of an inactive unit
        self.c = nn.Parameter(torch.tensor(c))
        self.multiplier = nn.Parameter(torch.tensor(1.0))
        self.mlp = nn.Sequential(
            nn.Linear(1, width),
            nn.LeakyReLU(self.leak),
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
        relative = self.psi(distance) / (self.psi(furthest)[..., None] + self.eps)
        by_head = self.lookup(relative.flatten())  # (H, B T S)
        # Fused attention needs a bias with the keys as the last axis in memory.
        bias: Tensor = by_head.unflatten(1, relative.shape).transpose(0, 1).contiguous()
        return bias

    def psi(self, x: Tensor) -> Tensor:
        """Compress distances."""
        return (self.c * x).abs().log1p()

    def lookup(self, x: Tensor) -> Tensor:
        """Return the MLP's output at numbers x, (N,) -> (H, N).

        The MLP is piecewise linear in its one input: slope x + start between the points where a
        unit switches. The pieces are computed once for all numbers.
        """
        first = cast(nn.Linear, self.mlp[0])
        last = cast(nn.Linear, self.mlp[2])
        weight = first.weight[:, 0]  # (width,)
        switch = torch.where(weight == 0, torch.inf * first.bias.sign(), -first.bias / weight)
        switch, order = switch.detach().sort()  # (width,): x where each unit switches
        pieces = torch.arange(self.width + 1, device=x.device)[:, None]  # (width + 1, 1)
        behind = pieces > torch.arange(self.width, device=x.device)  # (width + 1, width)
        on = behind == (weight[order] > 0)  # units with a negative weight are on before they switch
        gain = torch.where(on, 1.0, self.leak).to(x.dtype)  # (width + 1, width)
        rates = last.weight[:, order]  # (H, width)
        slope = (rates * weight[order]) @ gain.T  # (H, width + 1)
        start = (rates * first.bias[order]) @ gain.T + last.bias[:, None]  # (H, width + 1)
        piece = torch.bucketize(x.detach(), switch)  # (N,)
        return torch.addcmul(start.index_select(1, piece), slope.index_select(1, piece), x)
