"""Results to commit: the runs of a results folder in a few small files, whole for every seed.

    records.json    how the runs came about: what all runs of a table share, and what they do not
    rows.csv.gz     the rows of all runs
    items.parquet   the scores of single items of all runs, a line for each cell; losses have the
                    three digits that matter to a mean, in half of the bytes
    curves.parquet  the learning curves of all trainings, a line for each point, in as many digits
    references/     as in the results folder

A report works from these as from the folders of runs, see `pe_bench.results.store`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pe_bench.results.items import Floats, Items, write_items
from pe_bench.results.learning_curves import (
    FILE,
    OF_AN_EXPORT,
    Key,
    LearningCurve,
    write_curve_file,
)
from pe_bench.results.measurement import CSV_COLUMNS
from pe_bench.results.record import RunRecord
from pe_bench.results.store import (
    EXPORTED,
    PACKED_ROWS,
    key_of,
    read_run_curves,
    read_run_items,
    read_run_rows,
    references_path,
    results_of,
    write_rows,
)
from pe_bench.system.files import write_atomic
from pe_bench.system.sealed import write_sealed

BITS = 12  # of a loss: to a part in 4,000, while losses of items and steps differ by per cents
DROPPED = ("traceback", "pretraining", "notes", "sources")


def write_export(folder: Path, records: Sequence[RunRecord]) -> list[Path]:
    """Write finished runs into a folder and return its files.

    Args:
        folder: where to; another one than the results folder that the runs are from.
        records: of the runs.
    """
    items: list[Items] = []
    curves: dict[Key, LearningCurve] = {}
    labels: dict[str, list[str]] = {"task": [], "encoding": [], "run": []}
    for record in records:
        own = read_run_items(record)
        items += [replace(cell, values=_shorten(cell.values)) for cell in own]
        for name, value in zip(labels, key_of(record), strict=True):
            labels[name] += [value] * len(own)
        for of_run, curve in read_run_curves(record).items():
            curves[*key_of(record), *of_run] = _shorten_curve(curve)
    files = [folder / EXPORTED, folder / PACKED_ROWS, folder / "items.parquet"]
    rows = [row for record in records for row in read_run_rows(record)]
    write_rows(files[1], rows, CSV_COLUMNS)
    write_items(files[2], items, labels)
    (folder / FILE).unlink(missing_ok=True)
    if curves:
        files.append(folder / FILE)
        write_curve_file(files[3], curves, OF_AN_EXPORT)
    (folder / "rows.csv").unlink(missing_ok=True)  # of an export of an earlier version
    for record in records:
        path = references_path(results_of(record), record.task, record.settings_digest)
        target = references_path(folder, record.task, record.settings_digest)
        if path.exists() and path != target and target not in files:
            write_atomic(target, path.read_bytes())
            seal = path.with_suffix(".json")
            if seal.exists():
                write_atomic(target.with_suffix(".json"), seal.read_bytes())
            files.append(target)
    write_sealed(files[0], _shared(records), of=EXPORTED, files=files[1:])
    return files


def _shorten(values: Floats) -> Floats:
    """Return numbers with their first `BITS` bits, so that 0, 100 and other short ones stay."""
    mantissa, exponent = np.frexp(values)
    short: Floats = np.ldexp(np.round(np.ldexp(mantissa, BITS)), exponent - BITS)
    return short


def _shorten_curve(curve: LearningCurve) -> LearningCurve:
    """Return a curve whose measured columns have their first `BITS` bits."""
    measured = ("loss", "grad_norm", "tokens_per_second")
    short = {name: _shorten(np.array(getattr(curve, name))) for name in measured}
    return replace(curve, **{name: tuple(column.tolist()) for name, column in short.items()})


def _shared(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the records, with what all runs under equal settings share written once."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        content = {name: v for name, v in record.to_json().items() if name not in DROPPED}
        if record.measures_time:
            content["notes"] = list(record.notes)  # what was left out, and why
        groups.setdefault(record.settings_digest, []).append({"run": record.name, **content})
    tables = []
    for contents in groups.values():
        first = contents[0]
        same = {n: v for n, v in first.items() if all(other[n] == v for other in contents)}
        same.pop("run", None)
        same.pop("described", None)
        described = {one["encoding"]: one["described"] for one in contents if one["described"]}
        left_out = {*same, "described"}  # a text for each encoding, not for each seed
        runs = [{n: v for n, v in one.items() if n not in left_out} for one in contents]
        tables.append({"shared": same, "described": described, "runs": runs})
    return {"tables": tables}
