"""Merging of several results folders; existing runs are compared, never overwritten."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import Timeout

from pe_bench.config import show_rate
from pe_bench.errors import InputError
from pe_bench.results.identity import digest_settings, settings_of_phases, tuning_path
from pe_bench.results.items import write_items
from pe_bench.results.learning_curves import FILE, OF_A_RUN, write_curve_file
from pe_bench.results.measurement import CSV_COLUMNS
from pe_bench.results.record import RunRecord
from pe_bench.results.record_parts import Baselines, SearchJson
from pe_bench.results.run_comparison import differing_rows, rows_by_key
from pe_bench.results.store import (
    baselines_of,
    key_of,
    owner_of,
    read_lines,
    read_record,
    read_records,
    read_run_curves,
    read_run_items,
    read_run_rows,
    results_of,
    write_rows,
)
from pe_bench.system.files import (
    LARGEST,
    check_links,
    list_files,
    real_path,
    saving,
    slug,
    write_atomic,
)
from pe_bench.system.locks import hold
from pe_bench.system.sealed import DamagedError, read_sealed, sum_of, write_sealed

LEFT_OUT = ("work", "lock", "run.json")
REL_TOLERANCE = 1e-9  # largest relative difference of equal numbers


@dataclass
class Merge:
    """Result of merging one folder.

    Attributes:
        brought: number of copied runs.
        same: number of runs that existed with the same results.
        others: number of copied runs without results, by status, such as "failed".
        complaints: one sentence for everything that was not copied.
    """

    brought: int = 0
    same: int = 0
    others: Counter[str] = field(default_factory=Counter)
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
    found = Merge()
    there = _own_copies_first(target)
    for record in records:
        try:
            _merge_run(record, there.get(key_of(record)), target, found)
        except InputError as error:  # damaged rows or items
            found.complaints.append(f"{error}; left out")
    if everything:
        for folder in dict.fromkeys([source, *(results_of(record) for record in records)]):
            for path in sorted((folder / "references").glob("*.csv")):
                _merge_baselines(path, target, found)
            for path in sorted((folder / "tuning").glob("*/*.json")):
                _merge_tuning(path, target / path.relative_to(folder), found)
    else:
        for path in dict.fromkeys(map(baselines_of, records)):
            if path.exists():
                _merge_baselines(path, target, found)
    for record in records:
        if record.tuning and (record.exported or not everything):
            _restore_tuning(record, target, found)
    return found


def describe_merge(folder: Path, found: Merge) -> str:
    """Describe the result of merging a folder in one line."""
    parts = [f"{found.brought} copied", f"{found.same} already exist"]
    for status, count in found.others.items():
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


def describe_difference(first: RunRecord, second: RunRecord) -> str:
    """Describe how the results of two runs differ, as the end of a sentence; empty: not at all."""
    one, two = rows_by_key(first), rows_by_key(second)
    changed = []
    lacking = 0
    for row in differing_rows(one, two):
        if row.first is None or row.second is None:
            lacking += 1
        else:
            changed.append((row.key, row.first["value"], row.second["value"]))
    if lacking:
        return f"only one of them has {lacking} of {len(one.keys() | two.keys())} rows"
    if changed:
        (subset, metric, length, second_axis), *values = changed[0]
        name = " ".join(filter(None, (subset, length, second_axis, metric)))
        return (
            f"{len(changed)} of {len(one)} rows differ, the first is {name}: {' and '.join(values)}"
        )
    items = read_run_items(first), read_run_items(second)
    return "scores of items differ" if all(items) and items[0] != items[1] else ""


def _own_copies_first(target: Path) -> dict[tuple[str, str, str], RunRecord]:
    """Return the runs of a folder by key; the copy in its own `runs` counts, even if it is older.

    A merge never replaces that copy, so the new run is compared with it.
    """
    found: dict[tuple[str, str, str], RunRecord] = {}
    for record in read_records(target):
        found.setdefault(key_of(record), record)  # exported runs come last
    return found


def _merge_run(record: RunRecord, there: RunRecord | None, target: Path, found: Merge) -> None:
    title = f"{record.encoding} · {record.task} · seed {record.seed}"
    if record.status == "damaged":
        found.complaints.append(f"{record.reason}")
        return
    if there is not None and there.status == "done":
        is_copied = not there.exported or record.status != "done"
        if is_copied or describe_difference(record, there):
            _compare(record, there, title, found)
            return
    folder = target / "runs" / slug(record.task) / slug(record.encoding) / record.name
    with saving(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with hold(folder / "lock", timeout=0):
            there = _recorded(folder)
            if there is not None and there.status == "done":
                _compare(record, there, title, found)
            elif record.status == "done":
                found.brought += _bring(record, folder, found)
            elif there is None and _bring(record, folder, found):
                found.others[record.status] += 1
    except Timeout:
        found.complaints.append(f"{title}: another process is working on it in {folder}")


def _recorded(folder: Path) -> RunRecord | None:
    """Return the record of a run, or None."""
    return read_record(folder) if (folder / "run.json").exists() else None


def _compare(record: RunRecord, there: RunRecord, title: str, found: Merge) -> None:
    """Compare a run with the existing one; add a complaint if their results differ."""
    if record.status != "done":
        return
    difference = describe_difference(record, there)
    if difference:
        found.complaints.append(
            f"{title}: other numbers in {_where(record)} than in {_where(there)}, which stay "
            f"({difference})"
        )
    else:
        found.same += 1


def _bring(record: RunRecord, folder: Path, found: Merge) -> bool:
    """Copy a run into its folder, the record last; return whether it succeeded."""
    if record.exported:
        _write_exported(record, folder)
        return True
    assert record.folder is not None
    for path in _files(record):
        write_atomic(folder / path.relative_to(record.folder), path.read_bytes())
    write_atomic(folder / "run.json", (record.folder / "run.json").read_bytes())
    if read_record(folder).status == record.status:
        return True
    (folder / "run.json").unlink()
    found.complaints.append(f"{record.folder} has changed while it was read: merge again")
    return False


def _write_exported(record: RunRecord, folder: Path) -> None:
    """Write a run of an export in the format of a results folder."""
    files = [folder / "rows.csv"]
    write_rows(files[0], read_run_rows(record), CSV_COLUMNS)
    items = read_run_items(record)
    if items:
        files.append(folder / "items.parquet")
        write_items(files[1], items)
    curves = read_run_curves(record)
    if curves:
        files.append(folder / FILE)
        write_curve_file(folder / FILE, curves, OF_A_RUN)
    write_sealed(folder / "run.json", record.to_json(), owner=owner_of(folder), files=files)


def _files(record: RunRecord) -> list[Path]:
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


def _merge_baselines(path: Path, target: Path, found: Merge) -> None:
    """Copy the rows of the baselines of a task, with their seal if they have one.

    The later version wins, see `VERSION` in `pe_bench.runs.baselines`.
    """
    try:
        check_links(path.parent, [path.name])
        version = _version_of(path)
        read_lines(path)
    except (DamagedError, OSError, InputError) as error:
        found.complaints.append(f"{error}: left out")
        return
    copy = target / "references" / path.name
    try:
        present = _version_of(copy) if copy.exists() else 0
    except (DamagedError, InputError):
        present = 0
    if version > present:
        write_atomic(copy, path.read_bytes())
        seal = path.with_suffix(".json")
        if seal.exists():
            write_atomic(copy.with_suffix(".json"), seal.read_bytes())
    elif version == present and not _same_rows(path, copy):
        found.complaints.append(f"{path} has other baselines than {copy}, which stay")


def _same_rows(first: Path, second: Path) -> bool:
    """Return whether two files have the same rows, up to the rounding of another processor."""
    if sum_of(first) == sum_of(second):
        return True
    try:
        lines, others = read_lines(first), read_lines(second)
    except InputError:
        return False
    cells = [cell for line in lines for cell in line]
    other_cells = [cell for line in others for cell in line]
    return len(cells) == len(other_cells) and all(map(_same_cell, cells, other_cells))


def _same_cell(first: str, second: str) -> bool:
    try:
        return first == second or math.isclose(float(first), float(second), rel_tol=REL_TOLERANCE)
    except ValueError:
        return False


def _version_of(path: Path) -> int:
    """Return the version of a file of baselines; 1 if it has no seal.

    Raises:
        DamagedError: the file does not match its seal.
    """
    seal = path.with_suffix(".json")
    if not seal.exists():
        return 1
    return int(read_sealed(seal, owner=path.stem, kind=Baselines, limit=LARGEST).get("version", 1))


def _merge_tuning(path: Path, copy: Path, found: Merge) -> None:
    """Copy the chosen learning rates of an encoding."""
    try:
        content = read_sealed(path, owner=path.stem, kind=SearchJson, limit=LARGEST)
    except (DamagedError, InputError) as error:
        found.complaints.append(f"{error}: left out")
        return
    _keep_tuning(content, path, copy, found)


def _restore_tuning(record: RunRecord, target: Path, found: Merge) -> None:
    """Write the chosen learning rates of an exported run to the tuning folder."""
    for name, settings in zip(("task", "start"), settings_of_phases(record.settings), strict=False):
        content = (record.tuning or {}).get(name)
        if content and {"model", "train", "start"} <= settings.keys():
            names = (content["task"], content["encoding"])
            identity = digest_settings(settings, content["encoding"], content["encoding_version"])
            copy = tuning_path(target, *names, identity)
            _keep_tuning(content, record.folder or target, copy, found)


def _keep_tuning(content: dict[str, Any], source: Path, copy: Path, found: Merge) -> None:
    """Add choices that do not exist yet; add a complaint if they contradict existing ones."""
    try:
        there = read_sealed(copy, owner=copy.stem, kind=SearchJson)
    except FileNotFoundError:
        there = {}
    except (DamagedError, InputError) as error:
        found.complaints.append(f"{error}: run it again, or remove it")
        return
    rates, others = content.get("lr", {}), there.get("lr", {})
    common = rates.keys() & others.keys()
    if any(rates[phase] != others[phase] for phase in common):
        complaint = (
            f"{content['encoding']} · {content['task']}: other learning rates were chosen in "
            f"{source} ({_show(rates)}) than in {copy} ({_show(others)}), which stay: their runs "
            "do not belong in one table"
        )
        if complaint not in found.complaints:
            found.complaints.append(complaint)
        return
    known = [_trial(trial) for trial in there.get("tried", [])]
    more = [trial for trial in content.get("tried", []) if _trial(trial) not in known]
    if more or len(common) < len(rates):
        # All mappings in the file are keyed by phase.
        by_phase = {
            name: {**value, **there.get(name, {})}
            for name, value in content.items()
            if isinstance(value, dict)
        }
        tried = [*there.get("tried", []), *more]
        write_sealed(copy, {**content, **by_phase, "tried": tried}, owner=copy.stem)


def _trial(trial: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of a trial within its search: everything except times."""
    return {name: value for name, value in trial.items() if "seconds" not in name}


def _show(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{phase}: {show_rate(lr)}" for phase, lr in rates.items())


def _where(record: RunRecord) -> str:
    """Return the path of a run, for messages."""
    return f"{record.folder} ({record.name})" if record.exported else f"{record.folder}"
