"""RoPE with positions predicted from the tokens (RePo; Li et al. 2025, arXiv 2512.14391)."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, Positions
from pe_bench.encodings.rope import BASE, check_base, check_head_dim, geometric, rotate_by


class RePo(Encoding):
    """RoPE at a real position p for each token and head, a function of the attention's input x.

        p_h = (W_f (silu(W_g x) * (W_c x)))_h,    plane m rotates by p_h base^(-2m/D)

    W_g and W_c are (C/8, C) and W_f is (heads, C/8), in every layer except the lowest, which have
    RoPE. p does not depend on the order of the tokens: if the first layer has predicted positions,
    order enters only through the causal mask.

    | published code | here |
    |---|---|
    | continues from a model trained with RoPE | from scratch; `--from rope` continues |
    | layers 5 to 15 of 16 | the same fraction, rounded; `lower` |
    | one key head per query head | grouped queries: one p for each key head and its queries |
    | weights from N(0, 0.02^2), truncated at 3 standard deviations | N(0, init_std^2), the same |

    Args:
        base: base of the frequencies; 500000 as in the published code.
        lower: fraction of the layers that have RoPE, starting from the lowest.
    """

    family = "rotary"
    colour = "#0072B2"
    marker = "o"

    shared = False
    tunable = BASE
    shift_invariant = True
    parameters_per_layer = "C*C//4 + C//8*H"
    variants = ("base=10000,lower=0",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        base: float = 500_000.0,
        lower: float = 5 / 16,
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        check_base(base)
        if not 0 <= lower <= 1 or round(lower * model.layers) == model.layers:
            raise InputError(
                f"repo:lower must be at least 0 and leave one of {model.layers} layers, not {lower}"
            )
        check_head_dim(model)
        self.base = base
        self.chooses = layer >= round(lower * model.layers)
        if self.chooses:
            hidden = max(1, model.width // 8)
            self.gate = nn.Linear(model.width, hidden, bias=False)
            self.content = nn.Linear(model.width, hidden, bias=False)
            self.final = nn.Linear(hidden, model.kv_heads, bias=False)
            for module in (self.gate, self.content, self.final):
                most = 3 * model.init_std
                nn.init.trunc_normal_(module.weight, std=model.init_std, a=-most, b=most)

    def token_features(self, x: Tensor, positions: Positions) -> Tensor | None:
        """Return p, (B, H, T, 1); None if the layer has RoPE."""
        if not self.chooses:
            return None
        chosen = self.final(F.silu(self.gate(x)) * self.content(x)).mT  # (B, G, T)
        group = self.model.heads // self.model.kv_heads
        per_head: Tensor = chosen.repeat_interleave(group, dim=1)  # (B, H, T)
        return per_head[..., None]

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        at = positions.query_features  # (B, H, T, 1)
        if at is None:
            at = positions.query[:, None, :, None]  # (B or 1, 1, T, 1)
        theta = geometric(self.base, self.model.head_dim // 2, at.device).double()  # (D/2,)
        angles = at.double() * theta  # (B or 1, H or 1, T, D/2)
        return rotate_by(q, k, angles)
