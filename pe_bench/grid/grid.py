"""The grid: plan, then cell by cell; whatever fails, the rest goes on."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep

import torch

from pe_bench.errors import CRASHES, InputError
from pe_bench.grid.cost import describe_training
from pe_bench.grid.display import Display
from pe_bench.grid.estimate import Estimates, find_records
from pe_bench.grid.execution import ONE_BY_ONE, ExecutionOptions
from pe_bench.grid.executors.executor import Executor
from pe_bench.grid.executors.serial import Serial, execute
from pe_bench.grid.overview import Overview
from pe_bench.grid.plan import PlannedRun, make_plan
from pe_bench.runs.options import RunOptions
from pe_bench.runs.run import Busy, Outcome
from pe_bench.system.console import info, warn
from pe_bench.train.threads import threads_of_run

LOOK_AGAIN = 2.0  # seconds until a cell that another process works on is looked at again


@dataclass(frozen=True)
class Prepared:
    """A grid whose plan has been shown.

    Attributes:
        executor: for its cells.
        cells: of this command's share.
        overview: of these.
        outcomes: tasks and subsets that cannot be run.
    """

    executor: Executor
    cells: Sequence[PlannedRun]
    overview: Overview
    outcomes: Sequence[Outcome]

    @property
    def seconds(self) -> float:
        """Estimated time of all cells whose time earlier runs tell."""
        return self.overview.seconds(self.executor.lanes)


def run_grid(
    options: RunOptions,
    encodings: Sequence[str],
    tasks: Sequence[str],
    seeds: Sequence[int] = (0,),
    *,
    results: Path = Path("results"),
    device: str = "cpu",
    how: ExecutionOptions = ONE_BY_ONE,
    like: Sequence[Path] = (),
) -> list[Outcome]:
    """Run every encoding on every task under every seed; failures are recorded.

    Args:
        options: common to all runs.
        encodings, tasks: specs; "all" stands for every shipped one.
        seeds: of weights, batches and evaluation.
        results: folder to write to.
        device: "cpu" or "cuda".
        how: the cells are worked through.
        like: more folders with runs that tell how long others take, `results` is one.

    Returns:
        One outcome per run, and one per task or subset whose data are missing; none of a dry run.

    Raises:
        InputErrors: bad input, before anything is trained.
        SavingError: a result could not be written.
    """
    grid = prepare_grid(
        options, encodings, tasks, seeds, results=results, device=device, how=how, like=like
    )
    if how.dry_run:
        return []
    found: dict[str, Outcome] = {}
    for cell in grid.overview.skipped:
        assert cell.skip is not None
        found[cell.run.title] = cell.run.skip(cell.skip, complain=cell.named)
    alone = Serial(threads_of_run("", device, alone=True))
    found |= _work(grid.overview, grid.executor, alone)
    return [*grid.outcomes, *(found[cell.run.title] for cell in grid.cells)]


def prepare_grid(
    options: RunOptions,
    encodings: Sequence[str],
    tasks: Sequence[str],
    seeds: Sequence[int] = (0,),
    *,
    results: Path = Path("results"),
    device: str = "cpu",
    how: ExecutionOptions = ONE_BY_ONE,
    like: Sequence[Path] = (),
) -> Prepared:
    """Show what there is to do; a dry run shows every cell.

    Args:
        options, encodings, tasks, seeds, results, device, how, like: as in `run_grid`.

    Raises:
        InputErrors: bad input.
    """
    executor = _executor(how, options, device)
    plan = make_plan(
        options,
        encodings,
        tasks,
        seeds,
        results=results,
        device=device,
        shards=how.devices if how.together == "fsdp" and device == "cuda" else 1,
        writes=not how.dry_run,
    )
    cells = how.shard.of(plan.runs) if how.shard else plan.runs
    if how.together == "fsdp":
        _check_shards([cell for cell in cells if cell.skip is None])
    overview = Overview.of(cells, Estimates(find_records(results, *like), device))
    lines = overview.lines(executor.lanes)
    if how.dry_run:
        lines = overview.cells() + lines
    for line in lines:
        info(line)
    if overview.unknown and options.preset != "quick":
        with contextlib.suppress(*CRASHES):  # the cells themselves say what is wrong
            info(describe_training(overview.unknown))
    return Prepared(executor, cells, overview, plan.outcomes)


def _executor(how: ExecutionOptions, options: RunOptions, device: str) -> Executor:
    """Return what runs the cells.

    Raises:
        InputError: it is not there.
    """
    _check_devices(how.devices, device)
    alone = how.jobs is None and how.executor == "local" and how.devices == 1
    threads = threads_of_run(options.preset, device, alone=alone)
    if how.executor == "ray":
        from pe_bench.grid.executors.cluster import Cluster

        return Cluster(options, device, threads)
    if how.jobs is not None or how.devices > 1:
        from pe_bench.grid.executors.processes import Processes

        return Processes(how.jobs or 1, options, threads, how.devices, how.together)
    return Serial(threads)


def _check_devices(count: int, device: str) -> None:
    """Check that there are as many GPUs as processes that train together.

    Raises:
        InputError: there are fewer.
    """
    there = torch.cuda.device_count() if device == "cuda" else count
    if count > there:
        raise InputError(
            f"--devices {count} needs {count} GPUs, and torch sees {there} here: use --devices "
            f"{there}"
        )


def _check_shards(cells: Sequence[PlannedRun]) -> None:
    """Check that every weight can be shared out.

    Raises:
        InputError: an encoding has one without dimensions.
    """
    for cell in cells:
        model = cell.run.resolved.make_empty(cell.run.encoding)
        if any(parameter.dim() == 0 for parameter in model.parameters()):
            raise InputError(
                f"{cell.run.encoding.label} has weights that are single numbers, which --strategy "
                "fsdp cannot share out: use --strategy ddp"
            )


def _work(overview: Overview, executor: Executor, alone: Executor) -> dict[str, Outcome]:
    """Run cells and return how each has ended, by its title.

    Args:
        overview: the cells.
        executor: for most of them.
        alone: for those whose numbers are times, after the others: nothing else may go on then.
    """
    found: dict[str, Outcome] = {}
    others: list[PlannedRun] = []
    timed: list[PlannedRun] = []
    for cell in overview.done:
        try:
            found[cell.run.title] = execute(cell.run)
        except Busy:
            others.append(cell)
    for cell in overview.to_do:
        (timed if cell.run.resolved.task.measures_time else others).append(cell)
    for cells, chosen in ((others, executor), (timed, alone)):
        estimates = {cell.run.title: overview.estimates.get(cell.run.title) for cell in cells}
        if cells:
            try:
                with chosen, _display(estimates, chosen.lanes) as display:
                    _look_again(cells, chosen, display, found)
            except KeyboardInterrupt:
                info(f"{len(found)} of {len(overview.done) + len(overview.to_do)} cells have ended")
                raise
    return found


def _look_again(
    cells: Sequence[PlannedRun], executor: Executor, display: Display, found: dict[str, Outcome]
) -> None:
    """Run cells; pass over those that other processes work on, until these have ended too.

    Args:
        cells: to run.
        executor: for them.
        display: is told how they end.
        found: gets how each has ended, by its title.
    """
    waiting = list(cells)
    while waiting:
        busy = []
        for cell, outcome in executor.run(waiting, display):
            if outcome is None:
                display.pass_over(cell.run)
                busy.append(cell)
            else:
                display.end(cell.run, outcome)
                found[cell.run.title] = outcome
        if len(busy) == len(waiting):
            display.wait([cell.run for cell in busy])
            sleep(LOOK_AGAIN)
        waiting = busy


@contextlib.contextmanager
def _display(estimates: dict[str, float | None], lanes: int | None) -> Iterator[Display]:
    """Return the display for a terminal, or for a log."""
    lanes = lanes or len(estimates)
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        with Display(estimates, lanes) as display:
            yield display
        return
    try:
        from pe_bench.grid.live import LiveDisplay
    except ImportError:
        warn("plain lines only: rich is not installed, run pip install rich")
        yield Display(estimates, lanes)
        return
    with LiveDisplay(estimates, lanes) as display:
        yield display
