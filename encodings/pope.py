"""Polar coordinates: lengths from content, angles from positions (Gopalakrishnan et al. 2025)."""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import Encoding, ModelConfig, Positions
from pe_bench.encodings.rope import BASE, check_base, geometric


class PoPE(Encoding):
    """logit_ij = sum_c softplus(q_ic) softplus(k_jc) cos((p_i - p_j) theta_c - d_c) / sqrt(D).

    Each channel c is rotated separately, by theta_c = base^(-c/D) per position (arXiv 2509.10534).
    Lengths are not negative, so the sign of a product depends on positions and d only, and content
    does not change angles. d is learned for each head and channel and clamped to [-2 pi, 0].

    | published code | here |
    |---|---|
    | no code by the authors was found | compared with PoPE-pytorch, an independent one (MIT) |
    | a fraction of rotated channels, and axes of images | left out |

    Args:
        base: base of the frequencies; the longest wavelength is 2 pi base^(1 - 1/D) tokens.
        start: initial d, "zero" or "uniform" in [-2 pi, 0].
    """

    family = "rotary"
    colour = "#0072B2"
    marker = "^"

    shared = False
    tunable = BASE
    shift_invariant = True
    parameters_per_layer = "C"
    variants = ("base=500,start=uniform",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        base: float = 10_000.0,
        start: Literal["zero", "uniform"] = "zero",
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        check_base(base)
        self.base = base
        self.qk_width = 2 * model.head_dim
        self.shift = nn.Parameter(torch.zeros(model.heads, model.head_dim))
        if start == "uniform":
            nn.init.uniform_(self.shift, -2 * math.pi, 0)

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        """Return points in the plane, with twice the channels; only queries are shifted by d."""
        angles = self.angles(positions.query)  # (B or 1, 1, T, D)
        shift = self.shift.clamp(-2 * math.pi, 0)[:, None]  # (H, 1, D)
        # Attention divides by the root of 2 D.
        lengths = math.sqrt(2) * F.softplus(q)  # (B, H, T, D)
        return polar(lengths, angles - shift), polar(F.softplus(k), angles)

    def angles(self, ids: Tensor) -> Tensor:
        """Return the angle of each channel, (B or 1, T) -> (B or 1, 1, T, D) float64."""
        theta = geometric(self.base, self.model.head_dim, ids.device).double()  # (D,)
        return ids.double()[:, None, :, None] * theta


def polar(lengths: Tensor, angles: Tensor) -> Tensor:
    """Return points in the plane, (B, H, T, D) -> (B, H, T, 2 D)."""
    cos = angles.cos().to(lengths.dtype)
    sin = angles.sin().to(lengths.dtype)
    return torch.cat([lengths * cos, lengths * sin], dim=-1)
