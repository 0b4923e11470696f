"""Reading of the runs of results folders, with reports of everything that cannot be read.

Every command that shows or exports numbers reads them with `reading`, so that no command leaves out
a run without a message. The functions of `store` and `run_data` raise an error instead.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pe_bench.errors import InputError, InputErrors
from pe_bench.results.record import RunRecord
from pe_bench.results.row_files import read_lines
from pe_bench.results.run_data import read_run_lines
from pe_bench.results.store import baselines_of, read_records
from pe_bench.system.console import warn
from pe_bench.system.files import LARGEST
from pe_bench.system.sealed import DamagedError, read_sealed

Source = TypeVar("Source")
Value = TypeVar("Value")

_problems: ContextVar[list[str] | None] = ContextVar("_problems", default=None)
"""Sentences that `reading` will report."""


@contextmanager
def reading(*folders: Path) -> Iterator[list[RunRecord]]:
    """Yield the records of all runs in results folders, including damaged runs.

    The caller uses all readable runs within the context. If anything in the folders could not be
    read, the context then ends with an error. The command line prints its sentences and exits with
    code 2.

    Args:
        folders: results folders or exports.

    Raises:
        InputErrors: a sentence for each run and each file of baselines that cannot be read. If the
            code in the context raised an `InputError`, its sentences come first.
        InputError: a folder has no runs, or cannot be read at all.
    """
    records: list[RunRecord] = []
    for folder in folders:
        found = _read_checked(folder)
        if not found:
            raise InputError(
                f"there are no runs in {folder}: use pe-bench run first, or give another folder"
            )
        records += found
    problems = _find_problems(records)
    outer = _problems.set(problems)
    try:
        yield records
    except InputError as error:
        problems[:0] = str(error).splitlines()
        raise InputErrors(list(dict.fromkeys(problems))) from None
    finally:
        _problems.reset(outer)
    if problems:
        raise InputErrors(list(dict.fromkeys(problems)))


def read_with_warnings(results: Path) -> list[RunRecord]:
    """Return the records of all runs in a results folder, with a warning for each problem.

    Raises:
        InputError: there is no such folder, or an export is damaged.
    """
    if not results.is_dir():
        raise InputError(f"there is no folder {results}")
    records, problems = read_with_problems(results)
    for problem in dict.fromkeys(problems):
        warn(problem)
    return records


def read_with_problems(results: Path) -> tuple[list[RunRecord], list[str]]:
    """Return the records of all runs in a results folder, and a sentence for each problem.

    Raises:
        InputError: an export is damaged.
    """
    records = _read_checked(results)
    return records, _find_problems(records)


def _read_checked(results: Path) -> list[RunRecord]:
    """Return the records of all runs in a results folder; runs without readable rows are damaged.

    Raises:
        InputError: an export is damaged.
    """
    return [_check_rows(record) for record in read_records(results)]


def _check_rows(record: RunRecord) -> RunRecord:
    """Return a record, with the status "damaged" if the rows of its run cannot be read."""
    if record.status != "done":
        return record
    try:
        read_run_lines(record)
    except InputError as error:
        return replace(record, status="damaged", reason=str(error))
    return record


def read_or_report(read: Callable[[Source], Value], source: Source) -> Value | None:
    """Return what a function reads from a run or file; None: it cannot be read.

    `reading` reports the error of the function, see `report_problem`.
    """
    try:
        return read(source)
    except InputError as error:
        report_problem(str(error))
        return None


def report_problem(problem: str) -> None:
    """Add a sentence to the report of `reading`; outside of its context, print the sentence."""
    problems = _problems.get()
    if problems is None:
        warn(problem)
    else:
        problems.append(problem)


def _find_problems(records: Iterable[RunRecord]) -> list[str]:
    """Return a sentence for each run and each file of baselines that cannot be read."""
    problems = []
    baselines: dict[Path, RunRecord] = {}
    for record in records:
        if record.status == "damaged":
            problems.append(f"{record.reason}")
        elif record.status == "done":
            baselines.setdefault(baselines_of(record), record)
    for path, record in baselines.items():
        try:
            _check_baselines(path)
        except DamagedError as error:
            problems.append(f"{error}: no baselines of {record.task}, run it again")
        except InputError as error:  # a later version has written it
            problems.append(str(error))
    return problems


def find_baselines(record: RunRecord) -> Path | None:
    """Return the file with the rows of the baselines under a run's settings.

    The result is None if the file is missing or damaged. A damaged one is among the problems of
    the results folder.
    """
    path = baselines_of(record)
    try:
        _check_baselines(path)
    except (DamagedError, InputError):
        return None
    return path if path.exists() else None


def _check_baselines(path: Path) -> None:
    """Check a file of baselines against its seal, if both exist; earlier versions wrote no seal.

    Raises:
        DamagedError: file and seal do not match.
        InputError: a later version has written the seal.
    """
    seal = path.with_suffix(".json")
    if path.exists():
        if seal.exists():
            read_sealed(seal, owner=path.stem, limit=LARGEST)
        read_lines(path)
