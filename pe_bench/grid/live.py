"""The display of a grid on a terminal: it stays below the printed lines."""

import contextlib
import sys
import time
from collections.abc import Mapping
from typing import Any, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pe_bench.grid.display import Display
from pe_bench.runs.outcome import Outcome
from pe_bench.runs.run import Run
from pe_bench.system.console import Bar, View, show_clock, show_duration, showing

SHOWN = 12  # maximum number of running runs, and of failures
REFRESHES = 4  # per second


class LiveDisplay(Display):
    """Display of progress, running runs and failed runs at the bottom of a terminal.

    Args:
        estimates: estimated seconds of each run, by its title; None: unknown.
        parallel_runs: number of runs at the same time.
        stream: the terminal; None: standard error.
    """

    def __init__(
        self,
        estimates: Mapping[str, float | None],
        parallel_runs: int = 1,
        stream: TextIO | None = None,
    ) -> None:
        super().__init__(estimates, parallel_runs)
        self.runs: dict[str, Run] = {}
        self.bars: dict[str, Bar] = {}
        self.losses: dict[str, str] = {}
        self.waits = ""
        self.console = Console(file=stream, stderr=stream is None, highlight=False, markup=False)
        self._own_lines = sys.stdout.isatty()
        self._live = Live(
            get_renderable=self.render,
            console=self.console,
            refresh_per_second=REFRESHES,
            transient=True,
            redirect_stdout=self._own_lines,
            redirect_stderr=True,
        )
        self._showing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._live.start()
        self._showing.enter_context(showing(_LinesAbove(self)))
        return self

    def __exit__(self, *_: object) -> None:
        self._showing.close()
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._live.stop()

    def view(self, run: Run) -> View:
        return _RunView(self, run)

    def begin(self, run: Run) -> None:
        self.runs[run.title] = run
        self.waits = ""
        self.running[run.title] = time.monotonic()

    def end(self, run: Run, outcome: Outcome) -> None:
        super().end(run, outcome)
        self.bars.pop(run.title, None)
        self.losses.pop(run.title, None)

    def wait(self, runs: Any) -> None:
        self.waits = f"waiting for another process: {'; '.join(run.title for run in runs)}"

    def say(self, line: str) -> None:
        self.show(line)

    def show(self, line: str, *, error: bool = False) -> None:
        """Print a line above the display."""
        if error or self._own_lines:
            self.console.print(Text(line), soft_wrap=True)
        else:
            View().line(line)

    def render(self) -> RenderableType:
        """Return the current display."""
        parts: list[RenderableType] = [self._overall()]
        if self.running:
            parts.append(self._running_table())
        if self.waits:
            parts.append(Text(self.waits, overflow="ellipsis", no_wrap=True))
        for failure in self.failed[-SHOWN:]:
            parts.append(Text(f"failed: {failure}", style="red", overflow="ellipsis", no_wrap=True))
        return Group(*parts)

    def _overall(self) -> RenderableType:
        left = self.seconds_left
        time_left = "time left unknown" if left is None else f"about {show_duration(left)} left"
        failed = Text(f"{len(self.failed)} failed", style="red" if self.failed else "")
        row = Table.grid(padding=(0, 2), expand=True)
        for _ in range(4):
            row.add_column(no_wrap=True)
        row.columns[1].ratio = 1
        count = Text(f"{self.ended}/{self.total} runs", style="bold")
        row.add_row(count, ProgressBar(self.total, self.ended), failed, Text(time_left))
        return row

    def _running_table(self) -> RenderableType:
        """Return a line for each running run; a narrow terminal shortens the task first."""
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=3, min_width=12)  # encoding
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=2)  # task
        for _ in range(4):  # seed, steps, loss, time left
            table.add_column(no_wrap=True, justify="right")
        for title in list(self.running)[:SHOWN]:
            run = self.runs[title]
            bar = self.bars.get(title)
            loss = self.losses.get(title, "")
            steps = f"{bar.done}/{bar.total} {bar.unit}s" if bar else "begins"
            left = bar.seconds_left if bar else None
            clock = "" if left is None else show_clock(left)
            labels = (run.encoding.label, run.resolved.label, f"seed {run.seed}")
            table.add_row(*map(Text, (*labels, steps, loss, clock)))
        more = len(self.running) - SHOWN
        return Group(table, Text(f"and {more} more")) if more > 0 else table


class _LinesAbove(View):
    """View that shows lines above the display."""

    def __init__(self, display: LiveDisplay) -> None:
        super().__init__()
        self.display = display

    def line(self, text: str, *, error: bool = False) -> None:
        self.display.show(f"{self.prefix}{text}", error=error)


class _RunView(_LinesAbove):
    """View that shows the progress bars of a run in its line of the display."""

    def __init__(self, display: LiveDisplay, run: Run) -> None:
        super().__init__(display)
        self.title = run.title
        self.prefix = "" if display.parallel_runs == 1 else f"{run.title} | "

    def moved(self, bar: Bar) -> None:
        self.display.bars[self.title] = bar
        if bar.note:
            self.display.losses[self.title] = bar.note

    def closed(self, bar: Bar) -> None:
        self.moved(bar)
