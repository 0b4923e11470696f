"""Fourier series instead of single rotations (Hua et al. 2025, ICML, arXiv 2412.17739)."""

import math
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, Positions
from pe_bench.encodings.rope import BASE, check_base, check_head_dim, geometric, rotate


class FoPE(Encoding):
    """Plane m of head h is mapped by a mixture of rotations, at the frequencies theta_n of RoPE.

        cos'_m(p) = sum_n A_hnm cos(p theta_n),    sin'_m(p) = sum_n B_hnm sin(p theta_n)
        q -> q cos' + rotate_half(q) sin',         the same for k

    n runs over the K planes with more than one turn within the training length; the other planes
    have cos' = 1 and sin' = 0. A and B are the identity plus normal noise, different for each layer
    and head, and not learned. The maps are not rotations: they change lengths, and products do not
    depend on the distance alone.

    | published | here |
    |---|---|
    | code of the paper: sin' = 1 in the other planes, a constant map | 0; `padding=one` |
    | code of the paper: at most D/4 planes, made from all K | all K; `outputs=capped` |
    | Intern-S1-Pro (vLLM): sin' = 0, all K, one A and B per key head | the same, and its numbers |
    | noise: torch's Xavier of an (H, K, M) tensor, std gain sqrt(2 / (M (H + K))) | the same |

    Args:
        base: base of RoPE's frequencies.
        gain: gain of the noise; the paper has 0.3 for 60M parameters, 0.4 for 180M, 0.6 for 1.2B.
        learned: whether A and B are trained.
        padding: sin' in the other planes, "zero" or "one".
        outputs: planes that are mixed: "all" K, or "capped" at D/4.
    """

    family = "rotary"
    colour = "#0072B2"
    marker = "D"

    shared = False
    tunable = BASE
    variants: ClassVar[tuple[str, ...]] = (
        "base=500,gain=0.6,learned=true",
        "padding=one,outputs=capped",
    )

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        base: float = 10_000.0,
        gain: float = 0.3,
        learned: bool = False,
        padding: Literal["zero", "one"] = "zero",
        outputs: Literal["all", "capped"] = "all",
        **options: Any,
    ) -> None:
        super().__init__(model, layer, **options)
        check_base(base)
        if not 0 <= gain < math.inf:
            raise InputError(f"fope:gain must be at least 0, not {gain}")
        check_head_dim(model)
        self.base = base
        self.padding = padding
        self.planes = model.head_dim // 2
        turn_once = geometric(base, self.planes, torch.device("cpu")) > self.slowest
        self.kept = int(turn_once.sum())
        mixed = self.kept
        if outputs == "capped":
            mixed = min(self.kept, model.head_dim // 4)
        if mixed == 0:
            raise InputError(
                f"fope needs planes that turn within the {model.train_length} tokens of training: "
                "use longer rows, or more channels per head"
            )
        mixtures = torch.zeros(2, model.kv_heads, self.kept, mixed)
        for mixture in mixtures:
            nn.init.xavier_normal_(mixture, gain=gain)
        step = math.ceil(self.kept / mixed)
        for m in range(mixed):
            if m * step < self.kept:
                mixtures[:, :, m * step, m] += 1
        if learned:
            self.mixtures = nn.Parameter(mixtures)
        else:
            self.register_buffer("mixtures", mixtures)

    @property
    def slowest(self) -> float:
        """Frequency of one turn within the training length, in rad per position."""
        return 2 * math.pi / self.model.train_length

    def tables(self, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos' and sin' at ids (B or 1, T), each (B or 1, G, T, D/2)."""
        theta = geometric(self.base, self.planes, ids.device)[: self.kept].double()  # (K,)
        angles = ids.double()[:, None, :, None] * theta  # (B or 1, 1, T, K)
        to_cos, to_sin = self.mixtures.to(dtype)  # (G, K, M) each
        cos = angles.cos().to(dtype) @ to_cos  # (B or 1, G, T, M)
        sin = angles.sin().to(dtype) @ to_sin  # (B or 1, G, T, M)
        rest = self.planes - cos.shape[-1]
        padding = 1.0 if self.padding == "one" else 0.0
        return F.pad(cos, (0, rest), value=1.0), F.pad(sin, (0, rest), value=padding)

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        cos, sin = self.tables(positions.query, q.dtype)
        group = self.model.heads // self.model.kv_heads
        of_queries = [table.repeat_interleave(group, dim=1) for table in (cos, sin)]
        return rotate(q, *of_queries), rotate(k, cos, sin)
