"""Progress bars: what is running, how far it is, how long it will take."""

import sys
from typing import Any

from tqdm import tqdm


def progress(title: str, total: int, *, initial: int = 0, unit: str = "step") -> "tqdm[Any]":
    """A bar on standard error; in a log file, a line now and then instead of a moving bar."""
    live = sys.stderr.isatty()
    return tqdm(
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
    """A line for the person who is watching."""
    print(line, flush=True)


def warn(line: str) -> str:
    """A sentence about what the user can mend, said at once, not only after hours of the rest."""
    print(f"pe-bench: {line}", file=sys.stderr, flush=True)
    return line
