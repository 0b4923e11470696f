"""Selections of RoPE's frequencies that do not depend on the length of a sequence.

These are scalings too (see scalings.py), with a fixed theta for each plane. They avoid planes that
do not complete a turn within the training length.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pe_bench.api import InputError
from pe_bench.encodings.rope.scalings import FromLength, Scaling


@dataclass(frozen=True, kw_only=True)
class Turning(FromLength):
    """Base class of selections by the number of turns within L0.

    Attributes:
        turns: minimum number of turns within L0 of a rotated plane; the papers' value of 1 could
            not be verified.
    """

    turns: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self.l0 / (2 * math.pi)
        if not 0 < self.turns < most:
            raise InputError(
                f"turns must be above 0 and below {most:.4g}, those of the fastest plane within "
                f"{self.l0} tokens, not {self.turns}"
            )

    @property
    def slowest(self) -> float:
        """Frequency of a plane with exactly `turns` turns, in rad per position."""
        return 2 * math.pi * self.turns / self.l0


@dataclass(frozen=True, kw_only=True)
class HoPE(Turning):
    """0 for planes with few turns within L0 (Chen et al. 2024, arXiv 2410.21216).

    The limit of one turn is from a public implementation by others.
    """

    def frequencies(self, theta: Tensor, length: int) -> Tensor:
        return theta * (theta >= self.slowest)


@dataclass(frozen=True, kw_only=True)
class Clipped(Scaling):
    """The slowest planes decrease to 0 (clipped RoPE, CoPE; Li et al. 2026, arXiv 2602.05258).

    theta_m (1 + cos(pi t / (n - 1))) / 2 for the last n planes, t = 0, 1, ..., n - 1.

    Attributes:
        clipped: n; None is 20 of 64 planes, as published, rounded, and at least 2.
        hard: whether all n are 0 instead.
    """

    clipped: int | None = None
    hard: bool = False
    min_planes = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        least = 1 if self.hard else 2
        if self.clipped is not None and not least <= self.clipped < self.planes:
            raise InputError(
                f"clipped must be from {least} to {self.planes - 1}, fewer than the {self.planes} "
                f"planes, not {self.clipped}"
            )

    def frequencies(self, theta: Tensor, length: int) -> Tensor:
        count = self.clipped or max(2, round(self.planes * 20 / 64))
        angles = torch.linspace(0, math.pi, count, dtype=theta.dtype, device=theta.device)
        kept = torch.ones_like(theta)
        kept[-count:] = 0 if self.hard else (1 + angles.cos()) / 2
        return theta * kept


@dataclass(frozen=True, kw_only=True)
class RoPEID(Turning):
    """Half of the planes, with full turns in training (Wertheimer et al. 2026, ICLR).

    theta_m = slowest^(m / (M - 1)) for the first M planes, which are the first and third quarter of
    the channels, and 0 for the others (arXiv 2603.18017). The reviews of the paper describe half of
    the channels, these quarters, and full turns within training. A frequency of 1 for the fastest
    plane, as in RoPE, could not be verified. The temperature of the paper is left out, because it
    could not be verified either.

    Attributes:
        share: M / (D/2).
    """

    share: float = 0.5
    min_planes = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1 or self.count < 2:
            raise InputError(
                f"share must be at most 1 and leave two of {self.planes} planes, not {self.share}"
            )

    @property
    def count(self) -> int:
        """M."""
        return round(self.share * self.planes)

    def frequencies(self, theta: Tensor, length: int) -> Tensor:
        m = torch.arange(self.planes, dtype=theta.dtype, device=theta.device)
        faster = self.slowest ** (m / (self.count - 1)) * self.base ** (m / self.planes)
        return theta * faster * (m < self.count)


def whole_periods(theta: Tensor) -> Tensor:
    """Return frequencies whose periods are whole numbers of tokens; 0 stays 0."""
    return 2 * math.pi / (2 * math.pi / theta).round()
