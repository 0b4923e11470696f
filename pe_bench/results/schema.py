"""The results on disk: schema, atomic writes, and everything loaded into one table.

One directory per run, `runs/<task>/<encoding>/seed<seed>-<hash>/`:

    subsets/<name>.csv   rows of each part, written when the part is done
    journal/<name>.jsonl what an unfinished part has so far, item by item (predictions stay here)
    rows.csv             all rows of the run
    run.json             how they came about; written last: its status "done" means done
"""

import math
from dataclasses import dataclass

COLUMNS = (
    *("task", "encoding", "seed", "preset", "protocol", "data"),
    *("subset", "length", "aux", "metric", "value", "n", "stderr", "run"),
)


@dataclass(frozen=True)
class Measurement:
    """One number.

    Attributes:
        subset: part of the task.
        metric: name, with percent metrics in 0..100.
        value: the number.
        n: how many items it is the mean of.
        stderr: its standard error over these items; nan where it has none.
        length: position on the task's length axis; None: not tied to a length.
        aux: position on the task's second axis.
    """

    subset: str
    metric: str
    value: float
    n: int
    stderr: float = math.nan
    length: int | None = None
    aux: str = ""
