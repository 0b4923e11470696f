"""Work on the runs of a grid in this process, while others work on the same results folder."""

import os
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from pe_bench.errors import CRASHES, ChangedError, InputError, SavingError, describe_error
from pe_bench.grid.executors.execute_run import execute_run
from pe_bench.grid.executors.rank_processes import RankProcesses, join
from pe_bench.grid.executors.work import (
    FINISHED,
    Answer,
    Event,
    Line,
    RankWork,
    RankWorkEnded,
    SavingFailed,
    Work,
)
from pe_bench.results.labels import run_title
from pe_bench.runs.factory import RunFactory
from pe_bench.runs.outcome import Busy, Outcome
from pe_bench.runs.run import Run
from pe_bench.system import environment
from pe_bench.system.console import Bar, View, showing, warn
from pe_bench.train.threads import using_threads

UPDATE_SECONDS = 0.3  # seconds between two messages about the same progress bar


class Worker:
    """Worker that executes the runs that no other worker is working on.

    Args:
        send: function that receives the messages about the runs.
    """

    def __init__(self, send: Callable[[Answer], None]) -> None:
        self.send = send
        self.factories: dict[str, RunFactory] = {}
        self.ranks: RankProcesses | None = None
        self.index = 0  # index of the run that lines are about
        self.begun = False
        self.early: list[Line] = []  # printed before the run has begun

    def handle(self, message: Work | RankWork) -> None:
        """Do the work in a message of another process."""
        if isinstance(message, RankWork):
            self.send(self.train_rank(message))
        else:
            self.work(message)

    def work(self, work: Work) -> None:
        """Try every run once; skip a run that another process works on."""
        for index in range(len(work.runs)):
            self.index = index
            self.begun = False
            self.early = []
            try:
                outcome = self._run(work)
            except Busy:
                continue
            except SavingError as error:
                self.send(SavingFailed(str(error)))
                return
            for line in self.early:
                self.send(Event(index, line))
            self.send(Event(index, outcome))
        self.send(FINISHED)

    def train_rank(self, message: RankWork) -> RankWorkEnded:
        """Train a phase together with the first rank."""
        try:
            with showing(_Silent()), using_threads(message.work.threads):
                run = self.prepare(message.work, message.index)
                join(message.group, run.device, message.port)
                run.phases.follow(run.resolved, message.phase, message.group)
        except CRASHES as error:
            return RankWorkEnded(describe_error(error))
        return RankWorkEnded()

    def print_line(self, text: str, error: bool) -> None:
        """Pass on a line, or keep it until the run begins."""
        line = Line(text, error)
        if self.begun:
            self.send(Event(self.index, line))
        else:
            self.early.append(line)

    def prepare(self, work: Work, number: int) -> Run:
        """Return the run with a number in the work.

        Raises:
            InputError: the run differs from the run of the command.
        """
        if not work.cwd.is_dir():
            raise InputError(
                f"there is no folder {work.cwd} on this machine: all workers need the same file "
                "system"
            )
        os.chdir(work.cwd)
        spec = work.spec
        os.environ["PE_BENCH_CACHE"] = str(spec.options.cache)
        torch.set_flush_denormal(True)
        environment.set_up(spec.device)
        key = f"{spec.options} {spec.results} {spec.device}"
        if key not in self.factories:
            self.factories[key] = RunFactory(spec.options, spec.results, spec.device)
        wanted = work.runs[number]
        run = self.factories[key].make_from_specs(wanted.encoding, wanted.task, wanted.seed)
        if run.folder.name != wanted.folder:
            raise ChangedError
        return run

    def _run(self, work: Work) -> Outcome:
        """Execute the current run and return its outcome."""
        spec = work.runs[self.index]
        title = run_title(spec.encoding, spec.task, spec.seed)
        view = _Sending(self)
        try:
            with showing(_Silent()):  # the command has already printed these lines
                run = self.prepare(work, self.index)
            title = run.title
            execution = work.spec.execution
            if execution.devices > 1:
                if self.ranks is None:
                    self.ranks = RankProcesses(execution.devices, execution.resolved_strategy)
                self.ranks.prepare(work, self.index)
                run = replace(run, ranks=self.ranks)
            with showing(view), using_threads(work.threads):
                return execute_run(run, self._begin, work.since, execution.timeout)
        except InputError as error:
            with showing(view):
                return Outcome(title, "failed", (warn(f"{title}: {error}"),))
        except (Busy, SavingError):
            raise
        except CRASHES as error:
            return Outcome(title, "failed", cause=describe_error(error))

    def _begin(self) -> None:
        self.begun = True
        self.send(Event(self.index, "begins"))


class _Silent(View):
    def line(self, text: str, *, error: bool = False) -> None:
        pass

    def moved(self, bar: Bar) -> None:
        pass

    def closed(self, bar: Bar) -> None:
        pass


class _Sending(View):
    """View that sends the lines and bars of a worker's run to the command."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self.worker = worker

    def line(self, text: str, *, error: bool = False) -> None:
        self.worker.print_line(text, error)

    def moved(self, bar: Bar) -> None:
        now = time.monotonic()
        if now - bar.shown >= UPDATE_SECONDS:
            bar.shown = now
            self.worker.send(Event(self.worker.index, bar))

    def closed(self, bar: Bar) -> None:
        self.worker.send(Event(self.worker.index, bar))
