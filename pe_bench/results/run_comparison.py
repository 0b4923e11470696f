"""Comparison of the rows of two runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pe_bench.results.record import RunRecord
from pe_bench.results.store import read_run_rows

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
