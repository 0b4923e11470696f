"""The display of a grid in logs and pipes: plain lines."""

import time
from collections.abc import Mapping, Sequence
from typing import Self

from pe_bench.runs.outcome import Outcome
from pe_bench.runs.run import Run
from pe_bench.system.console import View, info, show_clock, show_duration


class Display:
    """Printed lines about runs that begin and end, with the estimated time of the remaining runs.

    Args:
        estimates: estimated seconds of each run, by its title; None: unknown.
        parallel_runs: number of runs at the same time.

    Attributes:
        remaining: estimated seconds of the runs that have not ended, by title.
        running: start times of the running runs, by title.
        failed: titles of failed runs, each with the cause.
    """

    def __init__(self, estimates: Mapping[str, float | None], parallel_runs: int = 1) -> None:
        self.remaining = dict(estimates)
        self.total = len(estimates)
        self.parallel_runs = parallel_runs
        self.running: dict[str, float] = {}
        self.failed: list[str] = []
        self.ended = 0
        self._begun: set[str] = set()
        self._took: list[float] = []
        self._passed_over: set[str] = set()
        self._waits = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def view(self, run: Run) -> View:
        """Return the view that shows lines and progress bars of a run."""
        return View("" if self.parallel_runs == 1 else f"{run.title} | ")

    def begin(self, run: Run) -> None:
        """Print that a run begins; called again if its process was replaced."""
        left = self.seconds_left
        self.running[run.title] = time.monotonic()
        self._begun.add(run.title)
        about = "" if left is None else f", about {show_duration(left)} left"
        self.say(f"[{len(self._begun)}/{self.total}] {run.title}{about}")

    def end(self, run: Run, outcome: Outcome) -> None:
        """Print the outcome of a run."""
        self.ended += 1
        self.remaining.pop(run.title, None)
        began = self.running.pop(run.title, None)
        if outcome.status == "failed":  # the run itself has printed the failure
            self.failed.append(f"{run.title}: {outcome.cause or ' '.join(outcome.complaints)}")
        elif began is None:
            self.say(f"{run.title}: done by another process")
        if began is not None:
            seconds = time.monotonic() - began
            self._took.append(seconds)
            if outcome.status == "done":
                self.say(f"{run.title}: done in {show_clock(seconds)}")

    def pass_over(self, run: Run) -> None:
        """Print that another process works on a run, which is tried again later."""
        if run.title not in self._passed_over:
            self._passed_over.add(run.title)
            self.say(f"{run.title}: another process is working on it, passed over for now")

    def wait(self, runs: Sequence[Run]) -> None:
        """Print that other processes work on all remaining runs."""
        titles = "; ".join(run.title for run in runs)
        if titles != self._waits:
            self._waits = titles
            self.say(f"waiting for another process: {titles}")

    def say(self, line: str) -> None:
        """Print a line about the progress of the grid."""
        info(line)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the last run ends; None: too little is known.

        A run without an estimate counts as the mean of the runs that have ended.
        """
        mean = sum(self._took) / len(self._took) if self._took else None
        now = time.monotonic()
        seconds = 0.0
        longest = 0.0
        for title, estimate in list(self.remaining.items()):  # a copy: another thread may draw
            expected = mean if estimate is None else estimate
            if expected is None:
                return None
            spent = now - self.running.get(title, now)
            rest = max(0.0, expected - spent)
            seconds += rest
            longest = max(longest, rest)
        return max(longest, seconds / self.parallel_runs)
