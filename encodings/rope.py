"""Rotary: q and k turn by angles that grow with position (Su et al. 2021, arXiv 2104.09864)."""

import math
import re
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.api import Encoding, InputError, ModelConfig, State

Scaling = Literal[
    "none", "pi", "ntk", "yarn", "llama3", "longrope", "dynamic-pi", "dynamic-ntk", "dynamic-yarn"
]
YARN = ("yarn", "dynamic-yarn")
BLENDED = (*YARN, "llama3")
USED_BY = {
    "factor": ("pi", "ntk", "dynamic-ntk", "yarn", "llama3", "longrope"),
    "original_length": ("dynamic-pi", "dynamic-ntk", *BLENDED, "longrope"),
    "beta_fast": BLENDED,
    "beta_slow": BLENDED,
    "truncate": YARN,
    "ramp": YARN,
    "attention_factor": (*YARN, "longrope"),
    "factors": ("longrope",),
    "short_factors": ("longrope",),
}
"""Options that only some values of `scaling` look at."""


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns channel pairs (m, m + D/2), the LLaMA layout, by angles given as cos and sin.

    x is (B, H, T, D); cos and sin broadcast to (B, H, T, D/2).
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def geometric(base: float, planes: int, device: torch.device | None = None) -> Tensor:
    """base^(-m/planes) for m = 0, 1, ..., planes - 1 in float32."""
    exponents = torch.arange(planes, device=device).float() / planes
    return 1 / base**exponents


def interpolate(theta: Tensor, factor: float, kept: Tensor | float = 0.0) -> Tensor:
    """Divides by the factor, except for the share of each frequency that is kept."""
    return theta * (kept + (1 - kept) / factor)


def enlarge_base(theta: Tensor, factor: float) -> Tensor:
    """As if the base were base factor^(D/(D-2)): the slowest is divided by the factor."""
    steps = torch.arange(len(theta), device=theta.device).double() / (len(theta) - 1)
    return theta * factor**-steps


def ramp_by_rotations(theta: Tensor, length: int, slow: float, fast: float) -> Tensor:
    """1 for what turns at least `fast` times within the length, 0 for at most `slow` times."""
    return ((length * theta / (2 * math.pi) - slow) / (fast - slow)).clamp(0, 1)


def ramp_by_index(
    theta: Tensor, length: int, slow: float, fast: float, base: float, truncate: bool
) -> Tensor:
    """The same ends, but linear in m between the planes where plain frequencies reach them."""
    planes = len(theta)
    start, end = (
        planes * math.log(length / (2 * math.pi * turns)) / math.log(base) for turns in (fast, slow)
    )
    if truncate:
        start, end = math.floor(start), math.ceil(end)
    start = max(start, 0)
    end = max(min(end, 2 * planes - 1), start + 0.001)
    return 1 - ((torch.arange(planes, device=theta.device) - start) / (end - start)).clamp(0, 1)


def read_factors(text: str, planes: int) -> list[float]:
    """One number for each plane, from text with ';' between them or from the file of that name.

    Raises:
        InputError: anything but so many positive numbers.
    """
    try:
        content = text if ";" in text else Path(text).read_text(encoding="utf-8")
        numbers = [float(number) for number in re.split(r"[;,\s]+", content.strip("[] \n"))]
    except (OSError, ValueError):
        numbers = []
    if len(numbers) != planes or not all(0 < number < math.inf for number in numbers):
        raise InputError(
            f"the factors of longrope are {planes} positive numbers with ';' between them, or a "
            f"file of them, not '{text}'"
        )
    return numbers


class RoPE(Encoding):
    """Channel pair m of the token at position p turns by the angle p theta_m.

    Plain: theta_m = base^(-2m/D). Frequencies are rounded to float32, as in the published
    checkpoints, and angles are taken in float64: in float32 they would be off by 0.01 rad at
    position 10^5.

    A scaling changes theta for sequences s times as long as the original length L0:

    | scaling | theta becomes | s |
    |---|---|---|
    | pi (Chen et al. 2023, arXiv 2306.15595) | theta / s | factor |
    | ntk (bloc97 2023, Reddit) | that of the base times s^(D/(D-2)) | factor |
    | yarn (Peng et al. 2023, arXiv 2309.00071) | theta / s if slow, theta if fast | factor |
    | llama3 (Llama 3.1's code) | theta / s if slow, theta if fast | factor |
    | longrope (Ding et al. 2024, arXiv 2402.13753) | theta / a factor for each m | factor |
    | dynamic-pi, dynamic-yarn | as above | S / L0 |
    | dynamic-ntk | as above | factor S / L0 - (factor - 1) |

    The dynamic ones follow the number of tokens S, are plain RoPE up to L0, and have no KV cache,
    whose keys would keep the frequencies of shorter sequences. YaRN and LongRoPE also multiply
    cos and sin by an attention factor, and so the logits by its square.

    With `rotary` below 1 the frequencies are spread over the first planes and the others stand
    still. GPT-NeoX pairs the first channels of a head instead: the same in another order.

    Args:
        base: what the wavelengths grow with; the longest is 2 pi base^(1 - 2/D) tokens.
        scaling: see above.
        factor: see above; None is 1 for dynamic-ntk, and 8 for llama3 as in Llama 3.1.
        original_length: L0; None is the training length.
        beta_fast: fast is what turns at least so often within L0; None is 32 for YaRN and 4 for
            llama3, where it is known as high_freq_factor.
        beta_slow: slow is what turns at most so often; llama3's low_freq_factor.
        truncate: YaRN's blend by index starts and ends at whole indices, as in its code.
        ramp: between slow and fast YaRN blends linearly in the "index" m, as in its code, or in
            the number of "rotations" within L0, as in its text and in TAPE's ablation adayarn.
        attention_factor: None is 1 + 0.1 ln s for YaRN, sqrt(1 + ln s / ln L0) for LongRoPE.
        factors: LongRoPE's, for each m: numbers with ';' between them, or the path of a file.
        short_factors: those for up to L0 tokens; None: `factors` at all lengths.
        rotary: share of the channels that turn.
        proportional: share of the frequencies that are kept, the fastest; the others become 0
            (p-RoPE, Barbero et al. 2024, arXiv 2410.06205).
        trainable: theta is learned, starting as above, and scaled as above.
    """

    shift_invariant = True
    rotation_equivariant = True
    variants: ClassVar[tuple[str, ...]] = (
        "base=500000,rotary=0.5,trainable=true",
        "scaling=yarn,factor=4,beta_fast=8,beta_slow=2,truncate=false,attention_factor=1.3",
        "scaling=dynamic-yarn,original_length=16,ramp=rotations,train_ids=offset",
        "scaling=dynamic-ntk,factor=2,proportional=0.75",
        "scaling=llama3,factor=4,beta_slow=0.5",
        "scaling=longrope,factor=2,factors=1;1;1;1.2;1.5;2;2;2,short_factors=1;1;1;1;1;1;1;1.5",
    )

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        base: float = 10_000.0,
        scaling: Scaling = "none",
        factor: float | None = None,
        original_length: int | None = None,
        beta_fast: float | None = None,
        beta_slow: float = 1.0,
        truncate: bool = True,
        ramp: Literal["index", "rotations"] = "index",
        attention_factor: float | None = None,
        factors: str | None = None,
        short_factors: str | None = None,
        rotary: float = 1.0,
        proportional: float = 1.0,
        trainable: bool = False,
        **options: Any,
    ) -> None:
        given, defaults = locals(), RoPE.__init__.__kwdefaults__ or {}
        super().__init__(model, layer, **options)
        for name, scalings in USED_BY.items():
            if given[name] != defaults[name] and scaling not in scalings:
                raise InputError(f"{name} has no effect with scaling={scaling}: leave it out")
        if not truncate and ramp == "rotations":
            raise InputError("truncate has no effect with ramp=rotations: leave it out")
        if base <= 1:
            raise InputError(f"the base of the rotation must be greater than 1, not {base}")
        if model.head_dim % 2:
            raise InputError(
                f"a rotation needs an even head_dim; model.width / model.heads is {model.head_dim}"
            )
        for name, least in {"factor": 1, "original_length": 2, "attention_factor": 0}.items():
            if given[name] is not None and not least <= given[name] < math.inf:
                raise InputError(f"{name} must be at least {least}, not {given[name]}")
        if scaling in ("pi", "ntk", "yarn", "longrope") and factor is None:
            raise InputError(f"scaling={scaling} needs a factor: how much longer texts shall fit")
        fast = beta_fast
        if fast is None:
            fast = 4.0 if scaling == "llama3" else 32.0
        if not 0 < beta_slow < fast < math.inf:
            raise InputError(f"beta_slow={beta_slow} must be above 0 and below beta_fast={fast}")
        self.planes = int(rotary * model.head_dim) // 2 if 0 < rotary <= 1 else 0
        self.moving = int(proportional * self.planes) if 0 < proportional <= 1 else 0
        if self.moving < 1 + scaling.endswith("ntk"):
            raise InputError(
                f"rotary={rotary} and proportional={proportional} are shares of 1 and leave too "
                f"few of {model.head_dim // 2} planes that turn: raise them"
            )
        self.base, self.slow, self.fast = base, beta_slow, fast
        self.truncate, self.ramp, self.attention_factor = truncate, ramp, attention_factor
        self.kind, self.dynamic = scaling.removeprefix("dynamic-"), scaling.startswith("dynamic-")
        self.factor = factor or (8.0 if scaling == "llama3" else 1.0)
        self.original_length = original_length or model.train_length
        if scaling == "longrope":
            self.factors = read_factors(factors or "", self.planes)
        self.short_factors = read_factors(short_factors, self.planes) if short_factors else []
        if self.dynamic or self.short_factors:
            self.prefix_consistent = False
        # Only the first layer's `begin` is called: parameters elsewhere would get no gradient.
        learned = trainable and layer == 0
        self.theta = nn.Parameter(geometric(base, self.planes)) if learned else None

    def stretch(self, length: int) -> float:
        """s of the table, 1 where nothing is scaled."""
        if not self.dynamic:
            return self.factor
        return 1 + self.factor * max(0.0, length / self.original_length - 1)

    def frequencies(self, device: torch.device, length: int = 0) -> Tensor:
        """Angle per position of each plane that turns, in a sequence of so many tokens.

        (D/2,) float32, or fewer with `rotary` below 1.
        """
        plain = geometric(self.base, self.planes, device) if self.theta is None else self.theta
        theta, stretch = plain.double(), self.stretch(length)
        if self.kind == "pi":
            theta = interpolate(theta, stretch)
        elif self.kind == "ntk":
            theta = enlarge_base(theta, stretch)
        elif self.kind in ("yarn", "llama3"):
            theta = interpolate(theta, stretch, self.kept(theta))
        elif self.kind == "longrope":
            short = self.short_factors and length <= self.original_length
            theta = theta / theta.new_tensor(self.short_factors if short else self.factors)
        theta = theta * (torch.arange(self.planes, device=device) < self.moving)
        return theta.to(plain.dtype)

    def kept(self, theta: Tensor) -> Tensor:
        """Share of each frequency that YaRN and llama3 keep."""
        ends = self.original_length, self.slow, self.fast
        if self.kind == "llama3" or self.ramp == "rotations":
            return ramp_by_rotations(theta, *ends)
        return ramp_by_index(theta, *ends, self.base, self.truncate)

    def gain(self, length: int) -> float:
        """What cos and sin are multiplied by in a sequence of so many tokens."""
        stretch = self.stretch(length)
        if self.dynamic and stretch == 1:
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.kind == "yarn":
            return 1 + 0.1 * math.log(stretch)
        if self.kind == "longrope":
            return math.sqrt(1 + math.log(stretch) / math.log(self.original_length))
        return 1.0

    def begin(self, x: Tensor, positions: Tensor) -> State:
        """cos and sin of the angles, each (B or 1, 1, T, D/2)."""
        length = positions.shape[1]
        theta, gain = self.frequencies(x.device, length).double(), self.gain(length)
        angles = positions.double()[:, None, :, None] * theta
        still = self.model.head_dim // 2 - self.planes
        cos, sin = gain * angles.cos(), gain * angles.sin()
        return F.pad(cos, (0, still), value=1.0).to(x.dtype), F.pad(sin, (0, still)).to(x.dtype)

    def rotate(
        self, q: Tensor, k: Tensor, state: State, features: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        cos, sin = state
        return rotate(q, cos, sin), rotate(k, cos, sin)

    def turn(self, state: State, angles: Tensor) -> State:
        """Of a state (cos, sin), or of one tensor [cos | sin] (..., D)."""
        single = isinstance(state, Tensor)
        turned = rotate(state if single else torch.cat(state, -1), angles.cos(), angles.sin())
        return turned if single else turned.chunk(2, dim=-1)
