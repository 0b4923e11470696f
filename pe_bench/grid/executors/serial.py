"""Execution of one run after the other, in this process."""

import contextlib
import functools
from collections.abc import Iterator, Sequence

from pe_bench.grid.display import Display
from pe_bench.grid.executors.execute_run import execute_run
from pe_bench.grid.executors.executor import Executor, Tried
from pe_bench.grid.planned_run import PlannedRun
from pe_bench.runs.outcome import Busy
from pe_bench.system.console import showing
from pe_bench.train.threads import using_threads


class Serial(Executor):
    """Executor of one run after the other in this process.

    Args:
        threads: number of threads of each run.
        timeout: limit of a run in minutes; None: no limit.
    """

    def __init__(self, threads: int, timeout: float | None = None) -> None:
        super().__init__()
        self.threads = threads
        self.timeout = timeout

    def run(self, runs: Sequence[PlannedRun], display: Display) -> Iterator[Tried]:
        for planned in runs:
            run = planned.run
            on_begin = functools.partial(display.begin, run)
            outcome = None
            with (
                showing(display.view(run)),
                using_threads(self.threads),
                contextlib.suppress(Busy),
            ):
                outcome = execute_run(run, on_begin, self.started, self.timeout)
            yield planned, outcome
