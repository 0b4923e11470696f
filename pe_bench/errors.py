"""The exceptions that the command line answers with a sentence, and the words for all others."""

import difflib
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).parent
PLUGINS = ("encodings", "tasks")
LIBRARIES = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]


CRASHES = (Exception, SystemExit)
"""What the code of a plugin may raise: its `sys.exit()` must not end a grid."""


class InputError(ValueError):
    """Bad input. Its message is one sentence: what is wrong, then what would be right.

    The command line prints it and exits with code 2.
    """


class DataError(InputError):
    """Data that are missing or damaged. They hurt one task; the rest of a grid is run."""


class InputErrors(InputError):
    """Several sentences about bad input.

    Args:
        problems: the sentences.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class SavingError(Exception):
    """A result could not be saved. It stops everything: to go on would be to lose work."""


def suggest(wrong: str, right: list[str]) -> str:
    """Return " (did you mean 'x'?)" where something close exists, else an empty string."""
    close = difflib.get_close_matches(wrong, right, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


def describe_error(error: BaseException) -> str:
    """Return type, message and place of an exception in one line.

    The place is the last line of a plugin that was running, or of the engine if no plugin was:
    where torch gave up says little.
    """
    message = " ".join(str(error).split())
    words = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = place_of(error)
    return f"{words} ({place})" if place else words


def place_of(error: BaseException) -> str:
    """Return the "file:line" of an exception as `describe_error` shows it, "" if unknown."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_library(f.filename)]
    of_plugins = [frame for frame in frames if not _is_engine(frame.filename)]
    chosen = (of_plugins or frames)[-1:]
    return "".join(f"{frame.filename}:{frame.lineno}" for frame in chosen)


def is_library(file: str) -> bool:
    """Tell whether a Python file is of the interpreter or installed, and not of pe-bench."""
    path = Path(file)
    if path.is_relative_to(PACKAGE):  # which may be installed among the libraries
        return False
    if file.startswith("<") or "site-packages" in path.parts:
        return True
    return any(path.is_relative_to(place) for place in LIBRARIES)


def _is_engine(file: str) -> bool:
    path = Path(file)
    if not path.is_relative_to(PACKAGE):
        return False
    return path.relative_to(PACKAGE).parts[0] not in PLUGINS
