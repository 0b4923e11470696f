"""Export of the runs of a results folder into a few small files, for version control.

    records.json    the records of all runs; common settings of the runs of a table are stored once
    rows.csv.gz     the rows of all runs
    items.parquet   the scores of single items of all runs, a row for each evaluation point; losses
                    are rounded to three digits, which halves the size
    curves.parquet  the learning curves of all trainings, a row for each point, rounded in the same
                    way
    references/     the rows of baselines, as in the results folder

`pe_bench.results.store` reads an export like the folders of runs.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pe_bench.errors import InputError
from pe_bench.results.item_files import write_items
from pe_bench.results.items import Items
from pe_bench.results.layout import (
    CURVES,
    EXPORTED,
    ITEMS,
    PACKED_ROWS,
    baselines_path,
    copy_with_seal,
)
from pe_bench.results.learning_curves import OF_AN_EXPORT, CurveKey, LearningCurve, write_curve_file
from pe_bench.results.measurement import CSV_COLUMNS
from pe_bench.results.reading import find_baselines, report_problem
from pe_bench.results.record import RunRecord
from pe_bench.results.rounding import shorten
from pe_bench.results.row_files import write_rows
from pe_bench.results.run_data import read_run_curves, read_run_items, read_run_rows
from pe_bench.results.store import key_of
from pe_bench.system.sealed import write_sealed

DROPPED = ("traceback", "pretraining", "notes", "sources")


def write_export(folder: Path, records: Sequence[RunRecord]) -> list[Path]:
    """Write finished runs into a folder and return its files.

    A run with files that cannot be read is left out, and `reading` reports it.

    Args:
        folder: the folder to write to; it must differ from the results folder of the runs.
        records: records of the runs.
    """
    items: list[Items] = []
    curves: dict[CurveKey, LearningCurve] = {}
    labels: dict[str, list[str]] = {"task": [], "encoding": [], "run": []}
    kept: list[RunRecord] = []
    for record in records:
        try:
            run_items, run_curves = read_run_items(record), read_run_curves(record)
        except InputError as error:
            report_problem(f"{error}; its run is left out")
            continue
        kept.append(record)
        items += [replace(point, values=shorten(point.values)) for point in run_items]
        for name, value in zip(labels, key_of(record), strict=True):
            labels[name] += [value] * len(run_items)
        for of_run, curve in run_curves.items():
            curves[*key_of(record), *of_run] = _shorten_curve(curve)
    files = [folder / EXPORTED, folder / PACKED_ROWS, folder / ITEMS]
    rows = [row for record in kept for row in read_run_rows(record)]
    write_rows(files[1], rows, CSV_COLUMNS)
    write_items(files[2], items, labels)
    (folder / CURVES).unlink(missing_ok=True)
    if curves:
        files.append(folder / CURVES)
        write_curve_file(files[3], curves, OF_AN_EXPORT)
    for record in kept:
        target = baselines_path(folder, record.task, record.settings_digest)
        path = None if target in files else find_baselines(record)
        if path and path != target:
            copy_with_seal(path, target)
            files.append(target)
    write_sealed(files[0], _shared(kept), owner=EXPORTED, files=files[1:])
    return files


def _shorten_curve(curve: LearningCurve) -> LearningCurve:
    """Round the measured columns of a curve to `BITS` bits."""
    measured = ("loss", "grad_norm", "tokens_per_second")
    short = {name: shorten(np.array(getattr(curve, name))) for name in measured}
    return replace(curve, **{name: tuple(column.tolist()) for name, column in short.items()})


def _shared(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the records as JSON, with common values of runs with equal settings stored once."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        content = {name: v for name, v in record.to_json().items() if name not in DROPPED}
        if record.measures_time:
            content["notes"] = list(record.notes)  # missing measurements, and why
        groups.setdefault(record.settings_digest, []).append({"run": record.name, **content})
    tables = []
    for contents in groups.values():
        first = contents[0]
        same = {}
        for name, value in first.items():
            if all(other[name] == value for other in contents):
                same[name] = value
        same.pop("run", None)
        same.pop("described", None)
        described = {run["encoding"]: run["described"] for run in contents if run["described"]}
        left_out = {*same, "described"}  # descriptions are stored per encoding, not per seed
        runs = []
        for run in contents:
            runs.append({name: v for name, v in run.items() if name not in left_out})
        tables.append({"shared": same, "described": described, "runs": runs})
    return {"tables": tables}
