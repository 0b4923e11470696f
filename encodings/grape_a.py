"""ALiBi with slopes from queries and keys (Zhang et al. 2025, arXiv 2512.07805, GRAPE-A)."""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import Encoding, ModelConfig, Positions
from pe_bench.encodings.alibi import slopes


class GrapeA(Encoding):
    """logit_ij -= (i - j) slope_h w_h (softplus(v_h q_i / sqrt(D)) + softplus(u_h k_j / sqrt(D))).

    slope_h are the slopes of ALiBi. w_h > 0 is learned and starts at 1; u_h and v_h are learned
    unit vectors. Both gates start near ln 2, so the initial slope is about 1.4 times that of ALiBi,
    or 0.7 times with one gate.

    | published code | here |
    |---|---|
    | queries and keys normalised (RMSNorm per head, with gains) | as in the model |
    | u and v from N(0, 0.25/C), normalised | N(0, 1/D), normalised: equivalent |

    It rewrites the logits, so there is no fused kernel; blocks of queries keep memory small. The
    tests compare with the published code (Apache 2.0).

    Args:
        gate: whether the slope depends on the query and the key, or on one of them (the authors'
            variants).
    """

    family = "content"
    label = "GRAPE-A"
    colour = "#E69F00"
    marker = "^"

    shared = False
    shift_invariant = True
    parameters_per_layer = "2*C + H"
    variants = ("gate=query", "gate=key")

    slopes: Tensor

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        gate: Literal["both", "query", "key"] = "both",
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        self.register_buffer("slopes", torch.tensor(slopes(model.heads)), persistent=False)
        self.weight = nn.Parameter(torch.full((model.heads,), math.log(math.expm1(1))))
        self.of_query = self._direction() if gate != "key" else None
        self.of_key = self._direction() if gate != "query" else None

    def _direction(self) -> nn.Parameter:
        shape = self.model.heads, self.model.head_dim
        return nn.Parameter(torch.randn(shape) / math.sqrt(self.model.head_dim))

    def rewrite_logits(self, scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        slope = (F.softplus(self.weight) * self.slopes)[:, None, None]  # (H, 1, 1)
        rate = torch.zeros_like(scores[..., :1])  # (B, H, T, 1)
        if self.of_query is not None:
            rate = rate + _gate(q, self.of_query)
        if self.of_key is not None:
            rate = rate + _gate(k, self.of_key).mT  # (B, H, T, S)
        return scores - positions.distance[:, None] * slope * rate


def _gate(x: Tensor, direction: Tensor) -> Tensor:
    """Return softplus(u x / sqrt(D)): (B, H, T, D), (H, D) -> (B, H, T, 1)."""
    unit = F.normalize(direction, dim=-1, eps=1e-6)[..., None]  # (H, D, 1)
    return F.softplus(x @ unit / math.sqrt(x.shape[-1]))
