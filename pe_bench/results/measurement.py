"""The rows of results."""

import math
from dataclasses import dataclass
from typing import Literal

Status = Literal["ranked", "not_learned", "partial"]

CSV_COLUMNS = (
    "task",
    "encoding",
    "seed",
    "preset",
    "protocol",
    "data",
    "subset",
    "length",
    "second_axis",
    "metric",
    "value",
    "n",
    "stderr",
    "ci_low",
    "ci_high",
    "status",
    "run",
)


@dataclass(frozen=True)
class Measurement:
    """One measured number, a row of the results.

    Attributes:
        subset: part of the task, or a group of its evaluation points.
        metric: a name in `METRICS` or in the task's own `metrics`; percentages are in 0..100.
        value: the number.
        n: number of items.
        stderr: standard error over the items; nan if it has none.
        length: position on the task's length axis; None: not tied to a length.
        second_axis: position on the task's second axis; empty: not tied to one.
        ci_low, ci_high: ends of the 95 % interval; nan if it has none.
        status: "ranked"; "not_learned": the score in distribution is below the gate, so tables
            rank it last; "partial": a mean over some of the subsets only.
    """

    subset: str
    metric: str
    value: float
    n: int
    stderr: float = math.nan
    length: int | None = None
    second_axis: str = ""
    ci_low: float = math.nan
    ci_high: float = math.nan
    status: Status = "ranked"
