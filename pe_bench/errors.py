"""Exceptions that the command line reports as a sentence, and descriptions of other exceptions."""

import contextlib
import difflib
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

PACKAGE = Path(__file__).parent
PLUGINS = ("encodings", "tasks")
LIBRARIES = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]


CRASHES = (Exception, SystemExit)
"""Exceptions that plugins may raise; `sys.exit()` in a plugin must not end a grid."""


class PluginError(Exception):
    """An exception of a plugin that is not an `Exception`, such as GeneratorExit."""


@contextlib.contextmanager
def as_exception() -> Iterator[None]:
    """Convert exceptions outside of `CRASHES` to a `PluginError`, which cannot end a grid.

    KeyboardInterrupt does not change.
    """
    try:
        yield
    except (*CRASHES, KeyboardInterrupt):
        raise
    except BaseException as error:
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise PluginError(words).with_traceback(error.__traceback__) from error


class InputError(ValueError):
    """Bad input. The message states the mistake and its correction in one sentence.

    The command line prints it and exits with code 2.
    """


class DataError(InputError):
    """Missing or damaged data. The affected task fails; the rest of a grid runs."""


class ChangedError(DataError):
    """A change of code or data since the start of the command.

    Args:
        path: the file or folder that differs, if it is known.
    """

    def __init__(self, path: Path | None = None) -> None:
        which = f" ({path} differs)" if path else ""
        super().__init__(
            f"code or data have changed since the command was started: run it again{which}"
        )


class FaultyPlugin(InputError):
    """An encoding that does not work with any task."""


class InputErrors(InputError):
    """Several input errors.

    Args:
        problems: one sentence for each error.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class TimedOut(Exception):
    """A run has exceeded its time limit. Its work is saved, and the next call continues it."""


class SavingError(Exception):
    """Failure to save a result. The program stops, since later results would be lost too."""


def suggest(wrong: str, right: list[str]) -> str:
    """Return " (did you mean 'x'?)" if there is a close match, else an empty string.

    The name of an option without its group is a close match: `--steps` for `--train.steps`.
    """
    bare = wrong.lstrip("-").replace("-", "_")
    in_group = [name for name in right if "." in name and name.rpartition(".")[2] == bare]
    close = in_group or difflib.get_close_matches(wrong, right, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


def describe_error(error: BaseException) -> str:
    """Describe an exception in one line: type, message and line.

    The line is the innermost line of a plugin in the traceback, or otherwise of the engine. Lines
    of libraries such as torch rarely explain the cause.
    """
    message = " ".join(str(error).split())
    words = f"{type(error).__name__}: {message}" if message else type(error).__name__
    line = source_line(error)
    return f"{words} ({line})" if line else words


def source_line(error: BaseException) -> str:
    """Return the "file:line" of an exception as in `describe_error`; "" if it is unknown."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_library(f.filename)]
    of_plugins = [frame for frame in frames if not is_engine(frame.filename)]
    chosen = (of_plugins or frames)[-1:]
    return "".join(f"{frame.filename}:{frame.lineno}" for frame in chosen)


def is_library(file: str) -> bool:
    """Return whether a Python file belongs to the interpreter or an installed package.

    Files of pe-bench itself do not count.
    """
    path = Path(file)
    if path.is_relative_to(PACKAGE):  # the package may be installed among the libraries
        return False
    if file.startswith("<") or "site-packages" in path.parts:
        return True
    return any(path.is_relative_to(folder) for folder in LIBRARIES)


def is_engine(file: str) -> bool:
    """Return whether a Python file belongs to pe-bench, but is not a plugin."""
    path = Path(file)
    if not path.is_relative_to(PACKAGE):
        return False
    return path.relative_to(PACKAGE).parts[0] not in PLUGINS
