"""Lines and progress for the person who is watching; work goes on when nobody is."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, Self, TextIO

EVERY = 10.0  # seconds between two lines on the progress of the same work


class Bar:
    """Progress through a known number of steps, a context manager that closes it.

    Attributes:
        title: of the work.
        unit: what is counted.
        total: number of units.
        done: units that are done.
        note: what else there is to say, such as the loss.
        closed: whether it has ended.
    """

    def __init__(self, title: str, total: int, initial: int = 0, unit: str = "step") -> None:
        self.title = title
        self.total = total
        self.done = initial
        self.unit = unit
        self.note = ""
        self.shown = self.started = time.monotonic()
        self._initial = initial
        self.closed = False

    @property
    def seconds(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self.started

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the rest takes at the present speed, None before the first unit."""
        done = self.done - self._initial
        return self.seconds / done * (self.total - self.done) if done else None

    def update(self, units: int = 1) -> None:
        """Count units that are done."""
        self.done += units
        _view.moved(self)

    def close(self) -> None:
        """End, also where not all is done."""
        if not self.closed:
            self.closed = True
            _view.closed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "started": self.seconds}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a bar of another process, whose clock may be another one."""
        vars(self).update(state)
        self.shown = self.started = time.monotonic() - state["started"]


class View:
    """Where lines and bars go: as lines to standard output and standard error.

    Args:
        prefix: of each line, for work that goes on beside other work.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    def line(self, text: str, *, error: bool = False) -> None:
        """Show a line at once."""
        _print(f"{self.prefix}{text}", sys.stderr if error else sys.stdout)

    def moved(self, bar: Bar) -> None:
        """Show that a bar has moved, at most every ten seconds."""
        now = time.monotonic()
        if now - bar.shown >= EVERY and bar.done < bar.total:
            bar.shown = now
            left = bar.seconds_left
            more = "" if left is None else f"{show_clock(left)} left"
            self._show(bar, more)

    def closed(self, bar: Bar) -> None:
        """Show the end of a bar that has something to say or took a while."""
        if bar.note or bar.seconds >= EVERY:
            self._show(bar, f"in {show_clock(bar.seconds)}")

    def _show(self, bar: Bar, more: str) -> None:
        parts = [f"{bar.done}/{bar.total} {bar.unit}s", bar.note, more]
        self.line(f"{bar.title}: {', '.join(filter(None, parts))}", error=True)


_view = View()


@contextlib.contextmanager
def showing(view: View) -> Iterator[None]:
    """Send lines and bars to another view meanwhile."""
    global _view
    before, _view = _view, view
    try:
        yield
    finally:
        _view = before


def progress(title: str, total: int, *, initial: int = 0, unit: str = "step") -> Bar:
    """Return a bar, shown where the present view shows such."""
    return Bar(title, total, initial, unit)


def info(line: str) -> None:
    """Print a line on standard output at once."""
    _view.line(line)


def warn(line: str) -> str:
    """Print a sentence about what the user can mend on standard error at once; return it."""
    _view.line(f"pe-bench: {line}", error=True)
    return line


def show_clock(seconds: float) -> str:
    """Return a time as clocks show it: 0:09, 12:30, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def silence(stream: TextIO) -> None:
    """Send what is written to a stream nowhere from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _print(line: str, stream: TextIO) -> None:
    try:
        print(line, file=stream, flush=True)
    except BrokenPipeError:  # such as that of `pe-bench run ... | head`
        silence(stream)
