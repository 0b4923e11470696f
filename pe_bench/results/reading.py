"""Write rows of runs, read rows and records."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from pe_bench.errors import InputError
from pe_bench.results.items import Items, read_items
from pe_bench.results.record import RunRecord
from pe_bench.results.schema import Measurement, Status
from pe_bench.system.files import slug, write_atomic


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> None:
    """Write a tidy CSV file, whole or not at all. None and nan become empty cells."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        missing = {name: "" for name, value in row.items() if value is None or value != value}
        writer.writerow({**row, **missing})
    write_atomic(path, text.getvalue())


def references_path(results: Path, task: str, settings_digest: str) -> Path:
    """Return the file with the rows of a task's references under some settings."""
    return results / "references" / f"{slug(task)}-{settings_digest}.csv"


def read_measurements(path: Path) -> list[Measurement]:
    """Return the rows of a file that `write_rows` has written."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Measurement(
                subset=row["subset"],
                metric=row["metric"],
                value=float(row["value"] or "nan"),
                n=int(row["n"]),
                stderr=float(row["stderr"] or "nan"),
                length=int(row["length"]) if row["length"] else None,
                second_axis=row["second_axis"],
                ci_low=float(row["ci_low"] or "nan"),
                ci_high=float(row["ci_high"] or "nan"),
                status=_status(row["status"]),
            )
            for row in csv.DictReader(file)
        ]


def _status(text: str) -> Status:
    known = {status: status for status in get_args(Status)}
    found: Status = known[text]
    return found


def read_records(results: Path) -> list[RunRecord]:
    """Return the records of all runs in a results folder, each with its folder.

    Raises:
        InputError: a file that is not the record of a run.
    """
    records = []
    for path in sorted((results / "runs").glob("*/*/*/run.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            records.append(RunRecord.from_json(content, path.parent))
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{path} is not the record of a run ({error}): remove that run's folder"
            ) from None
    return records


def read_run_items(record: RunRecord) -> list[Items]:
    """Return the scores of single items of a run; none where it has kept none.

    Raises:
        InputError: the file cannot be read.
    """
    assert record.folder is not None
    path = record.folder / "items.parquet"
    return read_items(path) if path.exists() else []
