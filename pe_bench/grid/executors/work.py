"""Messages between a grid and its workers."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

from pe_bench.grid.spec import GridSpec
from pe_bench.runs.distributed import PhaseMessage
from pe_bench.runs.outcome import Outcome
from pe_bench.runs.run import Run
from pe_bench.system.console import Bar
from pe_bench.train.process_group import ProcessGroup


class RunSpec(NamedTuple):
    """A run of the grid: two specs as the user wrote them, a seed, the name of the run's folder.

    The name contains digests of code and data. If a worker computes another name, it has another
    version of the code.
    """

    encoding: str
    task: str
    seed: int
    folder: str

    @classmethod
    def of(cls, run: Run) -> "RunSpec":
        """Return the spec of a run."""
        return cls(run.encoding.given, run.resolved.given, run.seed, run.folder.name)


@dataclass(frozen=True)
class Work:
    """The remaining runs of a grid. All workers get the same list, and locks distribute the runs.

    Attributes:
        spec: the grid.
        runs: the remaining runs.
        threads: number of threads of each worker.
        since: start of the command; a run that has failed after it is not tried again.
        cwd: working directory, for relative paths.
    """

    spec: GridSpec
    runs: tuple[RunSpec, ...]
    threads: int
    since: datetime
    cwd: Path


@dataclass(frozen=True)
class RankWork:
    """A training phase of a run, for a process that trains it together with others.

    Attributes:
        work: the work that contains the run.
        index: index of the run.
        phase: the phase.
        group: the process group, with the rank of the process.
        port: port at which the processes find each other.
    """

    work: Work
    index: int
    phase: PhaseMessage
    group: ProcessGroup
    port: int


@dataclass(frozen=True)
class RankWorkEnded:
    """Message of a process that has trained its phase, or has failed for a reason."""

    reason: str = ""


@dataclass(frozen=True)
class Line:
    """A line that a worker prints."""

    text: str
    error: bool


@dataclass(frozen=True)
class Event:
    """A message of a worker about a run.

    Attributes:
        index: index of the run.
        what: a line, a progress bar, the beginning, or the outcome of the run.
    """

    index: int
    what: Line | Bar | Literal["begins"] | Outcome


@dataclass(frozen=True)
class SavingFailed:
    """Message that a result could not be saved, so that no worker can continue."""

    sentence: str


FINISHED: Literal["finished"] = "finished"
"""Message of a worker that has tried every run."""

Answer = Event | SavingFailed | RankWorkEnded | Literal["finished"]
