"""RoPE whose fast planes also decay with distance (Sun et al. 2022, arXiv 2212.10554)."""

import math
from typing import Any

import torch
from torch import Tensor

from pe_bench.api import InputError, ModelConfig, Positions
from pe_bench.encodings.rope import RoPE, rotate


class XPos(RoPE):
    """RoPE, with plane m of the product of q at i and k at j multiplied by zeta_m^((i - j) / b).

    zeta_m = (2m + 0.4 D) / (1.4 D) is 2/7 for the fastest plane and almost 1 for the slowest:

        q_p -> RoPE(q_p) zeta^((p - c) / b),    k_p -> RoPE(k_p) zeta^(-(p - c) / b)

    The centre c cancels. Far from c one of the factors is large, and so are the products with later
    keys, which are masked. They stay below 2^100, and so within float32 and bfloat16, for 55 b
    positions (28,000 by default), which is `max_position`.

    | torchscale | here |
    |---|---|
    | c: the middle of the sequence, which moves with a cache | the middle of a training sequence |
    | channels interleaved | LLaMA's layout: equivalent in another order |
    | blockwise causal attention in evaluation (paper) | none |

    Args:
        scale_base: b; 512 as in torchscale, 2048 in TAPE's baseline.
    """

    family = "rotary"
    label = "xPos"
    colour = "#0072B2"
    marker = "v"

    variants = ("scale_base=64",)

    def __init__(
        self, model: ModelConfig, layer: int = 0, *, scale_base: float = 512.0, **options: Any
    ) -> None:
        super().__init__(model, layer, **options)
        if not 1 <= scale_base < math.inf:
            raise InputError(f"scale_base must be at least 1, not {scale_base}")
        self.scale_base = scale_base
        limit = int(100 * math.log(2) / math.log(7 / 2) * scale_base)
        self.max_position = min(limit, self.max_position or limit)
        self.centre = min(model.train_length, self.max_position) // 2

    def tables(self, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return cos, sin and zeta^((p - c) / b), each (B or 1, 1, T, D/2)."""
        cos, sin = super().tables(ids, dtype)
        dim = self.model.head_dim
        planes = torch.arange(0, dim, 2, device=ids.device)
        zeta = (planes.double() + 0.4 * dim) / (1.4 * dim)  # (D/2,)
        exponents = (ids.double() - self.centre) / self.scale_base  # (B or 1, T)
        scale = zeta ** exponents[:, None, :, None]  # (B or 1, 1, T, D/2)
        return cos, sin, scale.to(dtype)

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        cos, sin, scale = positions.once(self.tables, positions.query, q.dtype)
        return rotate(q, cos * scale, sin * scale), rotate(k, cos / scale, sin / scale)
