"""Merging of several results folders; existing runs are compared, never overwritten."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import Timeout

from pe_bench.errors import InputError
from pe_bench.results.item_files import write_items
from pe_bench.results.labels import run_title
from pe_bench.results.layout import (
    CURVES,
    EXECUTING,
    ITEMS,
    RECORD,
    REFERENCES,
    ROWS,
    RUN_LOCK,
    TUNING,
    WORK,
    run_path,
)
from pe_bench.results.learning_curves import OF_A_RUN, write_curve_file
from pe_bench.results.measurement import CSV_COLUMNS
from pe_bench.results.merging_baselines import copy_baselines
from pe_bench.results.merging_tuning import copy_tuning, restore_tuning
from pe_bench.results.record import RunRecord
from pe_bench.results.row_files import write_rows
from pe_bench.results.run_comparison import describe_difference
from pe_bench.results.run_data import read_run_curves, read_run_items, read_run_rows
from pe_bench.results.store import (
    RunKey,
    baselines_of,
    key_of,
    owner_of,
    read_record,
    read_records,
    results_of,
)
from pe_bench.system.files import (
    list_files,
    real_path,
    saving,
    write_atomic,
)
from pe_bench.system.locks import hold
from pe_bench.system.sealed import write_sealed

LEFT_OUT = (WORK, RUN_LOCK, EXECUTING, RECORD)


@dataclass
class Merge:
    """Result of merging one folder.

    Attributes:
        copied: number of copied runs with results.
        same: number of runs that existed with the same results.
        without_results: number of copied runs without results, by status, such as "failed".
        complaints: one sentence for everything that was not copied.
    """

    copied: int = 0
    same: int = 0
    without_results: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)


def merge_folder(source: Path, target: Path, records: Sequence[RunRecord] | None = None) -> Merge:
    """Copy the runs of a results folder or an export, with baselines and tuning, into another one.

    A run of an export inside the target is copied too, so that a grid counts it as done.

    Args:
        source: the folder to read.
        target: the results folder to write to.
        records: records of the runs to copy; None: all runs of the source.

    Raises:
        InputError: the folder has no runs.
        SavingError: a file cannot be written.
    """
    everything = records is None
    if records is None:
        records = read_records(source)
    if not records:
        raise InputError(f"there are no runs in {source}: give a results folder or an export")
    merger = Merger(target)
    for record in records:
        merger.merge_run(record)
    if everything:
        for folder in dict.fromkeys([source, *(results_of(record) for record in records)]):
            for path in sorted((folder / REFERENCES).glob("*.csv")):
                merger.merge_baselines(path)
            for path in sorted((folder / TUNING).glob("*/*.json")):
                merger.merge_tuning(path, target / path.relative_to(folder))
    else:
        for path in dict.fromkeys(map(baselines_of, records)):
            if path.exists():
                merger.merge_baselines(path)
    for record in records:
        if record.tuning and (record.exported or not everything):
            merger.restore_tuning(record)
    return merger.found


def describe_merge(folder: Path, found: Merge) -> str:
    """Describe the result of merging a folder in one line."""
    parts = [f"{found.copied} copied", f"{found.same} already exist"]
    for status, count in found.without_results.items():
        parts.append(f"{count} copied without results ({status})")
    return f"{folder}: {', '.join(parts)}"


def merge_folders(
    sources: Sequence[Path],
    target: Path,
    records: Sequence[Sequence[RunRecord] | None] | None = None,
) -> Iterator[tuple[Path, Merge]]:
    """Merge folders one after the other, and yield the result of each.

    Args:
        sources: the folders to read.
        target: the results folder to write to.
        records: for each folder the runs to copy, as in `merge_folder`; None: all.

    Raises:
        InputError: a folder is given twice, or equals the target.
    """
    seen = [real_path(target)]
    for source in sources:
        if source.is_file():
            raise InputError(
                f"{source} is a table: to send runs, write pe-bench export DIR and merge it"
            )
        if real_path(source) in seen:
            raise InputError(f"{source} is given twice, or is --results: leave it out")
        seen.append(real_path(source))
    for source, chosen in zip(sources, records or [None] * len(sources), strict=True):
        yield source, merge_folder(source, target, chosen)


class Merger:
    """Merger of runs, baselines and tuning into a results folder.

    Args:
        target: the results folder.

    Attributes:
        found: the result so far.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.found = Merge()
        self._existing = _find_existing(target)

    def merge_run(self, record: RunRecord) -> None:
        """Copy a run, or compare it with the existing one."""
        try:
            self._merge_run(record)
        except InputError as error:  # damaged rows or items
            self._complain(f"{error}; left out")

    def _merge_run(self, record: RunRecord) -> None:
        if record.status == "damaged":
            self._complain(f"{record.reason}")
            return
        existing = self._existing.get(key_of(record))
        if existing is not None and existing.status == "done":
            is_copied = not existing.exported or record.status != "done"
            if is_copied or describe_difference(record, existing):
                self._compare(record, existing)
                return
        folder = run_path(self.target, record.task, record.encoding, record.name)
        with saving(folder):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            with hold(folder / RUN_LOCK, timeout=0):
                self._merge_into(record, folder)
        except Timeout:
            self._complain(f"{_title(record)}: another process is working on it in {folder}")

    def _merge_into(self, record: RunRecord, folder: Path) -> None:
        """Copy a run into its locked folder, unless a run with results is there."""
        existing = read_record(folder) if (folder / RECORD).exists() else None
        if existing is not None and existing.status == "done":
            self._compare(record, existing)
        elif record.status == "done":
            if self._copy_files(record, folder):
                self.found.copied += 1
        elif existing is None and self._copy_files(record, folder):
            self.found.without_results[record.status] += 1

    def _compare(self, record: RunRecord, existing: RunRecord) -> None:
        """Compare a run with the existing one; add a complaint if their results differ."""
        if record.status != "done":
            return
        difference = describe_difference(record, existing)
        if difference:
            self._complain(
                f"{_title(record)}: other numbers in {_show_path(record)} than in "
                f"{_show_path(existing)}, which stay ({difference})"
            )
        else:
            self.found.same += 1

    def _copy_files(self, record: RunRecord, folder: Path) -> bool:
        """Copy a run into its folder, the record last; return whether it succeeded."""
        if record.exported:
            _write_exported(record, folder)
            return True
        assert record.folder is not None
        for path in _files_to_copy(record):
            write_atomic(folder / path.relative_to(record.folder), path.read_bytes())
        write_atomic(folder / RECORD, (record.folder / RECORD).read_bytes())
        if read_record(folder).status == record.status:
            return True
        (folder / RECORD).unlink()
        self._complain(f"{record.folder} has changed while it was read: merge again")
        return False

    def merge_baselines(self, path: Path) -> None:
        """Copy the rows of the baselines of a task, see `copy_baselines`."""
        complaint = copy_baselines(path, self.target / REFERENCES / path.name)
        if complaint:
            self._complain(complaint)

    def merge_tuning(self, path: Path, copy: Path) -> None:
        """Copy the chosen learning rates of an encoding, see `copy_tuning`."""
        self._complain_about_tuning([copy_tuning(path, copy)])

    def restore_tuning(self, record: RunRecord) -> None:
        """Write the chosen learning rates of a run to the tuning folder."""
        self._complain_about_tuning(restore_tuning(record, self.target))

    def _complain_about_tuning(self, complaints: Sequence[str]) -> None:
        """Add complaints; seeds share a search, so that a complaint may come back."""
        for complaint in complaints:
            if complaint and complaint not in self.found.complaints:
                self._complain(complaint)

    def _complain(self, complaint: str) -> None:
        self.found.complaints.append(complaint)


def _find_existing(target: Path) -> dict[RunKey, RunRecord]:
    """Return the runs of a folder by key; the copy in its own `runs` counts, even if it is older.

    A merge never replaces that copy, so the new run is compared with it.
    """
    found: dict[RunKey, RunRecord] = {}
    for record in read_records(target):
        found.setdefault(key_of(record), record)  # exported runs come last
    return found


def _write_exported(record: RunRecord, folder: Path) -> None:
    """Write a run of an export in the format of a results folder."""
    files = [folder / ROWS]
    write_rows(files[0], read_run_rows(record), CSV_COLUMNS)
    items = read_run_items(record)
    if items:
        files.append(folder / ITEMS)
        write_items(files[1], items)
    curves = read_run_curves(record)
    if curves:
        files.append(folder / CURVES)
        write_curve_file(folder / CURVES, curves, OF_A_RUN)
    write_sealed(folder / RECORD, record.to_json(), owner=owner_of(folder), files=files)


def _files_to_copy(record: RunRecord) -> list[Path]:
    """Return the files of a run, without its record and temporary files.

    Raises:
        InputError: the folder, or a file in it, is a link that leads elsewhere.
    """
    assert record.folder is not None
    try:
        files = list_files(record.folder)
    except OSError as error:
        raise InputError(f"{error.filename} is {error.strerror}: replace it with a file") from None
    if not real_path(record.folder).is_relative_to(real_path(results_of(record))):
        raise InputError(f"{record.folder} is a link to another folder: give the other folder")
    found = []
    for path in files:
        inner = path.relative_to(record.folder)
        needed = inner.parts[0] not in LEFT_OUT and not inner.name.startswith(".")
        if needed and ".damaged" not in inner.name:
            found.append(path)
    return found


def _title(record: RunRecord) -> str:
    return run_title(record.encoding, record.task, record.seed)


def _show_path(record: RunRecord) -> str:
    """Return the path of a run, for messages."""
    return f"{record.folder} ({record.name})" if record.exported else f"{record.folder}"
