"""RoPE with a base that depends on the tokens (CARoPE; Veisi et al. 2025, arXiv 2507.23083)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, Positions
from pe_bench.encodings.rope import BASE, check_base, rotate_by


class CARoPE(Encoding):
    """Plane m of head h rotates by f_h(x_1)^m + ... + f_h(x_t)^m, x_t the input of the attention.

        f(x) = 1 / (1 + softplus(x W + b)),    between 0 and 1

    W is (C, heads), for each layer. With f = base^(-2/D) this is RoPE. The fastest plane, m = 0,
    always rotates by 1. There are no position ids.

    | paper, whose code was not found | here |
    |---|---|
    | "initialised as RoPE", which is impossible without b | b, such that W = 0 is RoPE |
    | f has no b | `start=normal`: W from N(0, init_std^2), f about 0.6 |
    | x is the token's embedding | input of the layer's attention |
    | one key head per query head | grouped queries: one f for each key head and its queries |
    | sums in the model's dtype | in float64, which is exact for long texts |

    Args:
        base: base of the frequencies; only with start=rope.
        start: "rope" or "normal".
    """

    family = "rotary"
    colour = "#0072B2"
    marker = "X"

    shared = False
    tunable = BASE
    shift_invariant = True
    parameters_per_layer = "C*H + H"
    variants = ("base=500", "start=normal")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        base: float = 10_000.0,
        start: Literal["rope", "normal"] = "rope",
    ) -> None:
        super().__init__(model, layer)
        check_base(base)
        if start == "normal" and base != 10_000:
            raise InputError("carope:base has no effect with start=normal: leave it out")
        if model.head_dim % 2 or model.head_dim < 4:
            raise InputError(
                "carope needs an even head_dim of at least 4; model.width / model.heads is "
                f"{model.head_dim}"
            )
        self.projection = nn.Linear(model.width, model.kv_heads, bias=start == "rope")
        if start == "rope":
            nn.init.zeros_(self.projection.weight)
            softplus = base ** (2 / model.head_dim) - 1
            nn.init.constant_(self.projection.bias, softplus + math.log(-math.expm1(-softplus)))
        else:
            nn.init.normal_(self.projection.weight, std=model.init_std)

    def token_features(self, x: Tensor, positions: Positions) -> Tensor:
        """Return ln f, (B, H, T, 1)."""
        log_f = -F.softplus(self.projection(x)).log1p().mT  # (B, G, T)
        group = self.model.heads // self.model.kv_heads
        return log_f.repeat_interleave(group, dim=1)[..., None]

    def scan_features(self, features: Tensor) -> Tensor:
        """Return the angles of all tokens so far, (B, H, S, D/2) float64."""
        m = torch.arange(self.model.head_dim // 2, device=features.device)
        steps = (features.double() * m).exp()  # (B, H, S, D/2)
        # A GPU sums in parallel only along the last axis.
        return steps.mT.cumsum(-1).mT

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        angles = positions.query_features  # (B, H, T, D/2)
        assert angles is not None  # `token_features` made them
        return rotate_by(q, k, angles)
