"""Intervals in table cells: a bar, a mark for the mean, and a mark for the best baseline."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """Positions in per cent of a cell's width.

    Attributes:
        left, width: left end and width of the interval.
        middle: position of the number.
        baseline: position of the best baseline; None if it is missing or outside the cell.
    """

    left: float
    width: float
    middle: float
    baseline: float | None = None


def scale_of(numbers: Sequence[Iterable[float]], *, percent: bool) -> tuple[float, float]:
    """Return the range of numbers that bars have to show."""
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
    baseline: float | None = None,
) -> Bar | None:
    """Return the bar of a number with its interval; None without an interval."""
    if not all(map(math.isfinite, (value, low, high))):
        return None
    left, right, middle = (_percent_of(scale, number) for number in (low, high, value))
    mark = None
    if baseline is not None and scale[0] <= baseline <= scale[1]:
        mark = _percent_of(scale, baseline)
    return Bar(left, round(right - left, 1), middle, mark)


def _percent_of(scale: tuple[float, float], number: float) -> float:
    share = (number - scale[0]) / (scale[1] - scale[0])
    return round(100 * min(1.0, max(0.0, share)), 1)
