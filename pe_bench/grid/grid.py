"""The grid: plan the runs, then execute them. A failure does not stop the other runs."""

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
from pe_bench.system.files import SameFolder
from pe_bench.train.threads import threads_of_run

LOOK_AGAIN = 2.0  # seconds until a run that another process works on is looked at again


@dataclass(frozen=True)
class Prepared:
    """A grid whose plan has been shown.

    Attributes:
        executor: for its runs.
        runs: of this command's share.
        overview: of these.
        outcomes: tasks and subsets that cannot be run.
    """

    executor: Executor
    runs: Sequence[PlannedRun]
    overview: Overview
    outcomes: Sequence[Outcome]

    @property
    def seconds(self) -> float:
        """Estimated time of the runs that resemble earlier ones, seconds."""
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
        how: how the runs are executed.
        like: further folders with finished runs, for estimates of time.

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
    for planned in grid.overview.skipped:
        assert planned.skip is not None
        found[planned.run.title] = planned.run.skip(planned.skip, complain=planned.named)
    alone = Serial(threads_of_run("", device, alone=True))
    found |= _work(grid.overview, grid.executor, alone, SameFolder(results))
    return [*grid.outcomes, *(found[planned.run.title] for planned in grid.runs)]


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
    """Show what there is to do; a dry run shows every run.

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
    runs = how.shard.of(plan.runs) if how.shard else plan.runs
    if how.together == "fsdp":
        _check_shards([planned for planned in runs if planned.skip is None])
    overview = Overview.of(runs, Estimates(find_records(results, *like), device))
    lines = overview.lines(executor.lanes)
    if how.dry_run:
        lines = overview.runs() + lines
    for line in lines:
        info(line)
    if overview.unknown and options.preset != "quick":
        with contextlib.suppress(*CRASHES):  # the runs report their errors
            info(describe_training(overview.unknown))
    return Prepared(executor, runs, overview, plan.outcomes)


def _executor(how: ExecutionOptions, options: RunOptions, device: str) -> Executor:
    """Return what runs the runs.

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


def _check_shards(runs: Sequence[PlannedRun]) -> None:
    """Check that every weight can be shared out.

    Raises:
        InputError: an encoding has one without dimensions.
    """
    for planned in runs:
        model = planned.run.resolved.make_empty(planned.run.encoding)
        if any(parameter.dim() == 0 for parameter in model.parameters()):
            raise InputError(
                f"{planned.run.encoding.label} has weights that are single numbers, which "
                "--strategy fsdp cannot shard: use --strategy ddp"
            )


def _work(
    overview: Overview, executor: Executor, alone: Executor, folder: SameFolder
) -> dict[str, Outcome]:
    """Run runs and return how each has ended, by its title.

    Args:
        overview: the runs.
        executor: for most of them.
        alone: for those whose numbers are times, after the others: nothing else may go on then.
        folder: of the results.
    """
    found: dict[str, Outcome] = {}
    others: list[PlannedRun] = []
    timed: list[PlannedRun] = []
    for planned in overview.done:
        try:
            found[planned.run.title] = execute(planned.run)
        except Busy:
            others.append(planned)
    for planned in overview.to_do:
        (timed if planned.run.resolved.task.measures_time else others).append(planned)
    for runs, chosen in ((others, executor), (timed, alone)):
        estimates = {
            planned.run.title: overview.estimates.get(planned.run.title) for planned in runs
        }
        if runs:
            try:
                with chosen, _display(estimates, chosen.lanes) as display:
                    _look_again(runs, chosen, display, found, folder)
            except KeyboardInterrupt:
                info(f"{len(found)} of {len(overview.done) + len(overview.to_do)} runs finished")
                raise
    return found


def _look_again(
    runs: Sequence[PlannedRun],
    executor: Executor,
    display: Display,
    found: dict[str, Outcome],
    folder: SameFolder,
) -> None:
    """Run runs; pass over those that other processes work on, until these have ended too.

    Args:
        runs: to run.
        executor: for them.
        display: is told how they end.
        found: gets how each has ended, by its title.
        folder: of the results.

    Raises:
        SavingError: a result could not be written, or the folder is not there any more.
    """
    waiting = list(runs)
    while waiting:
        busy = []
        for planned, outcome in executor.run(waiting, display):
            if outcome is None:
                display.pass_over(planned.run)
                busy.append(planned)
            else:
                display.end(planned.run, outcome)
                found[planned.run.title] = outcome
                folder.check()
        if len(busy) == len(waiting):
            display.wait([planned.run for planned in busy])
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
