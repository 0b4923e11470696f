"""Outcomes of runs."""

from dataclasses import dataclass
from pathlib import Path

from pe_bench.results.record import RunStatus


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run.

    Attributes:
        title: encoding, task and seed.
        status: status of the run; also "done" if subsets are missing for a reported reason.
        complaints: messages of user errors.
        folder: folder of the run; None if there is none.
        cause: first failure other than a user error, in one line.
    """

    title: str
    status: RunStatus
    complaints: tuple[str, ...] = ()
    folder: Path | None = None
    cause: str | None = None


class Busy(Exception):
    """Another process is working on the run."""


class ProcessDied(Exception):
    """The process that worked on the run has died."""
