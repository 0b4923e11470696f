"""Intervals drawn within a cell of a table: a bar, a mark for the mean, one for a reference."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """Places in per cent of a cell's width.

    Attributes:
        left, width: of the interval.
        middle: of the number itself.
        reference: of what it is compared with; None: out of sight, or there is nothing.
    """

    left: float
    width: float
    middle: float
    reference: float | None = None


def scale_of(numbers: Sequence[Iterable[float]], *, percent: bool) -> tuple[float, float]:
    """Return the smallest and the largest number that bars have to show."""
    known = [float(n) for part in numbers for n in part if math.isfinite(float(n))]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    if percent:
        low, high = max(low, 0.0), min(high, 100.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def interval_bar(
    scale: tuple[float, float],
    value: float,
    low: float,
    high: float,
    reference: float | None = None,
) -> Bar | None:
    """Return the bar of a number with its interval; None: there is no interval."""
    if not all(map(math.isfinite, (value, low, high))):
        return None
    left, right, middle = (_place(scale, number) for number in (low, high, value))
    mark = None
    if reference is not None and scale[0] <= reference <= scale[1]:
        mark = _place(scale, reference)
    return Bar(left, round(right - left, 1), middle, mark)


def _place(scale: tuple[float, float], number: float) -> float:
    share = (number - scale[0]) / (scale[1] - scale[0])
    return round(100 * min(1.0, max(0.0, share)), 1)
