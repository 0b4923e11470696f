"""Scalings of RoPE's frequencies for sequences longer than the original ones.

A scaling is a frozen dataclass. Its fields that have a default are options of RoPE, written
`rope:scaling=NAME,OPTION=VALUE`; a new scaling is a class and a line in `SCALINGS` of choice.py.

s is the scale of the sequences, L0 their original length, theta_m the frequency of plane m: the
angle in radians that it turns by per position.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pe_bench.api import InputError

LEAST = {"factor": 1, "original_length": 2, "attention_factor": 0}


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """No scaling: frequencies do not change.

    Attributes:
        base: base of the frequencies.
        planes: number of frequencies.
        train_length: tokens of a training sequence.
    """

    base: float
    planes: int
    train_length: int
    needs_factor: ClassVar[bool] = False
    min_planes: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name, None)
            if value is not None and not least <= value < math.inf:
                raise InputError(f"{name} must be at least {least}, not {value}")

    @property
    def dynamic(self) -> bool:
        """Whether frequencies depend on the number of tokens."""
        return False

    def frequencies(self, theta: Tensor, length: int) -> Tensor:
        """Return the scaled theta, (planes,) float64, in a sequence of `length` tokens."""
        return theta

    def gain(self, length: int) -> float:
        """Return the factor of cos and sin in a sequence of `length` tokens."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class PositionInterpolation(Scaling):
    """theta / s (Chen et al. 2023, arXiv 2306.15595).

    Attributes:
        factor: s.
    """

    factor: float | None = None
    needs_factor = True

    def frequencies(self, theta: Tensor, length: int) -> Tensor:
        return interpolate(theta, self.factor or 1.0)


@dataclass(frozen=True, kw_only=True)
class NTK(Scaling):
    """theta for base s^(D/(D-2)) (bloc97 2023, Reddit).

    Attributes:
        factor: s.
    """

    factor: float | None = None
    needs_factor = True
    min_planes = 2

    def frequencies(self, theta: Tensor, length: int) -> Tensor:
        return enlarge_base(theta, self.factor or 1.0)


@dataclass(frozen=True, kw_only=True)
class FromLength(Scaling):
    """Base class of scalings with an original length.

    Attributes:
        original_length: L0; None is the training length.
    """

    original_length: int | None = None

    @property
    def l0(self) -> int:
        return self.original_length or self.train_length

    def excess(self, length: int) -> float:
        """Return S / L0 - 1 of a sequence of `length` tokens, 0 for short ones."""
        return max(0.0, length / self.l0 - 1)


@dataclass(frozen=True, kw_only=True)
class DynamicPI(FromLength):
    """Position interpolation with s = S / L0, S the number of tokens."""

    dynamic = True

    def frequencies(self, theta: Tensor, length: int) -> Tensor:
        return interpolate(theta, 1 + self.excess(length))


@dataclass(frozen=True, kw_only=True)
class DynamicNTK(FromLength):
    """NTK with s = factor S / L0 - (factor - 1), S the number of tokens.

    Attributes:
        factor: None is 1.
    """

    factor: float | None = None
    dynamic = True
    min_planes = 2

    def frequencies(self, theta: Tensor, length: int) -> Tensor:
        return enlarge_base(theta, 1 + (self.factor or 1.0) * self.excess(length))


@dataclass(frozen=True, kw_only=True)
class Blend(FromLength):
    """Base class of scalings by parts: fast planes keep theta, slow planes have theta / s.

    Attributes:
        beta_fast: planes with at least `beta_fast` turns within L0 are fast; None is 32 for YaRN
            and 4 for llama3, which calls it high_freq_factor.
        beta_slow: planes with at most `beta_slow` turns are slow; low_freq_factor of llama3.
    """

    beta_fast: float | None = None
    beta_slow: float = 1.0
    default_fast: ClassVar[float] = 32.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.beta_slow < self.fast < math.inf:
            raise InputError(
                f"beta_slow={self.beta_slow} must be above 0 and below beta_fast={self.fast}"
            )

    @property
    def fast(self) -> float:
        return self.default_fast if self.beta_fast is None else self.beta_fast


@dataclass(frozen=True, kw_only=True)
class Llama3(Blend):
    """By parts, linear in the number of turns in between (code of Llama 3.1).

    Attributes:
        factor: s; None is 8 as in Llama 3.1.
    """

    factor: float | None = None
    default_fast = 4.0

    def frequencies(self, theta: Tensor, length: int) -> Tensor:
        kept = ramp_by_rotations(theta, self.l0, self.beta_slow, self.fast)
        return interpolate(theta, self.factor or 8.0, kept)


@dataclass(frozen=True, kw_only=True)
class YaRNAtAnyScale(Blend):
    """Base class of YaRN with a fixed or dynamic s.

    Attributes:
        truncate: whether the ramp by index starts and ends at whole indices, as in the authors'
            code.
        ramp: between slow and fast, linear in the "index" m, as in the authors' code, or in the
            number of "rotations" within L0, as in their text and in TAPE's ablation adayarn.
        attention_factor: None is 1 + 0.1 ln s.
    """

    truncate: bool = True
    ramp: Literal["index", "rotations"] = "index"
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.truncate and self.ramp == "rotations":
            raise InputError("truncate has no effect with ramp=rotations: leave it out")

    def scale(self, length: int) -> float:
        """Return s in a sequence of `length` tokens."""
        raise NotImplementedError

    def frequencies(self, theta: Tensor, length: int) -> Tensor:
        ends = self.l0, self.beta_slow, self.fast
        if self.ramp == "rotations":
            kept = ramp_by_rotations(theta, *ends)
        else:
            kept = ramp_by_index(theta, *ends, self.base, self.truncate)
        return interpolate(theta, self.scale(length), kept)

    def gain(self, length: int) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return 1 + 0.1 * math.log(self.scale(length))


@dataclass(frozen=True, kw_only=True)
class YaRN(YaRNAtAnyScale):
    """By parts, with an attention factor (Peng et al. 2023, arXiv 2309.00071).

    Attributes:
        factor: s.
    """

    factor: float | None = None
    needs_factor = True

    def scale(self, length: int) -> float:
        return self.factor or 1.0


@dataclass(frozen=True, kw_only=True)
class DynamicYaRN(YaRNAtAnyScale):
    """YaRN with s = S / L0, S the number of tokens."""

    dynamic = True

    def scale(self, length: int) -> float:
        return 1 + self.excess(length)

    def gain(self, length: int) -> float:
        return 1.0 if self.excess(length) == 0 else super().gain(length)


@dataclass(frozen=True, kw_only=True)
class LongRoPE(FromLength):
    """theta_m divided by one factor for each m (Ding et al. 2024, arXiv 2402.13753).

    Attributes:
        factor: s, which decides the attention factor.
        attention_factor: None is sqrt(1 + ln s / ln L0).
        factors: one per m, numbers separated by ';'.
        short_factors: factors for up to L0 tokens; None: `factors` at all lengths.
    """

    factor: float | None = None
    attention_factor: float | None = None
    factors: str | None = None
    short_factors: str | None = None
    needs_factor = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.long, self.short  # raises if they cannot be read

    @cached_property
    def long(self) -> list[float]:
        """Factors for sequences beyond L0."""
        return read_factors(self.factors or "", self.planes)

    @cached_property
    def short(self) -> list[float]:
        """Factors for up to L0 tokens; empty if `long` serves all lengths."""
        return read_factors(self.short_factors, self.planes) if self.short_factors else []

    @property
    def dynamic(self) -> bool:
        return bool(self.short)

    def frequencies(self, theta: Tensor, length: int) -> Tensor:
        factors = self.short if self.short and length <= self.l0 else self.long
        return theta / theta.new_tensor(factors)

    def gain(self, length: int) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor or 1.0) / math.log(self.l0))


def interpolate(theta: Tensor, factor: float, kept: Tensor | float = 0.0) -> Tensor:
    """Divide frequencies by the factor, except for the fraction to keep of each."""
    return theta * (kept + (1 - kept) / factor)


def enlarge_base(theta: Tensor, factor: float) -> Tensor:
    """Change the base to base factor^(D/(D-2)): the slowest is divided by the factor."""
    steps = torch.arange(len(theta), device=theta.device).double() / (len(theta) - 1)
    return theta * factor**-steps


def ramp_by_rotations(theta: Tensor, length: int, slow: float, fast: float) -> Tensor:
    """Return 1 for planes with at least `fast` turns within the length, 0 for at most `slow`."""
    return ((length * theta / (2 * math.pi) - slow) / (fast - slow)).clamp(0, 1)


def ramp_by_index(
    theta: Tensor, length: int, slow: float, fast: float, base: float, truncate: bool
) -> Tensor:
    """Return the same ends, but linear in m between the planes of unscaled frequencies."""
    planes = len(theta)
    start = planes * math.log(length / (2 * math.pi * fast)) / math.log(base)
    end = planes * math.log(length / (2 * math.pi * slow)) / math.log(base)
    if truncate:
        start = math.floor(start)
        end = math.ceil(end)
    start = max(start, 0)
    end = max(min(end, 2 * planes - 1), start + 0.001)
    return 1 - ((torch.arange(planes, device=theta.device) - start) / (end - start)).clamp(0, 1)


def read_factors(text: str, planes: int) -> list[float]:
    """Return one number per plane, from a text with ';' as separator.

    Files are not accepted: a spec identifies a run, and would not change with a file's content.

    Raises:
        InputError: anything but `planes` positive numbers.
    """
    try:
        numbers = [float(number) for number in text.split(";")]
    except ValueError:
        numbers = []
    if len(numbers) != planes or not all(0 < number < math.inf for number in numbers):
        raise InputError(
            f"the factors of longrope must be {planes} positive numbers separated by ';', "
            f"not '{text}'"
        )
    return numbers
