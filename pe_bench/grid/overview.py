"""The overview of a grid before it begins: done, remaining and skipped runs, and the time."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pe_bench.grid.estimate import Estimates
from pe_bench.grid.planned_run import PlannedRun
from pe_bench.runs.run import Run
from pe_bench.system.console import show_duration

SHOWN = 10  # maximum number of tasks, and of reasons to skip


@dataclass(frozen=True)
class Overview:
    """The runs of a plan: done, to do, and skipped.

    Attributes:
        finished: runs that an earlier call has finished.
        to_do: runs that are not finished.
        begun: titles of the runs to do that an earlier call has begun.
        died: titles of the runs to do whose process was killed, or killed itself.
        skipped: runs that are impossible for a known reason.
        estimates: estimated seconds of each run to do, by its title; None: unknown.
        used: number of earlier runs that the estimates are based on.
    """

    finished: Sequence[PlannedRun]
    to_do: Sequence[PlannedRun]
    begun: frozenset[str]
    died: Sequence[str]
    skipped: Sequence[PlannedRun]
    estimates: Mapping[str, float | None]
    used: int

    @classmethod
    def of(
        cls,
        runs: Sequence[PlannedRun],
        estimates: Estimates,
        copied: Collection[tuple[str, str, str]] = (),
    ) -> "Overview":
        """Return the overview of runs; nothing is written.

        Args:
            runs: the runs.
            estimates: estimates of their seconds.
            copied: task, encoding and name of finished runs elsewhere that count as done.
        """
        finished = []
        to_do = []
        begun = set()
        died = []
        skipped = []
        for planned in runs:
            run = planned.run
            is_finished = (
                run.files.looks_finished(run.resolved.task.subsets) and not run.missing_models()
            )
            key = (run.resolved.label, run.encoding.label, run.folder.name)
            if is_finished or key in copied:
                finished.append(planned)
                continue
            if planned.skip is not None:
                skipped.append(planned)
                continue
            to_do.append(planned)
            if run.files.has_begun():
                begun.add(run.title)
            if run.files.has_died():
                died.append(run.title)
        times = estimates.of_runs(planned.run for planned in to_do)
        titles = [planned.run.title for planned in to_do]
        seconds = dict(zip(titles, times.seconds, strict=True))
        return cls(finished, to_do, frozenset(begun), died, skipped, seconds, times.used)

    @property
    def unknown(self) -> list[Run]:
        """The runs to do without an estimate."""
        return [planned.run for planned in self.to_do if self.estimates[planned.run.title] is None]

    def lines(self, parallel_runs: int | None) -> list[str]:
        """Return the overview in words.

        Args:
            parallel_runs: number of runs at the same time; None: unknown.
        """
        parts = [f"{len(self.finished)} done", f"{len(self.to_do)} to do"]
        if self.begun:
            parts[-1] += f" ({len(self.begun)} begun)"
        if self.skipped:
            parts.append(f"{len(self.skipped)} skipped")
        count = len(self.finished) + len(self.to_do) + len(self.skipped)
        lines = [f"{count} {'run' if count == 1 else 'runs'}: {', '.join(parts)}"]
        if self.to_do:
            lines.append(f"time: {self._time(parallel_runs)}")
        if self.died:
            titles = "; ".join(self.died[:SHOWN])
            lines.append(
                f"the process ended without a message when it last executed {titles} (with "
                "--jobs N, only that run would fail, and the others would continue)"
            )
        return lines + self._reasons()

    def runs(self) -> list[str]:
        """Return a line for each run."""
        lines = [f"done     {planned.run.title}" for planned in self.finished]
        for planned in self.to_do:
            title = planned.run.title
            seconds = self.estimates[title]
            notes = ["begun"] if title in self.begun else []
            notes.append("time unknown" if seconds is None else f"about {show_duration(seconds)}")
            lines.append(f"to do    {title} ({', '.join(notes)})")
        return lines + [f"skipped  {planned.run.title}" for planned in self.skipped]

    def seconds(self, parallel_runs: int | None) -> float:
        """Return the estimated seconds of all runs that have an estimate.

        Args:
            parallel_runs: number of runs at the same time; None: unknown, one at a time is assumed.
        """
        known = [seconds for seconds in self.estimates.values() if seconds is not None]
        return max([0.0, *known, sum(known) / (parallel_runs or 1)])

    def _time(self, parallel_runs: int | None) -> str:
        unknown = sum(seconds is None for seconds in self.estimates.values())
        if unknown == len(self.estimates):
            return "unknown, because no run of such a task has finished on such a device yet"
        words = f"about {show_duration(self.seconds(parallel_runs))}"
        if parallel_runs is None:
            words += " one after the other"
        elif parallel_runs > 1:
            words += f", {parallel_runs} at once"
        runs = "1 earlier run" if self.used == 1 else f"{self.used:,} earlier runs"
        words += f", from {runs} on such a device"
        return words + (f"; and {unknown} runs without an estimate" if unknown else "")

    def _reasons(self) -> list[str]:
        """Return the reasons why runs are skipped, with one line for all seeds."""
        seeds: dict[str, int] = {}
        for planned in self.skipped:
            run = planned.run
            reason = f"skipped: {run.encoding.label} · {run.resolved.label}: {planned.skip}"
            seeds[reason] = seeds.get(reason, 0) + 1
        lines = [f"{reason} ({n} seeds)" if n > 1 else reason for reason, n in seeds.items()]
        more = len(lines) - SHOWN
        return lines[:SHOWN] + ([f"... and {more} more"] if more > 0 else [])
