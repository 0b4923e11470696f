"""Rows of baselines, written once for each combination of settings.

The files are in `results/references/`, so that results of earlier versions are still found.
"""

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import Timeout

from pe_bench.errors import CRASHES, as_exception, describe_error
from pe_bench.results.layout import baselines_path
from pe_bench.results.measurement import CSV_COLUMNS
from pe_bench.results.record_parts import Baselines
from pe_bench.results.row_checks import check_baselines
from pe_bench.results.row_files import write_rows
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.system.console import info, warn
from pe_bench.system.locks import hold
from pe_bench.system.sealed import read_if_intact, read_sealed, write_sealed

VERSION = 3
"""Increase it when a task's baselines change and its settings do not. All are measured again."""


def write_baselines(resolved: ResolvedTask, results: Path) -> None:
    """Write the baselines of a task under its settings, unless they exist.

    Baselines of an earlier version are written again. If another process is writing them, this
    function does nothing. A failure causes only a warning, since runs do not need baselines.

    Args:
        resolved: the task.
        results: the results folder.
    """
    path = baselines_path(results, resolved.label, resolved.digest())
    record = path.with_suffix(".json")
    kept = read_if_intact(lambda: read_sealed(record, owner=path.stem, kind=Baselines))
    if kept is not None and kept.get("version") == VERSION:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = hold(path.with_suffix(".lock"), timeout=0)
        with contextlib.suppress(Timeout), held, as_exception():
            _write(resolved, path, record)
    except CRASHES as error:
        warn(f"no baselines of {resolved.label}: {describe_error(error)}")


def _write(resolved: ResolvedTask, path: Path, record: Path) -> None:
    baselines = resolved.task.baselines()
    context = resolved.task.context
    check_baselines(baselines, resolved.task.metrics)
    rows: list[dict[str, Any]] = []
    for name, measured in baselines.items():
        identity = {
            "task": resolved.label,
            "encoding": name,
            "seed": 0,
            "preset": context.preset,
            "protocol": context.protocol,
            "data": resolved.task.data_label,
            "run": path.stem,
        }
        rows += [identity | asdict(row) for row in measured]
    if rows:
        write_rows(path, rows, CSV_COLUMNS)
        about = {"references": list(baselines), "version": VERSION}
        write_sealed(record, about, owner=path.stem, files=[path])
        info(f"{resolved.label}: baselines ({', '.join(baselines)}) in {path}")
