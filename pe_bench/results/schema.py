"""The results on disk: schema, atomic writes, and everything loaded into one table.

One directory per run, `runs/<task>/<encoding>/seed<seed>-<hash>/`:

    subsets/<name>.csv   rows of each part, written when the part is done
    journal/<name>.jsonl what an unfinished part has so far, item by item (predictions stay here)
    rows.csv             all rows of the run
    run.json             how they came about; written last: its status "done" means done
"""

import math
from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True)
class Headline:
    """The one number by which a table is sorted: a metric of a subset, and which way is better."""

    metric: str
    subset: str
    higher_is_better: bool


@dataclass(frozen=True)
class Figure:
    """A picture that the report draws of some rows, besides that of the shown metrics.

    Attributes:
        kind: of each encoding, in one picture for all and in one for each. "gallery": the metric
            against `aux`, a number, a curve for each length; "heatmap": the metric, a percentage,
            for each length (upwards) and `aux` (to the right).
        subset, metric: which rows.
        title: what is to be seen.
        value: label of the metric, with its unit.
        trained: up to where a heatmap's `aux` and length were trained; None: not such an axis.
    """

    kind: Literal["gallery", "heatmap"]
    subset: str
    metric: str
    title: str
    value: str
    trained: tuple[float | None, float | None] = (None, None)
