"""A run of a grid's plan."""

from dataclasses import dataclass

from pe_bench.runs.run import Run


@dataclass(frozen=True)
class PlannedRun:
    """A run of the plan.

    Attributes:
        run: the run.
        skip: why the encoding does not support the task; None if it does.
        named: whether the user named the encoding. One that only "all" stands for may be skipped.
    """

    run: Run
    skip: str | None
    named: bool
