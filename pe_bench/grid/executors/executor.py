"""The interface of what runs the cells of a grid."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Self

from pe_bench.grid.display import Display
from pe_bench.grid.plan import PlannedRun
from pe_bench.runs.run import Outcome

Ended = tuple[PlannedRun, Outcome | None]
"""A cell and how it has ended; None where another process works on it."""


class Executor:
    """Runs cells, a context manager that ends what it has started.

    Attributes:
        lanes: number of cells that run at once; None: as many as there is room for.
        started: a failure that another process has recorded since then is not tried again.
    """

    lanes: int | None = 1

    def __init__(self) -> None:
        self.started = datetime.now(UTC)

    def run(self, cells: Sequence[PlannedRun], display: Display) -> Iterator[Ended]:
        """Run cells, in any order.

        Args:
            cells: to run.
            display: is told which cells begin, and gets their lines and bars.

        Returns:
            Each cell as it ends.

        Raises:
            SavingError: a result could not be written.
        """
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass
