"""The interface of executors."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Self

from pe_bench.grid.display import Display
from pe_bench.grid.planned_run import PlannedRun
from pe_bench.runs.outcome import Outcome

Ended = tuple[PlannedRun, Outcome | None]
"""A planned run and how it has ended; None where another command works on it."""


class Executor:
    """Executes the runs of a grid. A context manager that ends the processes it has started.

    Attributes:
        lanes: number of runs that are executed at once; None: as many as there is room for.
        started: time of the start; a run that another process has failed at since then is not
            tried again.
    """

    lanes: int | None = 1

    def __init__(self) -> None:
        self.started = datetime.now(UTC)

    def run(self, runs: Sequence[PlannedRun], display: Display) -> Iterator[Ended]:
        """Execute runs, in any order.

        Args:
            runs: the runs.
            display: is told which runs begin, and gets their lines and bars.

        Returns:
            Each run as it ends.

        Raises:
            SavingError: a result could not be written.
        """
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass
