"""Console output. A closed pipe, a full disk or an unknown character never stops a run."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, Self, TextIO

from pe_bench.system.text import printable

EVERY = 10.0  # seconds between two progress lines of a bar


class Bar:
    """Progress bar for a known number of steps, a context manager that closes the bar.

    Attributes:
        title: title of the work.
        unit: name of a unit.
        total: number of units.
        done: number of finished units.
        note: additional text, such as the loss.
        closed: whether the bar has ended.
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
        """Seconds since the bar was created."""
        return time.monotonic() - self.started

    @property
    def seconds_left(self) -> float | None:
        """Estimated remaining seconds at the current speed; None before the first unit."""
        done = self.done - self._initial
        return self.seconds / done * (self.total - self.done) if done else None

    def update(self, units: int = 1) -> None:
        """Add finished units."""
        self.done += units
        _view.moved(self)

    def close(self) -> None:
        """End the bar, even if units are left."""
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
        """Restore a bar from another process, whose clock may differ."""
        vars(self).update(state)
        self.shown = self.started = time.monotonic() - state["started"]


class View:
    """Output of lines and progress bars as lines on standard output and standard error.

    Args:
        prefix: prefix of each line, to distinguish parallel work.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    def line(self, text: str, *, error: bool = False) -> None:
        """Print a line immediately."""
        write(f"{self.prefix}{text}\n", sys.stderr if error else sys.stdout)

    def moved(self, bar: Bar) -> None:
        """Show the progress of a bar, at most every ten seconds."""
        now = time.monotonic()
        if now - bar.shown >= EVERY and bar.done < bar.total:
            bar.shown = now
            left = bar.seconds_left
            more = "" if left is None else f"{show_clock(left)} left"
            self._show(bar, more)

    def closed(self, bar: Bar) -> None:
        """Show the end of a bar that has a note or took at least ten seconds."""
        if bar.note or bar.seconds >= EVERY:
            self._show(bar, f"in {show_clock(bar.seconds)}")

    def _show(self, bar: Bar, more: str) -> None:
        parts = [f"{bar.done}/{bar.total} {bar.unit}s", bar.note, more]
        self.line(f"{bar.title}: {', '.join(filter(None, parts))}", error=True)


_view = View()


@contextlib.contextmanager
def showing(view: View) -> Iterator[None]:
    """Send lines and bars to another view within the context."""
    global _view
    before, _view = _view, view
    try:
        yield
    finally:
        _view = before


def progress(title: str, total: int, *, initial: int = 0, unit: str = "step") -> Bar:
    """Return a progress bar that the current view shows."""
    return Bar(title, total, initial, unit)


def info(line: str) -> None:
    """Print a line on standard output immediately."""
    _view.line(printable(line))


def warn(line: str) -> str:
    """Print a warning on standard error immediately, and return it."""
    _view.line(f"pe-bench: {printable(line)}", error=True)
    return line


def show_clock(seconds: float) -> str:
    """Format seconds as on a clock: 0:09, 12:30, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def show_duration(seconds: float) -> str:
    """Return a duration in words: 40 s, 12 min, 3 h 20 min, 2 d 4 h."""
    if seconds < 90:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


def show_age(seconds: float) -> str:
    """Format a long time in its largest unit: 3 days, 1 hour."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "less than a minute"


def silence(stream: TextIO) -> None:
    """Redirect a stream to /dev/null."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def write(text: str, stream: TextIO) -> None:
    """Write text to a stream immediately. If the stream fails, later text is discarded.

    A character that the encoding of the stream does not have becomes a question mark.
    """
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError as error:
            stream.write(text.encode(error.encoding, "replace").decode(error.encoding))
        stream.flush()
    except BrokenPipeError:  # for example, `pe-bench run ... | head`
        silence(stream)
    except OSError as error:  # for example, a full disk
        silence(stream)
        if stream is sys.stdout:
            warn(f"cannot write to standard output ({error.strerror}): further lines are lost")
