"""Failures of a run: reported at once, kept in order, and retried only if that can help."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from pe_bench.errors import (
    CRASHES,
    InputError,
    SavingError,
    TimedOut,
    describe_error,
    source_line,
)
from pe_bench.runs.batch_stream import BatchStream
from pe_bench.system.console import info, warn
from pe_bench.system.environment import is_out_of_memory

SMALLER = "a smaller --train.micro_batch needs less memory"


class SharedFailure(Exception):
    """A phase that all subsets share has failed, for the reason in `__cause__`."""


class FirstStepFailure(Exception):
    """The training of one subset failed before its first step, for the reason in `__cause__`."""


@contextmanager
def classified(subset: str | None, batches: BatchStream) -> Iterator[None]:
    """Tell by its type which subsets the failure of a training phase concerns.

    Args:
        subset: the subset that the phase trains for; None: all subsets.
        batches: the batches of the phase.

    Raises:
        SharedFailure: the phase trains for all subsets.
        FirstStepFailure: the phase of one subset failed before its first step. A loss that is not
            finite is left as it is, since it depends on the subset's data.
    """
    try:
        yield
    except (SavingError, SharedFailure, TimedOut):
        raise
    except CRASHES as error:
        if subset is None:
            raise SharedFailure from error
        if not batches.started and not isinstance(error, FloatingPointError):
            raise FirstStepFailure from error
        raise


class Failures:
    """The failures of one run, in order.

    Args:
        title: title of the run.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.errors: list[BaseException] = []
        self.causes: list[str] = []

    def add(self, subset: str, error: BaseException) -> None:
        """Report and keep the failure of a subset; "" if it concerns all subsets.

        Of a `SharedFailure` or `FirstStepFailure`, this is its cause.
        """
        if isinstance(error, SharedFailure | FirstStepFailure):
            assert error.__cause__ is not None
            error = error.__cause__
        where = f"{subset}: " if subset else ""
        self.errors.append(error)
        if isinstance(error, InputError):
            self.causes.append(f"{where}{error}")
            warn(f"{self.title}: {self.causes[-1]}")
        elif isinstance(error, TimedOut):
            self.causes.append(f"{where}{error}")
            info(f"{self.title}: {self.causes[-1]}")
        else:
            remedy = f"; {SMALLER}" if is_out_of_memory(error) else ""
            self.causes.append(f"{where}{describe_error(error)}{remedy}")
            info(f"{self.title}: failed, {self.causes[-1]}")

    def will_recur(self, failure: SharedFailure | FirstStepFailure) -> bool:
        """Return whether the other subsets would fail in the same way."""
        error = failure.__cause__
        if isinstance(failure, SharedFailure) or is_out_of_memory(error):
            return True
        return any(_alike(error, earlier) for earlier in self.errors)

    @property
    def complaints(self) -> tuple[str, ...]:
        """Messages of user errors, one for each cause."""
        pairs = zip(self.errors, self.causes, strict=True)
        return tuple(
            f"{self.title}: {cause}" for error, cause in pairs if isinstance(error, InputError)
        )

    @property
    def cause(self) -> str | None:
        """The first failure that is not bad input, in one line."""
        for error, cause in zip(self.errors, self.causes, strict=True):
            if not isinstance(error, InputError):
                return cause
        return None

    @property
    def traceback(self) -> str | None:
        """Tracebacks of the failures that are neither bad input nor the end of the time."""
        expected = InputError | TimedOut
        crashes = [error for error in self.errors if not isinstance(error, expected)]
        return "\n".join("".join(traceback.format_exception(error)) for error in crashes) or None


def _alike(one: BaseException | None, other: BaseException) -> bool:
    return one is not None and type(one) is type(other) and source_line(one) == source_line(other)
