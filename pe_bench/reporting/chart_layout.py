"""Limits of axes, ticks, and positions of names of points: pure functions of numbers."""

import math
from collections.abc import Mapping, Sequence

Limits = tuple[float, float]
Box = tuple[float, float, float, float]  # left, bottom, right, top

CHARACTERS = 46  # of tick labels along an axis
MOST_TICKS = 8  # labels that fit on an axis of lengths
TICK_WIDTH = 14  # characters per line of a tick label of a task's part
MOST_LOG_TICKS = 6  # on a logarithmic axis
MOST_EVEN_TICKS = 5  # on an axis of a heatmap
LEAST_PERCENT = 40.0  # smallest range of an axis of percentages: small differences look small
LEAST_LOGITS = 0.2  # smallest range of an axis of a gallery: a constant looks constant

# Smallest size of a cost panel on the page, in pixels, reached on a screen 390 pixels wide. Names
# have the same size in larger panels.
PANEL = (268.0, 182.0)
CHARACTER = 6.3
NAME_HEIGHT = 12.0
MARKER = 12.0
# Places of a name: x and y distance from its point, and the text's start in units of its width.
SIDES: dict[str, tuple[float, float, float]] = {
    "right": (9.0, 0.0, 0.0),
    "left": (-9.0, 0.0, -1.0),
    "above": (0.0, 12.0, -0.5),
    "below": (0.0, -13.0, -0.5),
}


def pad(low: float, high: float, *, log: bool = False, by: float = 0.04) -> Limits:
    """Return limits widened on both sides by the fraction `by` of their distance."""
    if low == high:
        return (low / 2, high * 2) if log else (low - 1, high + 1)
    if log:
        factor = (high / low) ** by
        return low / factor, high * factor
    room = (high - low) * by
    return low - room, high + room


def percent_limits(low: float, high: float) -> Limits:
    """Return limits for percentages: multiples of ten, at least `LEAST_PERCENT` apart."""
    low = math.floor(low / 10) * 10.0
    high = math.ceil(high / 10) * 10.0
    if high - low < LEAST_PERCENT:
        high = max(high, min(100.0, low + LEAST_PERCENT))
        low = min(low, max(0.0, high - LEAST_PERCENT))
    return pad(low, high, by=0.03)  # room for markers at the ends


def place_in(limits: Limits, value: float, *, log: bool = False) -> float:
    """Return the position of a value between limits, from 0 to 1."""
    if log:
        limits = (math.log(limits[0]), math.log(limits[1]))
        value = math.log(value)
    return (value - limits[0]) / (limits[1] - limits[0])


def keep_apart(
    values: Sequence[float],
    *,
    log: bool,
    most: int = MOST_TICKS,
    characters: float = CHARACTERS,
) -> list[float]:
    """Select values whose tick labels do not overlap. The last value is always included.

    Args:
        values: candidates for ticks, ascending; positive if `log`.
        log: whether the axis is logarithmic.
        most: maximum number of labels.
        characters: number of characters of tick labels that fit between the first and last value.
    """
    xs = [math.log(value) if log else value for value in values]
    extent = xs[-1] - xs[0]
    least = max(extent / most, 0.05 if log else 0.0)
    widths = [len(f"{value:,.0f}") * extent / characters for value in values]
    kept: list[int] = []
    for index in reversed(range(len(values))):
        last = kept[-1] if kept else index
        room = (widths[last] + widths[index]) / 2 + extent / characters
        if not kept or xs[last] - xs[index] >= max(least, room):
            kept.append(index)
    return [values[index] for index in reversed(kept)]


def even_ticks(values: Sequence[float]) -> list[tuple[float, str]]:
    """Return positions and labels of a few evenly spaced cells, including the last one."""
    last = len(values) - 1
    least = max(1, math.ceil(last / (MOST_EVEN_TICKS - 1)))
    even = [step for step in range(least, 2 * least + 1) if last % step == 0]  # also hits the first
    step = even[0] if even else least
    chosen = range(last % step, last + 1, step)
    return [(index + 0.5, f"{values[index]:,g}") for index in chosen]


def octaves(last: float) -> list[float]:
    """Return ticks of an axis of distances: 0, then every second power of two."""
    powers = [4.0**exponent for exponent in range(1, 20)]
    return [0.0, 1.0, *(power for power in powers if power <= last)]


def log_ticks(limits: Limits) -> list[float]:
    """Return a few powers of ten within limits of at least a factor of ten; maybe 2 and 5 times."""
    low, high = (math.log10(end) for end in limits)
    exponents = range(math.ceil(low), math.floor(high) + 1)
    if len(exponents) < 3:
        leading = range(math.floor(low), math.floor(high) + 1)
        values = [float(f"{digit}e{exponent}") for exponent in leading for digit in (1, 2, 5)]
        return [value for value in values if limits[0] <= value <= limits[1]]
    step = math.ceil(len(exponents) / MOST_LOG_TICKS)
    return [float(f"1e{exponent}") for exponent in exponents[::step]]


def linear_ticks(limits: Limits) -> list[float]:
    """Return about five multiples of 1, 2 or 5 times a power of ten within limits."""
    exponent = math.floor(math.log10((limits[1] - limits[0]) / 4))
    steps = [float(f"{digit}e{exponent}") for digit in (1, 2, 5, 10)]
    step = next(step for step in reversed(steps) if 4 * step <= limits[1] - limits[0])
    numbers = range(math.ceil(limits[0] / step), math.floor(limits[1] / step) + 1)
    return [float(f"{number * step:.12g}") for number in numbers]


def place_names(
    points: Mapping[str, tuple[float, float]], x_limits: Limits, y_limits: Limits
) -> dict[str, str]:
    """Return for each point the side (a key of `SIDES`) on which its name covers nothing.

    A point without a free side is left out.

    Args:
        points: x and y by name.
        x_limits, y_limits: limits of the axes, which are linear.
    """
    width, height = PANEL
    centres: dict[str, tuple[float, float]] = {}
    taken: list[Box] = []
    for name, (x, y) in points.items():
        across = place_in(x_limits, x) * width
        up = place_in(y_limits, y) * height
        centres[name] = (across, up)
        half = MARKER / 2
        taken.append((across - half, up - half, across + half, up + half))
    found: dict[str, str] = {}
    for name, (across, up) in centres.items():
        length = len(name) * CHARACTER
        for side, (right, higher, begin) in SIDES.items():
            left = across + right + begin * length
            middle = up + higher
            box = (left, middle - NAME_HEIGHT / 2, left + length, middle + NAME_HEIGHT / 2)
            inside = box[0] >= 0 and box[2] <= width
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                found[name] = side
                break
    return found


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
