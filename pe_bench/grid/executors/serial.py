"""Execution of one run after the other, in this process."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from pe_bench.errors import InputError
from pe_bench.grid.display import Display
from pe_bench.grid.executors.executor import Ended, Executor
from pe_bench.grid.planned_run import PlannedRun
from pe_bench.runs.baselines import write_baselines
from pe_bench.runs.outcome import Busy, Outcome
from pe_bench.runs.run import Run, do_nothing
from pe_bench.system.console import showing, warn
from pe_bench.system.time_limit import TimeLimit
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

    def run(self, runs: Sequence[PlannedRun], display: Display) -> Iterator[Ended]:
        for planned in runs:
            with showing(display.view(planned.run)), using_threads(self.threads):
                outcome = self._execute(planned.run, display)
            yield planned, outcome

    def _execute(self, run: Run, display: Display) -> Outcome | None:
        try:
            return execute(run, lambda: display.begin(run), self.started, self.timeout)
        except Busy:
            return None


def execute(
    run: Run,
    begun: Callable[[], None] = do_nothing,
    since: datetime | None = None,
    timeout: float | None = None,
) -> Outcome:
    """Execute a run, and write the baselines of its task.

    Args:
        run: the run.
        begun: called when the work begins; not called for a finished run.
        since: if the run failed in another process after this time, it is not tried again.
        timeout: limit of the run in minutes; None: no limit.

    Raises:
        Busy: another process is working on the run.
        SavingError: a result could not be written.
    """
    if timeout is not None:
        run = replace(run, limit=TimeLimit(timeout))
    try:
        outcome = run.execute(begun=begun, since=since)
    except InputError as error:
        return Outcome(run.title, "failed", (warn(f"{run.title}: {error}"),))
    if outcome.status == "done":
        write_baselines(run.resolved, run.results)
    return outcome
