"""Penalties summed from key to query (Zhang et al. 2025, arXiv 2512.07805, GRAPE-AP)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, Positions
from pe_bench.encodings.alibi import slopes
from pe_bench.encodings.rope import rotate
from pe_bench.encodings.stick_breaking import sums_from


class GrapeAP(Encoding):
    """logit_ij += slope_h (psi_i(j+1) + ... + psi_ii), psi_il = ln sigmoid(p_i R_l n_l / dim).

    p = W x has `dim` numbers per head and token, n is p divided by its root mean square, R_l
    rotates all channel pairs of n by -l radians, and slope_h are the slopes of ALiBi. p_i is not
    rotated, so psi_il depends on l and not only on i - l: the encoding is not invariant to shifts,
    although the paper presents it as relative.

    | published code | here |
    |---|---|
    | queries and keys normalised (RMSNorm per head, with gains) | as in the model |
    | W from N(0, 0.25/C) | N(0, init_std), like all weights |
    | options use q, k or v as p | left out |

    It rewrites the logits, so there is no fused kernel; blocks of queries keep memory small. The
    tests compare with the published code (Apache 2.0).

    Args:
        dim: numbers of p per head, even; 8 in the authors' runs.
    """

    family = "content"
    label = "GRAPE-AP"
    colour = "#E69F00"
    marker = "P"

    shared = False
    parameters_per_layer = "8*H*C"
    variants = ("dim=4",)

    slopes: Tensor

    def __init__(self, model: ModelConfig, layer: int = 0, *, dim: int = 8, **options: Any) -> None:
        super().__init__(model, layer, **options)
        if dim < 2 or dim % 2:
            raise InputError(f"grape-ap:dim must be even and at least 2, not {dim}")
        self.project = nn.Linear(model.width, model.heads * dim, bias=False)
        nn.init.normal_(self.project.weight, std=model.init_std)
        self.register_buffer("slopes", torch.tensor(slopes(model.heads)), persistent=False)

    def token_features(self, x: Tensor, positions: Positions) -> Tensor:
        """Return p, (B, H, T, dim)."""
        projected: Tensor = self.project(x).unflatten(-1, (self.model.heads, -1))
        return projected.transpose(1, 2)

    def rewrite_logits(self, scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        assert positions.features is not None  # `token_features` made them
        assert positions.query_features is not None
        dim = positions.features.shape[-1]
        angles = positions.key[:, None, :, None].to(scores.dtype)  # (B or 1, 1, S, 1)
        normed = F.rms_norm(positions.features, (dim,))  # (B, H, S, dim)
        turned = rotate(normed, angles.cos(), -angles.sin())  # (B, H, S, dim)
        steps = F.logsigmoid(positions.query_features @ turned.mT / dim)  # (B, H, T, S)
        path = sums_from(steps.masked_fill(~positions.causal, 0))  # (B, H, T, S)
        return scores + self.slopes[:, None, None] * F.pad(path[..., 1:], (0, 1))
