"""Execution of one run, in any process."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from pe_bench.errors import InputError
from pe_bench.runs.baselines import write_baselines
from pe_bench.runs.outcome import Outcome
from pe_bench.runs.run import Run
from pe_bench.system.console import warn
from pe_bench.system.time_limit import TimeLimit


def execute_run(
    run: Run,
    on_begin: Callable[[], None] | None = None,
    since: datetime | None = None,
    timeout: float | None = None,
) -> Outcome:
    """Execute a run, and write the baselines of its task.

    Args:
        run: the run.
        on_begin: called when the work begins; not called for a finished run.
        since: if the run failed in another process after this time, it is not tried again.
        timeout: limit of the run in minutes; None: no limit.

    Raises:
        Busy: another process is working on the run.
        SavingError: a result could not be written.
    """
    if timeout is not None:
        run = replace(run, limit=TimeLimit(timeout))
    try:
        outcome = run.execute(on_begin=on_begin, since=since)
    except InputError as error:
        return Outcome(run.title, "failed", (warn(f"{run.title}: {error}"),))
    if outcome.status == "done":
        write_baselines(run.resolved, run.results)
    return outcome
