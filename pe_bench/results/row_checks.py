"""Checks of the numbers that a task returns, before they are stored."""

import math
from collections.abc import Mapping, Sequence
from typing import get_args

from pe_bench.errors import InputError
from pe_bench.option_table import is_number, is_whole
from pe_bench.results.measurement import Measurement, Status
from pe_bench.results.metrics import Metric, find_metric
from pe_bench.system.schema import is_line

PERCENT_TOLERANCE = 1e-6
"""How far a percentage may be outside 0 to 100."""


def check_rows(rows: Sequence[Measurement], metrics: Mapping[str, Metric]) -> None:
    """Check the rows that `evaluate` or `summarize` of a task returned.

    Args:
        rows: the rows.
        metrics: the task's own metrics.

    Raises:
        InputError: a value is not a number, is an impossible percentage or lies outside of its
            interval, a field has a wrong type, or two rows have the same key.
    """
    keys = set()
    for row in rows:
        if not isinstance(row, Measurement):
            raise InputError(f"a row must be a Measurement, not {row!r:.100}")
        name = f"the row of {row.subset!r}, {row.metric!r}"
        if row.length is not None:
            name += f", length {row.length}"
        wrong = _find_wrong_field(row)
        if wrong:
            raise InputError(f"{name} has {wrong}")
        metric = find_metric(row.metric, metrics)
        is_percentage = metric.is_percent and metric.higher_is_better
        if is_percentage and not -PERCENT_TOLERANCE <= row.value <= 100 + PERCENT_TOLERANCE:
            raise InputError(f"{name} has {row.value:g} %, but a score is 0 to 100 %")
        if not _is_in(row):
            raise InputError(
                f"{name} has {row.value:g}, outside of its interval {row.ci_low:g} to "
                f"{row.ci_high:g}: give `Items.row` or `ratio` the unit of the task's own metric"
            )
        key = (row.subset, row.metric, row.length, row.second_axis)
        if key in keys:
            raise InputError(f"{name} occurs twice: give it one number")
        keys.add(key)


def check_baselines(
    found: Mapping[str, Sequence[Measurement]], metrics: Mapping[str, Metric]
) -> None:
    """Check what `baselines` of a task returned.

    Args:
        found: rows of each baseline by name.
        metrics: the task's own metrics.

    Raises:
        InputError: it is not a mapping of names to lists, or see `check_rows`.
    """
    if not isinstance(found, Mapping):
        raise InputError(f"baselines must return a dict of rows by name, not {found!r:.60}")
    for name, rows in found.items():
        if not is_line(name):
            raise InputError(f"the name of a baseline must be one line of text, not {name!r:.60}")
        if not isinstance(rows, Sequence):
            raise InputError(f"the baseline '{name}' must be a list of rows, not {rows!r:.60}")
        try:
            check_rows(rows, metrics)
        except InputError as error:
            raise InputError(f"the baseline '{name}': {error}") from None


def _find_wrong_field(row: Measurement) -> str:
    """Return the first wrong field of a row with the rule that it breaks; empty: none."""
    for name in ("subset", "metric", "second_axis"):
        text = getattr(row, name)
        if not is_line(text):
            return f"the {name} {text!r}, which must be one line without control characters"
    if not is_number(row.value) or math.isnan(row.value):  # a perplexity can overflow
        return f"the value {row.value!r}, which must be a number"
    if not is_whole(row.n) or row.n < 0:
        return f"n = {row.n!r}, which must be a whole number of items"
    if row.length is not None and (not is_whole(row.length) or row.length < 0):
        return f"the length {row.length!r}, which must be a whole number of at least 0, or None"
    for name in ("stderr", "ci_low", "ci_high"):
        if not is_number(getattr(row, name)):
            return f"{name} = {getattr(row, name)!r}, which must be a number"
    if row.status not in get_args(Status):
        return f"the status {row.status!r}, which must be one of {', '.join(get_args(Status))}"
    return ""


def _is_in(row: Measurement) -> bool:
    """Return whether the value is in the interval, up to rounding; an end may be NaN: unknown."""
    room = PERCENT_TOLERANCE * max(1.0, abs(row.value))
    return not (row.ci_low > row.value + room or row.ci_high < row.value - room)
