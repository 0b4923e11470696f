"""`pe-bench run --like DIR`: the settings of finished runs, for other encodings.

The grid of the folder, `grid.toml`, says with which options its runs were made. A task is run with
the options that lead to the settings of finished runs, so that old and new rows are in one table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_bench.commands.command import Command
from pe_bench.commands.like_tables import PlannedTable, find_tables, tables_to_continue
from pe_bench.commands.parser import parse
from pe_bench.commands.results import committed_folders
from pe_bench.commands.values import Values
from pe_bench.errors import InputError, suggest
from pe_bench.grid.execution import ExecutionOptions
from pe_bench.option_table import option_names, options_of
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.importing import trusting_only
from pe_bench.registry.options import split_spec
from pe_bench.results.labels import plugin_name
from pe_bench.results.record import RunRecord
from pe_bench.results.store import latest_copies, read_records
from pe_bench.runs.options import RunOptions
from pe_bench.system.console import info, warn

GRID = "grid.toml"
FREE = ("data", "keep", "logger")
"""Options of runs that may be given together with --like: no number depends on them."""

CHANGED = ("data", "device")
"""Options that replace those of the grid, and are needed to find the settings."""

OWN = ("encodings", "tasks", "results", "like", "keep", "logger", "wide", "report")
"""Options that are never taken from the grid of the folder."""


@dataclass(frozen=True)
class Like:
    """Grids for other encodings, with the settings of finished runs.

    Attributes:
        folder: folder of the finished runs.
        grids: one grid for each set of options.
        records: the finished runs under these settings.
    """

    folder: Path
    grids: list[Values]
    records: list[RunRecord]

    def describe(self) -> str:
        """Return one line on the finished runs."""
        from pe_bench.reporting.page.commands import show_seeds

        encodings = len({record.encoding for record in self.records})
        tasks = list(dict.fromkeys(record.task for record in self.records))
        seeds = " ".join(show_seeds([record.seed for record in self.records]))
        return (
            f"{self.folder}: {len(self.records)} runs of {encodings} encodings on "
            f"{', '.join(tasks)}, seeds {seeds}"
        )


def find_like(values: Values, command: Command) -> Like:
    """Return the grids for the user's encodings, with the settings of finished runs.

    Args:
        values: the user's options, with `like`.
        command: the command, which reads the grid of the folder.

    Raises:
        InputError: there is no such folder, it has no grid, or other options contradict it.
    """
    folder = find_folder(values.given["like"])
    _check_given(values, folder)
    for spec in catalogue.expand(values.given["encodings"], "encoding"):
        plugins.load("encoding", spec)
    grids = _read_grids(folder, command)
    records = latest_copies(one for one in read_records(folder) if one.status == "done")
    if not records:
        raise InputError(f"there are no finished runs in {folder}: give another --like")
    asked = _asked_tasks(values, records, folder)
    changed = {name: values.given[name] for name in CHANGED if name in values.given}
    named = [*values.given["encodings"], *values.given.get("tasks", ())]
    with trusting_only(*(split_spec(spec)[0] for spec in named)):  # the grid may be of anyone
        tables = [table for grid in grids for table in find_tables(grid, records, asked, changed)]
    chosen = tables_to_continue(tables, asked, named="tasks" in values.given, folder=folder)
    made = _make_grids(chosen, values, folder)
    digests = {(table.task, table.digest) for table in chosen}
    kept = [record for record in records if (record.task, record.settings_digest) in digests]
    return Like(folder, made, kept)


def bring(like: Like, results: Path) -> list[str]:
    """Copy the finished runs into a results folder, so that they count as done there.

    Returns:
        A sentence for every run that was not copied.
    """
    from pe_bench.results.merging import merge_folder
    from pe_bench.system.files import check_writable, real_path, saving
    from pe_bench.system.locks import locked

    check_writable(results, "--results")
    if real_path(results) == real_path(like.folder):
        return []
    with saving(results):
        results.mkdir(parents=True, exist_ok=True)
    with locked(results / "like.lock", f"{like.folder}"):  # other shards copy the same runs
        found = merge_folder(like.folder, results, like.records)
    info(f"from {like.describe()}; {found.copied} copied into {results}, {found.same} exist")
    return [warn(line) for line in found.complaints]


def find_folder(name: str) -> Path:
    """Return the folder with a given path, or with a given name among the committed results.

    Raises:
        InputError: there is no such folder.
    """
    path = Path(name)
    if path.is_dir():
        return path
    known = committed_folders()
    if name in known:
        return known[name]
    raise InputError(
        f"there is no folder {name}{suggest(name, list(known))}: give --like a folder, or one of "
        f"{', '.join(known) or 'no committed results'}"
    )


def _check_given(values: Values, folder: Path) -> None:
    """Refuse options that the folder decides.

    Raises:
        InputError: such an option is given.
    """
    decided = {one.name: one.flag for one in options_of(RunOptions) if one.name not in FREE}
    decided["precision"] = "precision"
    for name, flag in decided.items():
        if name in values.given:
            raise InputError(
                f"--{flag} contradicts --like, which takes it from {folder}/{GRID}: leave one of "
                "them out"
            )


def _read_grids(folder: Path, command: Command) -> list[Values]:
    """Return the grids of a folder.

    Raises:
        InputError: it has none, or one that cannot be read.
    """
    path = folder / GRID
    if not path.exists():
        raise InputError(
            f"{folder} has no {GRID}, the grid of its runs: give --like a folder that has one, "
            f"such as {', '.join(committed_folders())}"
        )
    try:
        _, grids = parse([command], [command.name, str(path)])
    except SystemExit:  # the parser has said why
        raise InputError(f"{path} is not a grid file that this version can read") from None
    if any("like" in grid.given for grid in grids):
        raise InputError(f"{path} takes its settings from another folder: give that folder")
    return grids


def _asked_tasks(values: Values, records: Sequence[RunRecord], folder: Path) -> list[str]:
    """Return the labels of the tasks to run: those of the finished runs that the user names.

    Raises:
        InputError: there are no runs of a task.
    """
    labels = sorted({record.task for record in records})
    given = values.given.get("tasks", ("all",))
    if "all" in given:
        return labels
    found: list[str] = []
    for task in given:
        name = Path(task).name if Path(task).exists() else task  # a file of the user's own
        own = [label for label in labels if name in (label, plugin_name(label))]
        if not own:
            raise InputError(
                f"there are no runs of '{task}' in {folder}{suggest(name, labels)}: there are "
                f"{', '.join(labels)}"
            )
        found += own
    return list(dict.fromkeys(found))


def _make_grids(tables: Sequence[PlannedTable], values: Values, folder: Path) -> list[Values]:
    """Return the grids of the user's encodings; tasks with the same options share one.

    Raises:
        InputError: the finished runs do not have a seed that the user gives.
    """
    own = {*OWN, *option_names(ExecutionOptions)}
    found: list[tuple[dict[str, Any], list[str]]] = []  # options, and specs of tasks
    for table in tables:
        given = {name: value for name, value in table.grid.given.items() if name not in own}
        given |= {name: value for name, value in values.given.items() if name != "tasks"}
        given |= {"like": str(folder), "seeds": _seeds(table, values)}
        specs = next((specs for options, specs in found if options == given), None)
        if specs is None:
            found.append((given, [table.spec]))
        elif table.spec not in specs:
            specs.append(table.spec)
    return [Values({**given, "tasks": tuple(specs)}, folder / GRID) for given, specs in found]


def _seeds(table: PlannedTable, values: Values) -> tuple[int, ...]:
    there = tuple(sorted({record.seed for record in table.records}))
    seeds = values.given.get("seeds", there)
    absent = [seed for seed in seeds if seed not in there]
    if absent:
        raise InputError(
            f"{table.task} has no runs with seed {absent[0]} to compare with: "
            f"give some of --seeds {' '.join(map(str, there))}"
        )
    return tuple(seeds)
