"""The rows of results, and where they lie on disk.

One directory per run, `runs/<task>/<encoding>/seed<seed>-<hash>/`:

    subsets/<name>.csv   rows of each subset, with its items in .parquet and its learning curves in
                         .curves.parquet; written when it is done,
    subsets/<name>.json  and this last: its cost, and checksums that say that these are whole
    journal/<name>.jsonl what an unfinished subset has so far, item by item (predictions stay here)
    rows.csv             all rows of the run
    items.parquet        the scores of single items that the rows are made of, a line for each cell
    curves.parquet       the learning curves of its trainings, a line for each point
    run.json             how they came about; written last: its status "done" means done, its
                         checksums that these files are whole (`pe_bench.system.sealed`)
"""

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
    """One number.

    Attributes:
        subset: part of the task, or a group of its cells.
        metric: a name in `METRICS` or in the task's own `metrics`; percentages are in 0..100.
        value: the number.
        n: number of items that it summarizes.
        stderr: standard error over these items; nan where it has none.
        length: position on the task's length axis; None: not tied to a length.
        second_axis: position on the task's second axis; empty: not tied to one.
        ci_low, ci_high: ends of the 95 % interval; nan where there is none.
        status: "ranked"; "not_learned": what it extrapolates from was not learned, so tables show
            it and rank it last; "partial": a mean over some of the subsets only.
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
