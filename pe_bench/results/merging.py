"""Runs of several results folders in one: what is there already is compared, never overwritten."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pe_bench.config import show_rate
from pe_bench.errors import InputError
from pe_bench.results.identity import digest_settings, tuning_path
from pe_bench.results.items import write_items
from pe_bench.results.learning_curves import FILE, OF_A_RUN, write_curve_file
from pe_bench.results.measurement import CSV_COLUMNS
from pe_bench.results.record import RunRecord
from pe_bench.results.store import (
    key_of,
    place_of,
    read_record,
    read_records,
    read_run_curves,
    read_run_items,
    read_run_rows,
    results_of,
    write_rows,
)
from pe_bench.system.files import saving, slug, write_atomic
from pe_bench.system.sealed import DamagedError, read_sealed, sum_of, write_sealed

NUMBERS = ("value", "n", "stderr", "ci_low", "ci_high", "status")
PLACE = ("subset", "length", "second_axis", "metric")
LEFT_OUT = ("work", "lock", "run.json")


@dataclass
class Merge:
    """What a merge has found in one folder.

    Attributes:
        brought: number of runs that were written.
        same: number of runs that were there already, with the same numbers.
        unfinished: runs that have failed, were skipped or not ended, and were brought as they are.
        complaints: sentences on what was left out.
    """

    brought: int = 0
    same: int = 0
    unfinished: int = 0
    complaints: list[str] = field(default_factory=list)


def merge_folder(source: Path, target: Path) -> Merge:
    """Bring the runs of a results folder or an export, their references and tuning into another.

    Args:
        source: the folder to read.
        target: the results folder to write to.

    Raises:
        InputError: there is nothing to bring.
        SavingError: something cannot be written.
    """
    records = read_records(source)
    if not records:
        raise InputError(f"there are no runs in {source}: give a results folder or an export")
    found = Merge()
    there = {key_of(record): record for record in read_records(target)}
    for record in records:
        _merge_run(record, there.get(key_of(record)), target, found)
    for folder in dict.fromkeys([source, *(results_of(record) for record in records)]):
        for path in sorted((folder / "references").glob("*.csv")):
            _merge_references(path, target, found)
        for path in sorted((folder / "tuning").glob("*/*.json")):
            _merge_tuning(path, target / path.relative_to(folder), found)
    for record in records:
        if record.exported and record.tuning:
            _restore_tuning(record, target, found)
    return found


def describe_merge(folder: Path, found: Merge) -> str:
    """Return a line on what came of a folder."""
    parts = [f"{found.brought} brought", f"{found.same} there already"]
    if found.unfinished:
        parts.append(f"{found.unfinished} not finished, brought as they are")
    return f"{folder}: {', '.join(parts)}"


def merge_folders(sources: Sequence[Path], target: Path) -> Iterator[tuple[Path, Merge]]:
    """Merge one folder after the other, and yield what came of each.

    Raises:
        InputError: a folder is given twice, or is the one to write to.
    """
    seen = [target.resolve()]
    for source in sources:
        if source.is_file():
            raise InputError(
                f"{source} is a table: to send runs, write pe-bench export DIR, and give that"
            )
        if source.resolve() in seen:
            raise InputError(f"{source} is given twice, or is --results: leave it out")
        seen.append(source.resolve())
    for source in sources:
        yield source, merge_folder(source, target)


def compare_rows(first: RunRecord, second: RunRecord) -> str:
    """Return how the numbers of two runs differ, as the end of a sentence; empty: not at all."""
    one, two = _numbers(first), _numbers(second)
    differing = [place for place in one if place in two and one[place] != two[place]]
    lacking = len(one.keys() ^ two.keys())
    if lacking:
        return f"{lacking} of {len(one.keys() | two.keys())} rows are in one of them only"
    if differing:
        place = differing[0]
        name = " ".join(filter(None, place))
        values = f"{one[place][0]} and {two[place][0]}"
        return f"{len(differing)} of {len(one)} rows differ, the first is {name}: {values}"
    items = read_run_items(first), read_run_items(second)
    return "scores of items differ" if all(items) and items[0] != items[1] else ""


def _merge_run(record: RunRecord, there: RunRecord | None, target: Path, found: Merge) -> None:
    title = f"{record.encoding} · {record.task} · seed {record.seed}"
    if record.status == "damaged":
        found.complaints.append(f"{record.reason}")
        return
    if there is not None and there.status == "done":
        _compare(record, there, title, found)
        return
    folder = target / "runs" / slug(record.task) / slug(record.encoding) / record.name
    with saving(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / "lock", timeout=0):
            there = _recorded(folder)
            if there is not None and there.status == "done":
                _compare(record, there, title, found)
            elif record.status == "done":
                found.brought += _bring(record, folder, found)
            elif there is None:
                found.unfinished += _bring(record, folder, found)
    except Timeout:
        found.complaints.append(f"{title}: another process is working on it in {folder}")


def _recorded(folder: Path) -> RunRecord | None:
    """Return the record of a run, None before it has one."""
    return read_record(folder) if (folder / "run.json").exists() else None


def _compare(record: RunRecord, there: RunRecord, title: str, found: Merge) -> None:
    """Say so where a run has other numbers than what is there."""
    if record.status != "done":
        return
    difference = compare_rows(record, there)
    if difference:
        found.complaints.append(
            f"{title}: other numbers in {_where(record)} than in {_where(there)}, which stay "
            f"({difference})"
        )
    else:
        found.same += 1


def _bring(record: RunRecord, folder: Path, found: Merge) -> bool:
    """Write a run into its folder, its record last; tell whether that was possible."""
    if record.exported:
        _write_exported(record, folder)
        return True
    assert record.folder is not None
    for path in _files(record.folder):
        write_atomic(folder / path.relative_to(record.folder), path.read_bytes())
    write_atomic(folder / "run.json", (record.folder / "run.json").read_bytes())
    if read_record(folder).status == record.status:
        return True
    (folder / "run.json").unlink()
    found.complaints.append(f"{record.folder} has changed while it was read: merge again")
    return False


def _write_exported(record: RunRecord, folder: Path) -> None:
    """Write a run of an export as the runner would have done."""
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
    write_sealed(folder / "run.json", record.to_json(), of=place_of(folder), files=files)


def _files(folder: Path) -> list[Path]:
    """Return the files of a run, without its record and what only its process needs."""
    found = []
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        needed = inner.parts[0] not in LEFT_OUT and not inner.name.startswith(".")
        if path.is_file() and needed and ".damaged" not in inner.name:
            found.append(path)
    return found


def _merge_references(path: Path, target: Path, found: Merge) -> None:
    """Bring the rows of a task's references, with their seal where they have one.

    Those of the later version stay, see `running.references.VERSION`.
    """
    try:
        version = _version_of(path)
    except DamagedError as damage:
        found.complaints.append(f"{damage}: left out")
        return
    copy = target / "references" / path.name
    try:
        present = _version_of(copy) if copy.exists() else 0
    except DamagedError:
        present = 0
    if version > present:
        write_atomic(copy, path.read_bytes())
        seal = path.with_suffix(".json")
        if seal.exists():
            write_atomic(copy.with_suffix(".json"), seal.read_bytes())
    elif version == present and sum_of(copy) != sum_of(path):
        found.complaints.append(f"{path} has other references than {copy}, which stay")


def _version_of(path: Path) -> int:
    """Return the version of a file of references: 1 where its seal names none.

    Raises:
        DamagedError: it is not as its seal says.
    """
    seal = path.with_suffix(".json")
    return int(read_sealed(seal, of=path.stem).get("version", 1)) if seal.exists() else 1


def _merge_tuning(path: Path, copy: Path, found: Merge) -> None:
    """Bring the learning rates that were chosen for an encoding."""
    try:
        content = read_sealed(path, of=path.stem, old=True)
    except DamagedError as damage:
        found.complaints.append(f"{damage}: left out")
        return
    _keep_tuning(content, path, copy, found)


def _restore_tuning(record: RunRecord, target: Path, found: Merge) -> None:
    """Write the chosen learning rates of an exported run where later runs look for them."""
    settings: Any = record.settings
    for name in ("task", "start"):
        content = (record.tuning or {}).get(name)
        if content and settings:
            names = (content["task"], content["encoding"])
            identity = digest_settings(settings, content["encoding"], content["encoding_version"])
            copy = tuning_path(target, *names, identity)
            _keep_tuning(content, record.folder or target, copy, found)
        settings = (settings or {}).get("start")


def _keep_tuning(content: dict[str, Any], source: Path, copy: Path, found: Merge) -> None:
    """Write choices that are not there; say so where others are."""
    try:
        there = read_sealed(copy, of=copy.stem, old=True)
    except FileNotFoundError:
        there = {}
    except DamagedError as damage:
        found.complaints.append(f"{damage}: run it again, or remove it")
        return
    rates, others = content.get("lr", {}), there.get("lr", {})
    common = rates.keys() & others.keys()
    if any(rates[phase] != others[phase] for phase in common):
        complaint = (
            f"{content['encoding']} · {content['task']}: other learning rates were chosen in "
            f"{source} ({_show(rates)}) than in {copy} ({_show(others)}), which stay: their runs "
            "do not belong into one table"
        )
        if complaint not in found.complaints:
            found.complaints.append(complaint)
        return
    known = [_trial(trial) for trial in there.get("tried", [])]
    more = [trial for trial in content.get("tried", []) if _trial(trial) not in known]
    if more or len(common) < len(rates):
        # Only the search knows what else it keeps; its mappings go from phases to what is theirs.
        by_phase = {
            name: {**value, **there.get(name, {})}
            for name, value in content.items()
            if isinstance(value, dict)
        }
        tried = [*there.get("tried", []), *more]
        write_sealed(copy, {**content, **by_phase, "tried": tried}, of=copy.stem)


def _trial(trial: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tells a trial from others of its search: everything but its times."""
    return {name: value for name, value in trial.items() if "seconds" not in name}


def _show(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{phase}: {show_rate(lr)}" for phase, lr in rates.items())


def _numbers(record: RunRecord) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return the numbers of each row by what they are of."""
    found = {}
    for row in read_run_rows(record):
        found[tuple(row[name] for name in PLACE)] = tuple(row[name] for name in NUMBERS)
    return found


def _where(record: RunRecord) -> str:
    """Return the place of a run, for people."""
    return f"{record.folder} ({record.name})" if record.exported else f"{record.folder}"
