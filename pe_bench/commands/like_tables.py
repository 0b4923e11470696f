"""The tasks of a grid that can be continued in the same table as finished runs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.commands.device import find_precision
from pe_bench.commands.values import Values
from pe_bench.errors import InputError, InputErrors
from pe_bench.registry import catalogue, plugins
from pe_bench.results.identity import flatten_settings, setting_of
from pe_bench.results.record import RunRecord
from pe_bench.runs.options import RunOptions
from pe_bench.runs.tuning import VERSION
from pe_bench.system.console import warn

if TYPE_CHECKING:
    from pe_bench.runs.factory import RunFactory
    from pe_bench.runs.resolve import ResolvedTask

MOST = 2  # differing settings in a sentence


@dataclass
class PlannedTable:
    """A task of a grid, and the finished runs that have its settings.

    Attributes:
        task: label of the task.
        grid: the grid.
        spec: spec of the task in the grid.
        digest: digest of the settings, None if the task cannot be run.
        records: finished runs with these settings.
        planned: encodings and seeds of the grid.
        reason: why the task cannot be run with the settings of finished runs; empty if it can.
    """

    task: str
    grid: Values
    spec: str
    digest: str | None = None
    records: list[RunRecord] = field(default_factory=list)
    planned: set[tuple[str, int]] = field(default_factory=set)
    reason: str = ""

    @cached_property
    def latest(self) -> str:
        """Time of the latest run."""
        return max(record.finished for record in self.records)


def find_tables(
    grid: Values, records: Sequence[RunRecord], asked: Sequence[str], changed: Mapping[str, Any]
) -> Iterator[PlannedTable]:
    """Yield the tasks of a grid that are asked for.

    Args:
        grid: the grid.
        records: finished runs.
        asked: labels of tasks.
        changed: options that replace those of the grid: folders with data, the device.
    """
    from pe_bench.runs.factory import RunFactory

    given = {**grid.given, **changed}
    options = Values(given).make(RunOptions)
    device = _device(given.get("device", "auto"))
    precision = find_precision(given.get("precision", "auto"), device, options.preset)
    factory = RunFactory(replace(options, precision=precision), device=device)
    for spec in catalogue.expand(given["tasks"], "task"):
        try:
            label = plugins.load("task", spec, options.preset).label
        except InputError as error:  # such as a file that the user has not named
            yield PlannedTable(Path(spec).name, grid, spec, reason=str(error))
            continue
        if label in asked:
            table = PlannedTable(label, grid, spec)
            _fill(table, [record for record in records if record.task == label], factory)
            yield table


def _device(wanted: str) -> str:
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted.partition(":")[0]  # without the number of the GPU


def _fill(table: PlannedTable, records: Sequence[RunRecord], factory: "RunFactory") -> None:
    """Find the finished runs that have the settings of a task, or the reason why there are none."""
    try:
        resolved = factory.task(table.spec)
    except InputError as error:  # data are missing, or an option no longer exists
        table.reason = str(error)
        return
    if resolved.task.measures_time:
        table.reason = "times of different machines cannot be compared"
        return
    table.digest = resolved.digest()
    table.records = [one for one in records if one.settings_digest == table.digest]
    if not table.records:
        table.reason = _differences(resolved, max(records, key=lambda one: one.finished))
        return
    seeds = table.grid.given.get("seeds", (0,))
    for spec in catalogue.expand(table.grid.given["encodings"], "encoding"):
        with suppress(InputError):  # the file of another user's encoding
            label = factory.adapted(factory.encoding(spec), resolved).label
            table.planned |= {(label, seed) for seed in seeds}


def _differences(resolved: "ResolvedTask", record: RunRecord) -> str:
    """Return the reason why a new run would not be in one table with a finished run."""
    tune = record.settings.get("tune")
    if tune and tune.get("version", 1) != VERSION:
        return "the rows have learning rates of an earlier search"
    now, before = (flatten_settings(settings) for settings in (resolved.settings, record.settings))
    differing = []
    for name in sorted(now.keys() | before.keys()):
        new, old = setting_of(now, name), setting_of(before, name)
        if new != old:
            is_digest = name.rpartition(".")[2] == "data"
            values = "" if is_digest else f" {new} instead of {old}"
            differing.append(f"{name}{values}")
    return f"the rows have other settings than this version ({', '.join(differing[:MOST])})"


def tables_to_continue(
    tables: Sequence[PlannedTable], asked: Sequence[str], *, named: bool, folder: Path
) -> list[PlannedTable]:
    """Return the tables to continue: for each task those with the latest complete rows.

    Args:
        tables: tasks of all grids.
        asked: labels of the tasks to run.
        named: whether the user has named them.
        folder: folder of the finished runs.

    Raises:
        InputErrors: a named task cannot be continued, or none can.
    """
    chosen: list[PlannedTable] = []
    refused: dict[str, list[str]] = {}
    for task in asked:
        own = [table for table in tables if table.task == task]
        fitting = [table for table in own if table.records]
        if not fitting:
            reason = own[-1].reason if own else "its grid has no such task"
            refused.setdefault(reason, []).append(task)
            continue
        complete = [table for table in fitting if not _missing(table, fitting)]
        best = max(complete or fitting, key=lambda table: table.latest)
        missing = _missing(best, fitting)
        if missing:
            warn(f"{task}: {len(missing)} runs of the table are not in {folder}")
        chosen += [table for table in fitting if table.digest == best.digest]
    sentences = [
        f"{', '.join(tasks)}: new rows would not be in the table of {folder}: {reason}"
        for reason, tasks in refused.items()
    ]
    if sentences and (named or not chosen):
        raise InputErrors(sentences)
    for sentence in sentences:
        warn(f"left out: {sentence}")
    return chosen


def _missing(table: PlannedTable, tables: Sequence[PlannedTable]) -> set[tuple[str, int]]:
    """Return the planned encodings and seeds without a finished run."""
    same = [other for other in tables if other.digest == table.digest]
    planned = set().union(*(other.planned for other in same))
    return planned - {(record.encoding, record.seed) for record in table.records}
