"""Comparison of the results of two runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pe_bench.results.items import Items
from pe_bench.results.record import RunRecord
from pe_bench.results.rounding import shorten
from pe_bench.results.run_data import read_run_items, read_run_rows

NUMBERS = ("value", "n", "stderr", "ci_low", "ci_high", "status")
"""Columns of the results of a row."""

Key = tuple[str, str, str, str]
"""Subset, metric, length and second axis of a row, which identify it within a run."""

Row = Mapping[str, str]
"""The cells of a row, by column."""


@dataclass(frozen=True)
class RowDifference:
    """Rows of two runs that have the same key, but differ.

    Attributes:
        key: the key.
        first: the row of the first run; None: it has none.
        second: the row of the second run; None: it has none.
    """

    key: Key
    first: Row | None
    second: Row | None


def row_key(row: Row) -> Key:
    """Return the key of a row."""
    return row["subset"], row["metric"], row["length"], row["second_axis"]


def rows_by_key(record: RunRecord) -> dict[Key, Row]:
    """Return the rows of a run by their keys.

    Raises:
        InputError: they cannot be read.
    """
    return {row_key(row): row for row in read_run_rows(record)}


def differing_rows(
    first: Mapping[Key, Row], second: Mapping[Key, Row], columns: Sequence[str] = NUMBERS
) -> list[RowDifference]:
    """Return the rows that differ in some column, or that only one of two runs has.

    Args:
        first, second: rows of the two runs, see `rows_by_key`.
        columns: columns to compare.
    """
    found = []
    for key in dict.fromkeys([*first, *second]):
        one, other = first.get(key), second.get(key)
        if one is None or other is None or any(one[name] != other[name] for name in columns):
            found.append(RowDifference(key, one, other))
    return found


def describe_difference(first: RunRecord, second: RunRecord) -> str:
    """Describe how the results of two runs differ, as the end of a sentence; empty: not at all."""
    first_rows, second_rows = rows_by_key(first), rows_by_key(second)
    changed = []
    lacking = 0
    for row in differing_rows(first_rows, second_rows):
        if row.first is None or row.second is None:
            lacking += 1
        else:
            changed.append((row.key, row.first["value"], row.second["value"]))
    if lacking:
        count = len(first_rows.keys() | second_rows.keys())
        return f"only one of them has {lacking} of {count} rows"
    if changed:
        (subset, metric, length, second_axis), *values = changed[0]
        name = " ".join(filter(None, (subset, length, second_axis, metric)))
        return (
            f"{len(changed)} of {len(first_rows)} rows differ, the first is {name}: "
            f"{' and '.join(values)}"
        )
    items = _rounded_items(first), _rounded_items(second)
    return "scores of items differ" if all(items) and items[0] != items[1] else ""


def _rounded_items(record: RunRecord) -> list[Items]:
    """Return the scores of a run's items as in an export, so that a run equals its export."""
    items = read_run_items(record)
    return [replace(point, values=shorten(point.values)) for point in items]
