"""A cell as a message to another process, and what that process says of it."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from pe_bench.runs.options import RunOptions
from pe_bench.runs.run import Outcome, Run
from pe_bench.system.console import Bar
from pe_bench.train.process_group import Group, Phase, Strategy


@dataclass(frozen=True)
class Job:
    """A cell to run, in terms that any process understands. Its numbers are no times.

    Attributes:
        options: of the command.
        encoding, task: specs as they were given.
        seed, results, device: of the run.
        threads: for computations.
        since: when the command was started.
        identity: name of the folder that the command expects the run in.
        place: working directory, which paths may be relative to.
        devices: number of processes that train the cell together.
        strategy: of theirs, see `Group`.
    """

    options: RunOptions
    encoding: str
    task: str
    seed: int
    results: Path
    device: str
    threads: int
    since: datetime
    identity: str
    place: Path
    devices: int = 1
    strategy: Strategy = "ddp"

    @classmethod
    def of(cls, run: Run, options: RunOptions, threads: int, since: datetime) -> "Job":
        """Return the job of a run."""
        return cls(
            options,
            run.encoding.given,
            run.resolved.given,
            run.seed,
            run.results,
            run.device,
            threads,
            since,
            run.folder.name,
            Path.cwd(),
        )


@dataclass(frozen=True)
class Part:
    """A process's part in a training phase of a cell, which another process leads.

    Attributes:
        job: of the cell.
        phase: the phase.
        group: the process's place.
        port: by which the processes find each other.
    """

    job: Job
    phase: Phase
    group: Group
    port: int


@dataclass(frozen=True)
class Followed:
    """A part is done; or it is not, for the reason in `trouble`."""

    trouble: str = ""


@dataclass(frozen=True)
class Line:
    """A line that work prints."""

    text: str
    error: bool


@dataclass(frozen=True)
class Unsaved:
    """A result that could not be saved, for the reason in `sentence`."""

    sentence: str


@dataclass(frozen=True)
class Passed:
    """The cell was passed over: another process works on it."""


Answer = Line | Bar | Literal["begins"] | Outcome | Passed | Unsaved | Followed
