"""A run of a grid's plan."""

from dataclasses import dataclass

from pe_bench.runs.run import Run


@dataclass(frozen=True)
class PlannedRun:
    """A run of the plan.

    Attributes:
        run: the run.
        skip: reason why the encoding does not support the task; None if it does.
        named: whether the user named the encoding. An encoding that is only included in "all" may
            be skipped.
    """

    run: Run
    skip: str | None
    named: bool
