"""Lines and progress bars for the person who is watching; work goes on when nobody is."""

import os
import sys
from typing import Any, TextIO

from tqdm import tqdm


class Bar(tqdm):  # type: ignore[type-arg]  # it is generic for type checkers alone
    """A progress bar that goes silent when its reader has gone."""

    def display(self, *args: Any, **more: Any) -> None:
        try:
            super().display(*args, **more)
        except BrokenPipeError:
            silence(sys.stderr)

    def close(self) -> None:
        try:
            super().close()
        except BrokenPipeError:
            silence(sys.stderr)


def progress(title: str, total: int, *, initial: int = 0, unit: str = "step") -> Bar:
    """Return a bar on standard error; in a log file it writes a line every ten seconds."""
    live = sys.stderr.isatty()
    return Bar(
        total=total,
        initial=initial,
        desc=title,
        unit=unit,
        mininterval=0.2 if live else 10,
        maxinterval=1 if live else 20,
        dynamic_ncols=live,
        leave=True,
    )


def info(line: str) -> None:
    """Print a line on standard output at once."""
    _print(line, sys.stdout)


def warn(line: str) -> str:
    """Print a sentence about what the user can mend on standard error at once; return it."""
    _print(f"pe-bench: {line}", sys.stderr)
    return line


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
