"""RoPE with angles that are cumulative sums over the tokens (Movahedi et al. 2026, ICLR)."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, Positions
from pe_bench.encodings.rope import BASE, check_base, check_head_dim, geometric, rotate_by


class SelectiveRoPE(Encoding):
    """Plane m of head h rotates by theta_m (phi_1 + ... + phi_t), phi a function of the tokens.

        phi = conv(W_2 W_1 u),  u = x scaled to length one in each head's channels

    conv is a causal depthwise convolution over 4 tokens; theta_m = base^(-2m/D) is not learned.
    With phi = 1 this is RoPE. There are no position ids.

    | authors | here |
    |---|---|
    | gated linear attention | softmax attention, as their code allows |
    | sums in the model's dtype | in float64, which is exact for long texts |
    | module: torch's default initialisation, phi about 0.2 / sqrt(D) | the same |
    | language models: N(0, 0.02^2), phi about 1e-4, almost no positions | `init=normal` |

    Args:
        base: base of the frequencies; 500000 as in the authors' code.
        rank: rows of W_1; 16 as in the authors' code, 32 in some of their runs.
        bias: whether to add e^b to phi, with a learned b per head and plane; initially 0, which is
            close to RoPE.
        gate: whether to multiply phi by a sigmoid of a linear function of u, one per head.
        init: "torch", or "normal": weights N(0, model.init_std^2) as in the authors' runs.
    """

    family = "rotary"
    label = "Selective RoPE"
    colour = "#0072B2"
    marker = "P"

    shared = False
    tunable = BASE
    shift_invariant = True
    parameters_per_layer = "16*C + 8*C + 2*C"
    variants = ("rank=4,base=10000,bias=true,gate=true", "init=normal")

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        base: float = 500_000.0,
        rank: int = 16,
        bias: bool = False,
        gate: bool = False,
        init: Literal["torch", "normal"] = "torch",
    ) -> None:
        super().__init__(model, layer)
        check_base(base)
        if rank < 1:
            raise InputError(f"selective-rope:rank must be at least 1, not {rank}")
        check_head_dim(model)
        if model.kv_heads != model.heads:
            raise InputError(
                f"every head has its own rotation angles: use equal numbers of kv_heads and heads "
                f"({model.heads}), not {model.kv_heads}"
            )
        self.base = base
        self.planes = model.head_dim // 2
        width = model.heads * self.planes
        self.down = nn.Linear(model.width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        self.conv = nn.Conv1d(width, width, 4, groups=width, bias=False)
        self.log_bias = nn.Parameter(torch.zeros(model.heads, 1, self.planes)) if bias else None
        self.gate = nn.Linear(model.width, model.heads) if gate else None
        if init == "normal":
            for module in (self.down, self.up, self.conv, self.gate):
                if module is not None:
                    nn.init.normal_(module.weight, std=model.init_std)
            if self.gate is not None:
                nn.init.zeros_(self.gate.bias)

    def token_features(self, x: Tensor, positions: Positions) -> Tensor:
        """Return W_2 W_1 u, (B, H, T, D/2), and the gate before its sigmoid, (B, H, T, 1)."""
        heads = x.unflatten(-1, (self.model.heads, -1))
        u = (heads * (heads.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).flatten(-2)
        features = self.up(self.down(u)).unflatten(-1, (self.model.heads, -1))
        if self.gate is not None:
            features = torch.cat([features, self.gate(u)[..., None]], dim=-1)
        per_head: Tensor = features.transpose(1, 2)
        return per_head

    def scan_features(self, features: Tensor) -> Tensor:
        """Return the angles of all tokens so far, (B, H, S, D/2) float64."""
        channels = features[..., : self.planes].transpose(2, 3).flatten(1, 2)
        phi = self.conv(F.pad(channels, (3, 0))).unflatten(1, (self.model.heads, -1))
        if self.log_bias is not None:
            phi = phi + self.log_bias.exp().mT
        if self.gate is not None:
            phi = phi * features[..., self.planes :].sigmoid().mT
        # A GPU sums in parallel only along the last axis.
        total: Tensor = phi.double().cumsum(-1).mT  # (B, H, S, D/2)
        return total * geometric(self.base, self.planes, total.device).double()

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        angles = positions.query_features  # (B, H, T, D/2)
        assert angles is not None  # `token_features` made them
        return rotate_by(q, k, angles)
