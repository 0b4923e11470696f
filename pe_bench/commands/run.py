"""`pe-bench run`: train and evaluate encodings on tasks."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pe_bench.commands.command import Command, OptionGroup, results_option
from pe_bench.commands.device import device_option, find_device, find_precision
from pe_bench.commands.parser import BAD_INPUT
from pe_bench.commands.plan_power import describe_plan
from pe_bench.commands.results import committed_folders
from pe_bench.commands.summary import summarize_runs
from pe_bench.commands.values import Values
from pe_bench.errors import InputError
from pe_bench.grid.execution import ExecutionOptions
from pe_bench.option_table import REQUIRED, check_values, option
from pe_bench.results.layout import RECORD
from pe_bench.runs.options import RunOptions
from pe_bench.runs.seeds import LARGEST_SEED, read_seeds
from pe_bench.system.console import info, show_duration, warn

if TYPE_CHECKING:
    from pe_bench.grid.spec import GridSpec
    from pe_bench.runs.outcome import Outcome

FAILED = 1


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """The options of a grid: its encodings, tasks and seeds, the device, the results folder."""

    encodings: tuple[str, ...] = option(
        REQUIRED,
        "name:key=value,key=value or path/to/file.py; 'all' for every shipped one",
        flag="encoding",
        metavar="SPEC",
    )
    tasks: tuple[str, ...] = option(
        REQUIRED,
        "as --encoding; with --like, some of its tasks (default: all)",
        flag="task",
        metavar="SPEC",
        unless="like",
    )
    seeds: tuple[int, ...] = option(
        (0,),
        "such as 0 1 2, or 0-4 for five; default: 0",
        metavar="N",
        read=read_seeds,
        most=LARGEST_SEED,
    )
    device: str = device_option("auto", "auto")
    precision: Literal["auto", "fp32", "bf16"] = option(
        "auto", "auto (default): bf16 on a GPU, but fp32 on a CPU and for the preset quick"
    )
    results: Path = results_option()
    like: str | None = option(
        None,
        "take tasks, seeds, search and all settings from the grid.toml of a folder with finished "
        "runs, or of committed results (pe-bench results), and copy these runs into --results",
        metavar="DIR",
    )

    def __post_init__(self) -> None:
        check_values(self)
        for name in ("encodings", "seeds") if self.like else ("encodings", "tasks", "seeds"):
            if not getattr(self, name):
                raise InputError(f"{name} is empty: give at least one")


@dataclass(frozen=True)
class OutputOptions:
    """The options for the tables and the report after the runs."""

    wide: bool = option(False, "print all columns of the tables")
    report: bool = option(
        True,
        "do not update index.html, leaderboard.md and plots/",
    )


GROUPS = [
    OptionGroup(GridOptions),
    OptionGroup(RunOptions),
    OptionGroup(ExecutionOptions, "execution", "how the grid is executed; no number depends on it"),
]
"""The options of `pe_bench.run` in Python. The command also has `OutputOptions`."""


def main(*given: Values) -> int:
    """Run the grids of a command and print their tables; return the exit code."""
    from pe_bench.grid.grid import run_grid

    grids, problems = expand_like(given)
    if len(grids) > 1:
        _show_all(grids)
        if grids[0].make(ExecutionOptions).dry_run:
            return 0
    started = time.monotonic()
    outcomes: list[Outcome] = []
    for values in grids:
        outcomes += run_grid(make_grid(values), describe_plan)
    folders = [outcome.folder for outcome in outcomes if outcome.folder]
    if folders:
        output = grids[0].make(OutputOptions)
        problems += summarize_runs(
            folders,
            grids[0].make(GridOptions).results,
            seconds=time.monotonic() - started,
            wide=output.wide,
            report=output.report,
        )
    return _close(outcomes, problems)


def expand_like(given: Sequence[Values]) -> tuple[list[Values], list[str]]:
    """Return the grids of a command, those of --like in place of the options that name a folder.

    Except in a dry run, the finished runs of the folder are copied into the results folder.

    Returns:
        The grids, and a sentence for every run that could not be copied.

    Raises:
        InputError: bad input.
    """
    from pe_bench.commands.like import bring, find_like

    grids: list[Values] = []
    problems: list[str] = []
    for values in given:
        if values.given.get("like") is None:
            grids.append(values)
            continue
        like = find_like(values, COMMAND)
        if values.make(ExecutionOptions).dry_run:
            info(f"like {like.describe()}")
        else:
            problems += bring(like, values.given.get("results", GridOptions.results))
        grids += like.grids
    return grids, problems


def _show_all(grids: Sequence[Values]) -> None:
    """Show the plans of several grids before any of them is run.

    Raises:
        InputError: bad input in any grid.
    """
    from pe_bench.grid.grid import prepare_grid

    seconds = 0.0
    for number, values in enumerate(grids, 1):
        info(f"grid {number} of {len(grids)}: {' '.join(values.make(GridOptions).tasks)}")
        seconds += prepare_grid(make_grid(values), describe_plan).seconds
        info("")
    info(f"time of all {len(grids)} grids, as far as known: about {show_duration(seconds)}\n")


def make_grid(values: Values) -> "GridSpec":
    """Return the grid for the user's options, and prepare this process for it.

    Raises:
        InputError: bad input.
    """
    import torch

    from pe_bench.grid.spec import GridSpec
    from pe_bench.system import environment

    # Gradients of a model that has learned its task are denormal numbers. These halve the speed of
    # a CPU.
    torch.set_flush_denormal(True)
    grid = values.make(GridOptions)
    options = values.make(RunOptions)
    device = find_device(grid.device, options.preset)
    precision = find_precision(grid.precision, device, options.preset)
    info(f"{environment.name_of(device)}, {precision}")
    return GridSpec(
        options=replace(options, precision=precision),
        encodings=grid.encodings,
        tasks=grid.tasks,
        seeds=grid.seeds,
        results=grid.results,
        device=device,
        execution=values.make(ExecutionOptions),
        committed=tuple(committed_folders().values()),
        # The folder of a grid file may be a results folder.
        earlier_results=(values.file.parent,) if values.file else (),
        copies_earlier=grid.like is not None,
    )


def _close(outcomes: Sequence["Outcome"], problems: Sequence[str]) -> int:
    """Print all failures again, since they may be many lines above, and return the exit code.

    Args:
        outcomes: outcomes of the runs.
        problems: sentences about earlier runs that cannot be read.
    """
    lines = [line for outcome in outcomes for line in outcome.complaints]
    complaints = dict.fromkeys([*lines, *problems])
    failed = [outcome for outcome in outcomes if outcome.status == "failed" and outcome.cause]
    for line in complaints:
        warn(line)
    for outcome in failed:
        see = f"; see {outcome.folder}/{RECORD}" if outcome.folder else ""
        warn(f"{outcome.title} failed, {outcome.cause}{see}")
    return BAD_INPUT if complaints else FAILED if failed else 0


COMMAND = Command(
    name="run",
    main=main,
    help="train and evaluate encodings on tasks",
    usage="""\
pe-bench run --encoding SPEC ... (--task SPEC ... | --like DIR) [options]
       pe-bench run GRID.toml [options]""",
    description="""\
Train and evaluate every encoding on every task with every seed. GRID.toml has options as keys,
without their dashes; options on the command line override those of the file.""",
    epilog="""\
examples:
  pe-bench run --encoding tape --task scrolls
  pe-bench run --encoding tape rope:base=500000 ./mine.py --task scrolls perplexity --seeds 0 1 2
  pe-bench run --like quick --encoding ./mine.py --task mqar
  pe-bench run --encoding alibi --task scrolls --data path/to/scrolls perplexity=path/to/texts
  pe-bench run --encoding all --task all --seeds 0-4 --dry-run
  pe-bench run --encoding all --task mqar flipflop --seeds 0-4 --jobs 2
  pe-bench run grid.toml --shard 2/8""",
    groups=[*GROUPS, OptionGroup(OutputOptions)],
    reads_grids=True,
)
