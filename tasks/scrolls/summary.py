"""The SCROLLS score: means over subsets, and over lengths of built-in documents."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pe_bench.api import ID, OOD, Measurement, RowKey, Status, mean_of
from pe_bench.tasks.scrolls.subsets import SUBSETS


def find_groups(subset: str, length: int, trained: int | None) -> tuple[RowKey, ...]:
    """Return the summary rows that include the point of a subset and length.

    Args:
        subset: name of the subset.
        length: length of the documents.
        trained: training length of built-in documents; None for real data.
    """
    if trained is None:
        return (RowKey("all", "score"),)
    here = RowKey("all", "score", length)
    if length == trained:
        return (here, RowKey(ID, "score"))
    return (here, RowKey(OOD, "score"), RowKey(f"{subset}-{OOD}"))


def summarize(measured: Iterable[Measurement]) -> list[Measurement]:
    """Return the SCROLLS score; it is partial if some of the seven subsets are missing."""
    rows = _main_rows(measured)
    if not rows:
        return []
    return [replace(_score("all", rows, _status(rows)), n=len(rows))]


def summarize_lengths(
    measured: Iterable[Measurement], lengths: Sequence[int], gate: float
) -> list[Measurement]:
    """Return the scores at each length, in and out of distribution, and of each subset.

    Args:
        measured: rows of built-in documents.
        lengths: lengths of the documents; the first is the training length.
        gate: score at the training length from which scores out of distribution are ranked.
    """
    main = _main_rows(measured)
    if not main:
        return []
    whole = _status(main)
    rows = []
    for length in lengths:
        here = [row for row in main if row.length == length]
        rows.append(replace(_score("all", here, whole), length=length))
    trained = [row for row in main if row.length == lengths[0]]
    beyond = [row for row in main if row.length != lengths[0]]
    inside = _score(ID, trained, whole)
    rows.append(inside)
    failed = whole == "ranked" and inside.value < gate
    rows.append(_score(OOD, beyond, "not_learned" if failed else whole))
    for subset in dict.fromkeys(row.subset for row in beyond):
        own = [row for row in beyond if row.subset == subset]
        rows.append(mean_of(f"{subset}-{OOD}", own))
    return rows


def _main_rows(measured: Iterable[Measurement]) -> list[Measurement]:
    """Return the rows of the metrics whose mean is the score."""
    return [row for row in measured if row.metric == SUBSETS[row.subset].metric]


def _status(rows: Sequence[Measurement]) -> Status:
    subsets = {row.subset for row in rows}
    return "ranked" if len(subsets) == len(SUBSETS) else "partial"


def _score(name: str, rows: Sequence[Measurement], status: Status) -> Measurement:
    """Return the mean over subsets and lengths as a SCROLLS score."""
    return replace(mean_of(name, rows, status), metric="score")
