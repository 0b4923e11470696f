"""Rotary embedding: q and k rotate with the position (Su et al. 2021, arXiv 2104.09864)."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, Positions, Tunable
from pe_bench.encodings.rope.checks import check_base, check_head_dim
from pe_bench.encodings.rope.choice import SCALINGS, make_scaling, take_options
from pe_bench.encodings.rope.llama import fields_of, options_of
from pe_bench.encodings.rope.selections import whole_periods

ScalingName = Literal[
    "none",
    "pi",
    "ntk",
    "yarn",
    "llama3",
    "longrope",
    "dynamic-pi",
    "dynamic-ntk",
    "dynamic-yarn",
    "hope",
    "clipped",
    "rope-id",
]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate channel pairs (m, m + D/2), the LLaMA layout, by angles given as cos and sin.

    x is (B, H, T, D); cos and sin broadcast to (B, H, T, D/2).
    """
    first, second = x.chunk(2, dim=-1)  # (B, H, T, D/2) each
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def rotate_by(q: Tensor, k: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries (B, H, T, D) and keys (B, G, T, D) by the angles of each query head.

    angles is float64 and broadcasts to (B, H, T, D/2). A key head has the angles of the first of
    its queries.
    """
    cos = angles.cos().to(q.dtype)  # (B or 1, H or 1, T, D/2)
    sin = angles.sin().to(q.dtype)  # (B or 1, H or 1, T, D/2)
    group = q.shape[1] // k.shape[1]
    return rotate(q, cos, sin), rotate(k, cos[:, ::group], sin[:, ::group])


def geometric(base: float, planes: int, device: torch.device | None = None) -> Tensor:
    """Return base^(-m/planes) for m = 0, 1, ..., planes - 1 in float32.

    Powers are computed on the CPU. Those of a GPU differ in the last bit, which is 0.006 rad at
    position 10^5.
    """
    exponents = torch.arange(planes, device="cpu").float() / planes
    powers = 1 / base**exponents
    return powers.to(device or torch.get_default_device(), non_blocking=True)


def other_bases(model: ModelConfig) -> tuple[float, float]:
    """Return bases to try besides 10,000, which was chosen for a few thousand tokens.

    With heads of 16 channels the longest wavelengths of the bases 10,000, 1,000 and 100 are 20,000,
    2,700 and 350 tokens. Texts of 1024 tokens and more have the larger bases of recent models.
    """
    return (1_000.0, 100.0) if model.train_length < 1024 else (100_000.0, 500_000.0)


BASE = Tunable("base", other_bases)
"""What `--tune` chooses for encodings that rotate."""


class RoPE(Encoding):
    """Channel pair m of the token at position p is rotated by the angle p theta_m.

    Without scaling, theta_m = base^(-2m/D). Frequencies are rounded to float32, as in published
    checkpoints, and angles are computed in float64; in float32 their error would be 0.01 rad at
    position 10^5.

    A scaling changes theta for sequences that are s times as long as the original length L0. Each
    scaling has separate options, see `SCALINGS` in choice.py:

    | scaling | theta becomes | s |
    |---|---|---|
    | pi | theta / s | factor |
    | ntk | theta for base s^(D/(D-2)) | factor |
    | yarn, llama3 | theta / s if slow, theta if fast | factor |
    | longrope | theta / a factor for each m | factor |
    | dynamic-pi, dynamic-yarn | as above | S / L0 |
    | dynamic-ntk | as above | factor S / L0 - (factor - 1) |

    Dynamic scalings depend on the number of tokens S and equal unscaled RoPE up to L0. They have no
    KV cache, because its keys would keep the frequencies of shorter sequences. S is at least the
    training length, so that padding does not change short rows. YaRN and LongRoPE also multiply cos
    and sin by an attention factor, which multiplies the logits by its square.

    Three more scalings select frequencies, equally for all lengths: "hope" (0 for planes without a
    full turn within L0), "clipped" (the slowest decrease to 0) and "rope-id" (half of the planes,
    all of them fast).

    With `rotary` below 1 the frequencies are spread over the first planes and the other planes do
    not rotate. GPT-NeoX pairs the first channels of a head instead, which is equivalent.

    Args:
        base: base of the frequencies; the longest wavelength is 2 pi base^(1 - 2/D) tokens.
        scaling: see above.
        rotary: fraction of the channels that is rotated.
        proportional: fraction of the frequencies to keep, the fastest; the others become 0
            (p-RoPE, Barbero et al. 2024, arXiv 2410.06205).
        trainable: whether theta is learned, with the initial values and the scaling above.
        resonance: whether to round the period 2 pi / theta of each plane, after scaling, to a whole
            number of tokens (Resonance RoPE, Wang et al. 2024, arXiv 2403.00071).
    """

    family = "rotary"
    colour = "#0072B2"
    marker = "s"

    shift_invariant = True
    tunable = BASE
    option_tables = {"scaling": SCALINGS}
    variants: ClassVar[tuple[str, ...]] = (
        "base=500000,rotary=0.5,trainable=true",
        "scaling=yarn,factor=4,beta_fast=8,beta_slow=2,truncate=false,attention_factor=1.3",
        "scaling=dynamic-yarn,original_length=16,ramp=rotations,train_positions=offset",
        "scaling=dynamic-ntk,factor=2,proportional=0.75",
        "scaling=llama3,factor=4,beta_slow=0.5",
        "scaling=longrope,factor=2,factors=1;1;1;1.2;1.5;2;2;2,short_factors=1;1;1;1;1;1;1;1.5",
        "scaling=hope,turns=2",
        "scaling=clipped,clipped=4",
        "scaling=clipped,hard=true,resonance=true",
        "scaling=rope-id,share=0.75",
    )

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        base: float = 10_000.0,
        scaling: ScalingName = "none",
        rotary: float = 1.0,
        proportional: float = 1.0,
        trainable: bool = False,
        resonance: bool = False,
        **options: Any,
    ) -> None:
        of_scaling = take_options(options)
        super().__init__(model, layer, **options)
        check_base(base)
        check_head_dim(model)
        if resonance and trainable:
            raise InputError("rounded periods have no gradient: leave out trainable")
        self.base = base
        self.resonance = resonance
        self.planes = int(rotary * model.head_dim) // 2
        self.moving = int(proportional * self.planes)
        in_range = 0 < rotary <= 1 and 0 < proportional <= 1
        if not in_range or self.moving < SCALINGS[scaling].min_planes:
            raise InputError(
                f"rotary={rotary} and proportional={proportional} must be at most 1 and leave more "
                f"of the {model.head_dim // 2} planes that rotate: raise them"
            )
        self.scaling = make_scaling(
            scaling,
            of_scaling,
            base=base,
            planes=self.planes,
            train_length=model.train_length,
        )
        if self.scaling.dynamic:
            self.prefix_consistent = False
        # The first layer computes the tables, so parameters of other layers would get no gradient.
        learned = trainable and layer == 0
        self.theta = nn.Parameter(geometric(base, self.planes)) if learned else None

    def frequencies(self, device: torch.device, length: int = 0) -> Tensor:
        """Return the angle per position of each rotated plane, in a sequence of `length`.

        (D/2,) float32, or fewer with `rotary` below 1; float64 with `resonance`.
        """
        plain = geometric(self.base, self.planes, device) if self.theta is None else self.theta
        theta = self.scaling.frequencies(plain.double(), length)
        theta = theta * (torch.arange(self.planes, device=device) < self.moving)
        return whole_periods(theta) if self.resonance else theta.to(plain.dtype)

    def tables(self, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return cos and sin of the angles at ids (B or 1, T), each (B or 1, 1, T, D/2)."""
        length = max(ids.shape[1], self.model.train_length)
        cos, sin = self.turns(ids, length, self.scaling.gain(length))
        return cos.to(dtype), sin.to(dtype)

    def turns(self, ids: Tensor, length: int, gain: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return gain times cos and sin at ids, in float64, in a sequence of `length` tokens."""
        theta = self.frequencies(ids.device, length).double()  # (D/2,)
        angles = ids.double()[:, None, :, None] * theta  # (B or 1, 1, T, D/2)
        still = self.model.head_dim // 2 - self.planes
        cos = F.pad(gain * angles.cos(), (0, still), value=1.0)
        sin = F.pad(gain * angles.sin(), (0, still))
        return cos, sin

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        cos, sin = positions.once(self.tables, positions.query, q.dtype)
        return rotate(q, cos, sin), rotate(k, cos, sin)

    @classmethod
    def options_of_llama(cls, rotation: Mapping[str, Any], length: int) -> dict[str, Any]:
        return options_of(rotation, length)

    def llama_fields(self) -> dict[str, Any] | None:
        whole = self.moving == self.planes == self.model.head_dim // 2 and self.theta is None
        if type(self) is not RoPE or not whole or self.resonance or self.eval_samples > 1:
            return None
        return fields_of(self.scaling)
