"""The points of an evaluation over lengths."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from pe_bench.errors import InputError
from pe_bench.option_table import is_whole
from pe_bench.results.splits import FAR, ID, OOD
from pe_bench.system.text import FORBIDDEN

SPLITS = (ID, OOD, FAR)

FAR_FACTORS = (16, 32)
"""Lengths of the split FAR, as multiples of the longest trained length."""


class EvalPoint(NamedTuple):
    """One point of an evaluation. All of its items have the same weight.

    Attributes:
        length: value on the task's axis `length`.
        second_axis: value on the task's second axis; empty without a second axis.
        split: ID if training has such items, OOD if it does not, FAR if the items are so long that
            encodings with a limited number of positions skip them; empty: in none of the means.
        groups: names of further means that include the point.
        curve: name of a curve over `length`. Its value at a length is the mean over its points of
            this length. Empty for no curve; a subset without a second axis is always a curve.
    """

    length: int
    second_axis: str = ""
    split: str = ""
    groups: tuple[str, ...] = ()
    curve: str = ""


def check_points(points: Sequence[EvalPoint], subset: str) -> None:
    """Check the points of a subset.

    Raises:
        InputError: these are not `EvalPoint`s with whole lengths, two points have the same length
            and second axis, a second axis contains control characters, or groups are not a tuple
            of names that no other mean has.
    """
    if not isinstance(points, Collection):
        raise InputError(f"eval_points must return a list of EvalPoints, not {points!r:.60}")
    for point in points:
        if not isinstance(point, EvalPoint):
            raise InputError(f"eval_points must return a list of EvalPoints, not of {point!r:.60}")
        if not is_whole(point.length) or point.length < 0:
            raise InputError(
                f"an evaluation point of {subset} has the length {point.length!r}, which must be a "
                "whole number of at least 0"
            )
        _check_groups(point, subset)
    counts = Counter((point.length, point.second_axis) for point in points)
    for (length, second_axis), count in counts.items():
        what = f"the evaluation point {subset}, {length}, {second_axis!r}"
        if not isinstance(second_axis, str):
            raise InputError(
                f"{what} has a second axis that is not a string: write '{second_axis}'"
            )
        if count > 1:
            raise InputError(f"{what} occurs {count} times: its items would count several times")
        if FORBIDDEN.search(second_axis) or "\n" in second_axis:
            raise InputError(f"{what} has a control character: give its second axis another value")


def _check_groups(point: EvalPoint, subset: str) -> None:
    """Check that the groups of a point are a tuple of names, each once, and not of its split."""
    if isinstance(point.groups, str):
        raise InputError(
            f"{subset} has a point with groups='{point.groups}', which is one group for each "
            f"letter: write groups=('{point.groups}',)"
        )
    for group, count in Counter(point.groups).items():
        if group in SPLITS or group in [f"{subset}-{split}" for split in SPLITS]:
            raise InputError(
                f"{subset} has a point in the group '{group}', the name of the mean of a split: "
                "name the group differently and give the point its `split`"
            )
        if count > 1:
            raise InputError(f"{subset} has a point {count} times in the group '{group}'")


def scale_lengths(trained: int, factors: Sequence[float]) -> list[int]:
    """Return evaluated lengths in ascending order.

    They are multiples of the longest trained length, and the next longer one.

    Args:
        trained: the longest trained length.
        factors: the multiples.
    """
    lengths = {int(factor * trained) for factor in factors}
    return sorted({*lengths, trained + 1})


def parse_lengths(text: str, option: str) -> list[int]:
    """Return the lengths in an option such as `2048+4096`, in ascending order.

    Args:
        text: the value of the option.
        option: its name, for messages.

    Raises:
        InputError: a length is not a positive integer, or is given twice.
    """
    parts = text.split("+")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise InputError(
            f"{option} must be numbers of tokens joined by +, such as 2048+4096, not {text}"
        )
    lengths = sorted({int(part) for part in parts})
    if len(lengths) < len(parts):
        raise InputError(f"{option} names a length twice: {text}")
    return lengths
