"""Reading of the rows, items and learning curves of a run, from its folder or an export."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from pe_bench.errors import InputError
from pe_bench.results.item_files import read_items, read_labelled_items
from pe_bench.results.items import Items
from pe_bench.results.layout import CURVES, ITEMS, PACKED_ROWS, ROWS
from pe_bench.results.learning_curves import (
    OF_A_RUN,
    OF_AN_EXPORT,
    CurveKey,
    LearningCurve,
    read_curve_file,
)
from pe_bench.results.measurement import CSV_COLUMNS
from pe_bench.results.record import RunRecord
from pe_bench.results.row_files import read_lines
from pe_bench.results.store import RunKey, key_of

Value = TypeVar("Value")


def rows_path(record: RunRecord) -> Path:
    """Return the file with the rows of a run; in an export it is compressed."""
    assert record.folder is not None
    return record.folder / (PACKED_ROWS if record.exported else ROWS)


def read_run_lines(record: RunRecord) -> list[list[str]]:
    """Return the rows of a run as in its file, see `row_files.read_lines`."""
    path = rows_path(record)
    lines = _lines_by_run(path).get(key_of(record), []) if record.exported else read_lines(path)
    encoding, seed = CSV_COLUMNS.index("encoding"), CSV_COLUMNS.index("seed")
    own = (record.encoding, str(record.seed))
    if any((line[encoding], line[seed]) != own for line in lines):
        raise InputError(f"{path} has rows of another run than {record.name}: remove it")
    return lines


def read_run_rows(record: RunRecord) -> list[dict[str, str]]:
    """Return the rows of a run as dicts of the cells in its file, with the name of the run."""
    rows = []
    for line in read_run_lines(record):
        rows.append({**dict(zip(CSV_COLUMNS, line, strict=True)), "run": record.name})
    return rows


def _until_changed(read: Callable[[Path], Value]) -> Callable[[Path], Value]:
    """Cache what a function reads from a file, until the file changes."""

    @lru_cache(maxsize=8)
    def cached(path: Path, modification: tuple[int, ...]) -> Value:
        return read(path)

    def read_if_changed(path: Path) -> Value:
        return cached(path, _modification(path))

    return read_if_changed


def _modification(path: Path) -> tuple[int, ...]:
    """Return a key of a file and its last change."""
    if not path.exists():
        return ()
    about = path.stat()
    return about.st_dev, about.st_ino, about.st_mtime_ns


@_until_changed
def _lines_by_run(path: Path) -> dict[RunKey, list[list[str]]]:
    """Return the lines of an export by run."""
    task, encoding, run = (CSV_COLUMNS.index(name) for name in ("task", "encoding", "run"))
    found: dict[RunKey, list[list[str]]] = {}
    for line in read_lines(path):
        found.setdefault((line[task], line[encoding], line[run]), []).append(line)
    return found


def read_run_items(record: RunRecord) -> list[Items]:
    """Return the scores of single items of a run; empty if the run has no such file.

    Raises:
        InputError: the file cannot be read.
    """
    assert record.folder is not None
    path = record.folder / ITEMS
    if not path.exists():
        return []
    if not record.exported:
        return read_items(path)
    return _items_by_run(path).get(key_of(record), [])


@_until_changed
def _items_by_run(path: Path) -> dict[RunKey, list[Items]]:
    """Return the items of an export by run."""
    found: dict[RunKey, list[Items]] = {}
    for items, labels in read_labelled_items(path, OF_AN_EXPORT[:3]):
        key = (labels["task"], labels["encoding"], labels["run"])
        found.setdefault(key, []).append(items)
    return found


def read_run_curves(record: RunRecord) -> dict[CurveKey, LearningCurve]:
    """Return the learning curves of a run, with keys as in `OF_A_RUN`; empty if it has no file.

    Raises:
        InputError: the file cannot be read.
    """
    assert record.folder is not None
    path = record.folder / CURVES
    if not path.exists():
        return {}
    if not record.exported:
        return read_curve_file(path, OF_A_RUN)
    return _curves_by_run(path).get(key_of(record), {})


@_until_changed
def _curves_by_run(path: Path) -> dict[RunKey, dict[CurveKey, LearningCurve]]:
    """Return the learning curves of an export by run."""
    found: dict[RunKey, dict[CurveKey, LearningCurve]] = {}
    for (task, encoding, run, *of_run), curve in read_curve_file(path, OF_AN_EXPORT).items():
        found.setdefault((task, encoding, run), {})[tuple(of_run)] = curve
    return found
