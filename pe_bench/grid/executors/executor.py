"""The interface of executors."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Self

from pe_bench.grid.display import Display
from pe_bench.grid.planned_run import PlannedRun
from pe_bench.runs.outcome import Outcome

Tried = tuple[PlannedRun, Outcome | None]
"""A planned run and its outcome; None: another command works on the run."""


class Executor:
    """Executor of the runs of a grid, a context manager that ends the processes it has started.

    Attributes:
        parallel_runs: number of runs at the same time; None: limited only by the cluster.
        started: time of the start. If a run has failed in another process since then, it is not
            tried again.
    """

    parallel_runs: int | None = 1

    def __init__(self) -> None:
        self.started = datetime.now(UTC)

    def run(self, runs: Sequence[PlannedRun], display: Display) -> Iterator[Tried]:
        """Execute runs, in any order.

        Args:
            runs: the runs.
            display: shows which runs begin, and their lines and progress bars.

        Returns:
            An iterator that yields each run when it ends.

        Raises:
            SavingError: a result could not be written.
        """
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass
