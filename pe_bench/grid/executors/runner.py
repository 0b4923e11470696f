"""Runs cells that come as messages, in this process."""

import os
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from pe_bench.errors import CRASHES, InputError, SavingError, describe_error
from pe_bench.grid.executors.job import Answer, Followed, Job, Line, Part, Passed, Unsaved
from pe_bench.grid.executors.serial import execute
from pe_bench.grid.executors.worker_processes import Companions, join
from pe_bench.grid.plan import make_run
from pe_bench.registry import plugins
from pe_bench.runs.adaptation import adapt, go_on
from pe_bench.runs.resolve import ResolvedTask, resolve
from pe_bench.runs.run import Busy, Outcome, Run
from pe_bench.system import environment
from pe_bench.system.console import Bar, View, showing, warn
from pe_bench.train.threads import using_threads

PAUSE = 0.3  # seconds between two messages on the progress of the same work


class JobRunner:
    """Runs jobs in this process. What tasks have opened is kept for the jobs that follow.

    Args:
        tell: gets lines, bars and "begins" meanwhile.
    """

    def __init__(self, tell: Callable[[Answer], None]) -> None:
        self.tell = tell
        self.tasks: dict[str, ResolvedTask] = {}
        self.companions: Companions | None = None

    def do(self, message: Job | Part) -> Answer:
        """Return how a job has ended, or a part in one that another process leads."""
        return self.run(message) if isinstance(message, Job) else self.follow(message)

    def run(self, job: Job) -> Outcome | Passed | Unsaved:
        """Return how a job has ended."""
        view = _Telling(self.tell)
        title = f"{job.encoding} · {job.task} · seed {job.seed}"
        try:
            with showing(_Silent()):  # the command has said it already
                run = self._led(self.prepare(job), job)
            title = run.title
            with showing(view), using_threads(job.threads):
                return execute(run, lambda: self.tell("begins"), job.since)
        except Busy:
            return Passed()
        except SavingError as error:
            return Unsaved(str(error))
        except InputError as error:
            with showing(view):
                return Outcome(title, "failed", (warn(f"{title}: {error}"),))
        except CRASHES as error:
            return Outcome(title, "failed", cause=describe_error(error))

    def follow(self, part: Part) -> Followed:
        """Train a phase together with the process that leads it."""
        try:
            with showing(_Silent()), using_threads(part.job.threads):
                run = self.prepare(part.job)
                join(part.group, run.device, part.port)
                run.phases.follow(run.resolved, part.phase, part.group)
        except CRASHES as error:
            return Followed(describe_error(error))
        return Followed()

    def _led(self, run: Run, job: Job) -> Run:
        """Return a run that this process trains together with others, where its job says so."""
        if job.devices == 1:
            return run
        if self.companions is None:
            self.companions = Companions(job.devices, job.strategy)
        return replace(run, team=self.companions.of(job))

    def prepare(self, job: Job) -> Run:
        """Return the run of a job.

        Raises:
            InputError: it is not the run that the command means.
        """
        if not job.place.is_dir():
            raise InputError(
                f"there is no folder {job.place} on this machine: all that run cells need the "
                "same file system"
            )
        os.chdir(job.place)
        os.environ["PE_BENCH_CACHE"] = str(job.options.cache)
        torch.set_flush_denormal(True)
        environment.set_up(job.device)
        encoding = plugins.load("encoding", job.encoding)
        origin = plugins.load("encoding", job.options.origin) if job.options.origin else None
        key = f"{job.task} {job.options}"
        if key not in self.tasks:
            resolved = resolve(job.options, job.task)
            self.tasks[key] = go_on(resolved, origin, job.options) if origin else resolved
        if origin:
            encoding = adapt(encoding, origin, self.tasks[key])
        options = job.options
        run = make_run(options, self.tasks[key], encoding, job.seed, job.results, job.device)
        if run.folder.name != job.identity:
            raise InputError(
                "code or data have changed since the command was started: run it again"
            )
        return run


class _Silent(View):
    def line(self, text: str, *, error: bool = False) -> None:
        pass

    def moved(self, bar: Bar) -> None:
        pass

    def closed(self, bar: Bar) -> None:
        pass


class _Telling(View):
    """Sends lines and bars as messages."""

    def __init__(self, tell: Callable[[Answer], None]) -> None:
        super().__init__()
        self.tell = tell

    def line(self, text: str, *, error: bool = False) -> None:
        self.tell(Line(text, error))

    def moved(self, bar: Bar) -> None:
        now = time.monotonic()
        if now - bar.shown >= PAUSE:
            bar.shown = now
            self.tell(bar)

    def closed(self, bar: Bar) -> None:
        self.tell(bar)
