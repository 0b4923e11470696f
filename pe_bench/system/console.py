"""Lines and progress bars for the person who is watching."""

import sys
from typing import Any

from tqdm import tqdm


def progress(title: str, total: int, *, initial: int = 0, unit: str = "step") -> "tqdm[Any]":
    """Return a bar on standard error; in a log file it writes a line every ten seconds."""
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
    """Print a line on standard output at once."""
    print(line, flush=True)


def warn(line: str) -> str:
    """Print a sentence about what the user can mend on standard error at once; return it."""
    print(f"pe-bench: {line}", file=sys.stderr, flush=True)
    return line
