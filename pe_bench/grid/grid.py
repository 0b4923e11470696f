"""The grid: plan the runs, then execute them. A failure does not stop the other runs."""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import sleep

import torch

from pe_bench.errors import CRASHES, InputError
from pe_bench.grid.checkpoint_time import describe_work, uses_checkpoint
from pe_bench.grid.cost import describe_training_cost
from pe_bench.grid.display import Display
from pe_bench.grid.division import find_division
from pe_bench.grid.estimate import Estimates
from pe_bench.grid.executors.execute_run import execute_run
from pe_bench.grid.executors.executor import Executor
from pe_bench.grid.executors.serial import Serial
from pe_bench.grid.outdated import describe_changed_code
from pe_bench.grid.overview import Overview
from pe_bench.grid.plan import make_plan
from pe_bench.grid.planned_run import PlannedRun
from pe_bench.grid.shard import Shard
from pe_bench.grid.spec import GridSpec
from pe_bench.results.layout import RUN_LOCK
from pe_bench.results.record import RunRecord
from pe_bench.results.store import find_records, find_timed, key_of
from pe_bench.runs.outcome import Busy, Outcome
from pe_bench.runs.run import Run
from pe_bench.system.cache_entries import using
from pe_bench.system.console import info, warn
from pe_bench.system.files import SameFolder
from pe_bench.system.locks import tell_holder
from pe_bench.train.threads import threads_of_run

RETRY_SECONDS = 2.0
"""Seconds until a run that another process works on is tried again."""

Describe = Callable[[Sequence[PlannedRun], Sequence[RunRecord]], list[str]]
"""Returns lines on a plan, given its runs and the records of earlier runs."""


@dataclass(frozen=True)
class PreparedGrid:
    """A grid whose plan has been shown.

    Attributes:
        spec: the grid.
        executor: executes its runs.
        runs: the runs of this command's shard.
        overview: the runs that are done, to do and skipped.
        outcomes: tasks and subsets that cannot be run.
        found: outcomes of the runs so far, by title.
    """

    spec: GridSpec
    executor: Executor
    runs: Sequence[PlannedRun]
    overview: Overview
    outcomes: Sequence[Outcome]
    found: dict[str, Outcome] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Estimated seconds of the runs that are similar to earlier runs."""
        return self.overview.seconds(self.executor.parallel_runs)

    def run(self) -> list[Outcome]:
        """Execute the runs; failures are recorded.

        Runs that measure time are last, one by one on an idle machine.

        Returns:
            One outcome per run, and one per task or subset whose data are missing.

        Raises:
            SavingError: a result could not be written, or the results folder was renamed.
        """
        for planned in self.overview.skipped:
            assert planned.skip is not None
            self.found[planned.run.title] = planned.run.skip(planned.skip, complain=planned.named)
        folder = SameFolder(self.spec.results)
        others: list[PlannedRun] = []
        timed: list[PlannedRun] = []
        for planned in self.overview.finished:
            try:
                self.found[planned.run.title] = execute_run(planned.run)
            except Busy:
                others.append(planned)
        for planned in self.overview.to_do:
            (timed if planned.run.resolved.task.measures_time else others).append(planned)
        alone = Serial(torch.get_num_threads(), self.spec.execution.timeout)
        self._execute(self.executor, others, folder)
        self._execute(alone, timed, folder)
        return [*self.outcomes, *(self.found[planned.run.title] for planned in self.runs)]

    def _execute(self, executor: Executor, runs: Sequence[PlannedRun], folder: SameFolder) -> None:
        """Execute runs with a display, and wait for those that other processes work on."""
        if not runs:
            return
        titles = [planned.run.title for planned in runs]
        estimates = {title: self.overview.estimates.get(title) for title in titles}
        try:
            with executor, _display(estimates, executor.parallel_runs) as display:
                waiting = runs
                while waiting:
                    busy = self._try_each(executor, waiting, display, folder)
                    if len(busy) == len(waiting):
                        display.wait([planned.run for planned in busy])
                        sleep(RETRY_SECONDS)
                    waiting = busy
        except KeyboardInterrupt:
            planned_runs = [*self.overview.finished, *self.overview.to_do]
            ended = sum(planned.run.title in self.found for planned in planned_runs)
            info(f"{ended} of {len(planned_runs)} runs ended")
            raise

    def _try_each(
        self,
        executor: Executor,
        runs: Sequence[PlannedRun],
        display: Display,
        folder: SameFolder,
    ) -> list[PlannedRun]:
        """Execute runs, and return those that other processes work on."""
        busy = []
        for planned, outcome in executor.run(runs, display):
            if outcome is None:
                display.pass_over(planned.run)
                tell_holder(planned.run.folder / RUN_LOCK)
                busy.append(planned)
            else:
                display.end(planned.run, outcome)
                self.found[planned.run.title] = outcome
                folder.check()
        return busy


def run_grid(spec: GridSpec, describe: Describe | None = None) -> list[Outcome]:
    """Show the plan of a grid and execute its runs; failures are recorded.

    Args:
        spec: the grid.
        describe: returns further lines of the plan.

    Returns:
        One outcome per run, and one per task or subset whose data are missing; no outcomes after a
        dry run.

    Raises:
        InputErrors: bad input, before anything is trained.
        SavingError: a result could not be written.
    """
    if spec.execution.dry_run:
        prepare_grid(spec, describe)
        return []
    with using(spec.options.cache):
        return prepare_grid(spec, describe).run()


def prepare_grid(spec: GridSpec, describe: Describe | None = None) -> PreparedGrid:
    """Show the plan of a grid; a dry run shows every run.

    Args:
        spec: the grid.
        describe: returns further lines of the plan.

    Raises:
        InputErrors: bad input.
    """
    execution = spec.execution
    executor = _make_executor(spec)
    plan = make_plan(spec)
    folders = [spec.results, *spec.earlier_results]
    if execution.shard:
        folders += spec.committed
    records = find_records(*folders)
    runs: Sequence[PlannedRun] = plan.runs
    if execution.shard:
        runs = _take_shard(spec, execution.shard, plan.runs, records)
    if execution.resolved_strategy == "fsdp":
        _check_fsdp_weights([planned for planned in runs if planned.skip is None])
    copied: set[tuple[str, str, str]] = set()
    if execution.dry_run and spec.copies_earlier:
        earlier = find_records(*spec.earlier_results)
        copied = {key_of(record) for record in earlier if record.status == "done"}
    estimates = Estimates(find_timed(records, spec.results), spec.device)
    overview = Overview.of(runs, estimates, copied)
    lines = overview.lines(executor.parallel_runs)
    lines += describe_changed_code(overview.to_do, records)
    if execution.dry_run:
        lines = overview.runs() + lines
    if describe and overview.to_do:
        lines += describe([*overview.finished, *overview.to_do], records)
    for line in lines:
        info(line)
    _describe_work(spec, executor, overview.unknown)
    return PreparedGrid(spec, executor, runs, overview, plan.outcomes)


def _describe_work(spec: GridSpec, executor: Executor, runs: Sequence[Run]) -> None:
    """Print the operations and the time of runs without an estimate from earlier runs."""
    given = [run for run in runs if uses_checkpoint(run)]
    trained = [run for run in runs if not uses_checkpoint(run)]
    parallel_runs = executor.parallel_runs or 1
    with contextlib.suppress(*CRASHES):  # the runs report their errors
        threads = threads_of_run(spec.options.preset, spec.device, alone=parallel_runs == 1)
        line = describe_work(given, threads, parallel_runs)
        if line:
            info(line)
        if trained and spec.options.preset != "quick":
            info(describe_training_cost(trained))


def _take_shard(
    spec: GridSpec, shard: Shard, runs: Sequence[PlannedRun], records: Sequence[RunRecord]
) -> list[PlannedRun]:
    """Return the runs of a shard, and print how the grid is divided."""
    estimates = Estimates(records, None)
    store = not spec.execution.dry_run
    division = find_division(runs, shard.count, estimates, spec.results, store=store)
    info(division.describe(shard, runs))
    return division.runs_of(shard, runs)


def _make_executor(spec: GridSpec) -> Executor:
    """Return the executor of the runs.

    Raises:
        InputError: the executor is not available.
    """
    execution = spec.execution
    _check_devices(execution.devices, spec.device)
    has_workers = execution.jobs is not None or execution.devices > 1
    alone = execution.executor == "local" and not has_workers
    threads = threads_of_run(spec.options.preset, spec.device, alone=alone)
    if execution.executor == "ray":
        from pe_bench.grid.executors.cluster import Cluster

        return Cluster(spec, threads)
    if has_workers:
        from pe_bench.grid.executors.processes import Processes

        return Processes(spec, threads)
    return Serial(threads, execution.timeout)


def _check_devices(count: int, device: str) -> None:
    """Check that there is a GPU for each of `count` processes that train together.

    Raises:
        InputError: there are fewer.
    """
    there = torch.cuda.device_count() if device == "cuda" else count
    if count > there:
        raise InputError(
            f"--devices {count} needs {count} GPUs, but torch finds {there}: use --devices {there}"
        )


def _check_fsdp_weights(runs: Sequence[PlannedRun]) -> None:
    """Check that fsdp can shard every weight.

    Raises:
        InputError: an encoding has a weight without dimensions.
    """
    for planned in runs:
        model = planned.run.resolved.make_empty(planned.run.encoding)
        if any(parameter.dim() == 0 for parameter in model.parameters()):
            raise InputError(
                f"{planned.run.encoding.label} has weights that are single numbers, which "
                "--strategy fsdp cannot shard: use --strategy ddp"
            )


def _display(estimates: dict[str, float | None], parallel_runs: int | None) -> Display:
    """Return the display for a terminal, or for a log."""
    parallel_runs = parallel_runs or len(estimates)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        try:
            from pe_bench.grid.live import LiveDisplay

            return LiveDisplay(estimates, parallel_runs)
        except ImportError:
            warn("plain lines only: rich is not installed, run pip install rich")
    return Display(estimates, parallel_runs)
