"""Reading of the records of runs, from results folders and exports."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from pe_bench.errors import InputError
from pe_bench.results.layout import (
    EXPORTED,
    FILES_OF_A_RUN,
    FILES_OF_AN_EXPORT,
    RECORD,
    ROWS,
    baselines_path,
    find_recorded,
)
from pe_bench.results.record import RunRecord
from pe_bench.results.row_files import check_columns
from pe_bench.system.files import LARGEST, check_links, read_regular
from pe_bench.system.schema import FileName, Label, WrongError, read_as
from pe_bench.system.sealed import DamagedError, read_sealed
from pe_bench.system.text import printable

RunKey = tuple[str, str, str]
"""Task, encoding and name, which together identify a run within an export."""


def baselines_of(record: RunRecord) -> Path:
    """Return the file with the baselines of a run's table."""
    return baselines_path(results_of(record), record.task, record.settings_digest)


def owner_of(folder: Path) -> str:
    """Return the key of the owner of a run's files: the path of its folder below `runs/`."""
    return "/".join(folder.parts[-3:])


def read_records(results: Path) -> list[RunRecord]:
    """Return the records of all runs in a results folder, each with its folder.

    They include runs that were exported into this folder or into one of its subfolders.

    Raises:
        InputError: an export is damaged.
    """
    records = [read_record(folder) for folder in find_recorded(results)]
    for path in (results / EXPORTED, *sorted(results.glob(f"*/{EXPORTED}"))):
        if path.exists():
            try:
                check_links(path.parent, FILES_OF_AN_EXPORT)
                content = read_sealed(path, owner=EXPORTED, limit=LARGEST)
                records += records_of_export(content, path.parent)
            except (OSError, DamagedError, WrongError) as error:
                raise InputError(
                    f"{path} is not an export of runs ({error}): write it again or remove it"
                ) from None
    return records


def read_record(folder: Path) -> RunRecord:
    """Return the record of a run, with the status "damaged" if its files are not intact."""
    path = folder / RECORD
    remedy = f"run it again, or remove {folder}"
    try:
        check_links(folder, FILES_OF_A_RUN)
        content = read_sealed(path, owner=owner_of(folder), limit=LARGEST)
        record = RunRecord.from_json(content, folder)
        if record.status == "done":
            check_columns(folder / ROWS)
        return record
    except InputError as error:  # a later version has written it
        reason = str(error)
    except DamagedError as error:
        reason = f"{error}: {remedy}"
    except (OSError, WrongError) as error:
        reason = f"{path} is not the record of a run ({error}): {remedy}"
    return _damaged(reason, folder, folder.parts[-3:])


def _damaged(
    reason: str, folder: Path, labels: Sequence[str], *, exported: bool = False
) -> RunRecord:
    """Return a record with the status "damaged" for a run that cannot be read.

    Args:
        reason: reason why it cannot be read, a sentence.
        folder: folder of the run, or of the export that contains it.
        labels: task, encoding and name.
        exported: whether the run is part of an export.
    """
    task, encoding, name = map(printable, labels)
    seed = re.match(r"seed(\d{1,18})", name, re.ASCII)
    return RunRecord(
        status="damaged",
        task=task,
        encoding=encoding,
        seed=int(seed[1]) if seed else 0,
        settings_digest="",
        reason=printable(reason),
        folder=folder,
        name=name,
        exported=exported,
    )


class _Table(TypedDict):
    """The runs of a table in an export; each is read separately, so that errors stay separate."""

    shared: Mapping[str, object]
    described: NotRequired[Mapping[str, object]]
    runs: list[Mapping[str, object]]


class _Export(TypedDict):
    tables: list[_Table]


def find_records(*folders: Path) -> list[RunRecord]:
    """Return the readable records of results folders and exports; no other file is read."""
    found: list[RunRecord] = []
    for folder in folders:
        for run in find_recorded(folder):
            with suppress(OSError, ValueError, RecursionError):
                content = json.loads(read_regular(run / RECORD, LARGEST))
                found.append(RunRecord.from_json(content, run))
        found += _read_export(folder)
    return latest_copies(found)


def find_timed(records: Sequence[RunRecord], results: Path) -> list[RunRecord]:
    """Return the records that give times of runs: these, and the exports in a results folder."""
    inside = sorted(path.parent for path in results.glob(f"*/{EXPORTED}"))
    found = list(records)
    for folder in inside:
        found += _read_export(folder)
    return latest_copies(found)


def _read_export(folder: Path) -> list[RunRecord]:
    """Return the records of an export; none if it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        return records_of_export(json.loads(read_regular(folder / EXPORTED, LARGEST)), folder)
    return []


def records_of_export(content: Mapping[str, Any], folder: Path) -> list[RunRecord]:
    """Return the records in the `EXPORTED` file of a folder.

    A run with an invalid record has the status "damaged".

    Raises:
        WrongError: the file has another structure.
    """
    records = []
    for table in read_as(_Export, content)["tables"]:
        for run in table["runs"]:
            fields = {**table["shared"], **run}
            try:
                encoding = read_as(Label, fields.get("encoding"))
                described = table.get("described", {}).get(encoding, {})
                name = read_as(FileName, fields.get("run"))
                fields["described"] = described
                records.append(RunRecord.from_json(fields, folder, name=name, exported=True))
            except WrongError as error:
                labels = [str(fields.get(key))[:100] for key in ("task", "encoding", "run")]
                reason = f"{folder / EXPORTED}: {'/'.join(labels)} is not the record of a run"
                reason = f"{reason} ({error}): export it again, or remove this one"
                records.append(_damaged(reason, folder, labels, exported=True))
    return records


def results_of(record: RunRecord) -> Path:
    """Return the results folder of a run; for an exported run, the folder of the export."""
    assert record.folder is not None
    return record.folder if record.exported else record.folder.parents[3]


def key_of(record: RunRecord) -> RunKey:
    """Return the key of a run within an export."""
    return record.task, record.encoding, record.name


def latest_copies(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return each run once, as exports may repeat runs.

    The latest finished copy counts, or the first of equally old ones. A copy without results counts
    only if there is no finished one.
    """
    found: dict[RunKey, RunRecord] = {}
    for record in records:
        latest = found.setdefault(key_of(record), record)
        if _precedence(record) > _precedence(latest):
            found[key_of(record)] = record
    return list(found.values())


def _precedence(record: RunRecord) -> tuple[bool, tuple[int, str]]:
    """Return a sort key of the copies of a run."""
    return record.status == "done", record.age


def find_run(query: str, results: Path) -> RunRecord:
    """Return the record of a run that the user names.

    Args:
        query: folder of the run, or "encoding/task/seed", where the last part is the number of
            the seed, "seed0" or the name of the run.
        results: results folder to search, including its exports.

    Raises:
        InputError: there is no such run, there are several, or it is damaged.
    """
    folder = Path(query)
    if (folder / RECORD).exists():
        found = [read_record(folder.resolve())]
    else:
        records = read_records(results)
        found = latest_copies(one for one in records if query.strip("/") in _names_of(one))
        if not found:
            raise InputError(
                f"there is no run '{query}' in {results}: give its folder, or encoding/task/seed, "
                "such as rope/mqar/0"
            )
    if len(found) > 1:
        names = ", ".join(f"{r.encoding}/{r.task}/{r.name} of {r.finished}" for r in found)
        raise InputError(f"'{query}' matches several runs: {names}; write one of them")
    if found[0].status == "damaged":
        raise InputError(f"{found[0].reason}")
    return found[0]


def _names_of(record: RunRecord) -> list[str]:
    """Return the names by which the user may name a run."""
    ends = (f"{record.seed}", f"seed{record.seed}", record.name)
    return [f"{record.encoding}/{record.task}/{end}" for end in ends]
