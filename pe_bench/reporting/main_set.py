"""The tasks of the main table and the signal used to choose them, see docs/tasks.md."""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, variance

from pe_bench.reporting.run_costs import training_seconds
from pe_bench.reporting.tables import Table


def _read_main_set() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    with (Path(__file__).parent / "main_set.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found[row["family"]] = (*found.get(row["family"], ()), row["task"])
    return found


MAIN_SET = _read_main_set()
"""The tasks of each family, from main_set.csv. docs/tasks.md has the rule for choosing them."""


def in_main_set(tables: Iterable[Table]) -> list[Table]:
    """Return the tables of the tasks of the main set."""
    chosen = {task for tasks in MAIN_SET.values() for task in tasks}
    return [table for table in tables if table.task_name in chosen]


@dataclass(frozen=True)
class Signal:
    """The spread between the encodings of a table relative to the spread between seeds.

    It comes from an analysis of variance with the encoding as a random factor: the variance
    between encodings is the variance of their means minus the contribution of the seeds.

    Attributes:
        between: standard deviation between encodings, in the unit of the headline.
        within: standard deviation between the seeds of an encoding, pooled.
        worst, best: mean headline of the last and of the first encoding.
        learned: fraction of runs that passed the gate of their task.
        seconds: training time, median over runs.
    """

    between: float
    within: float
    worst: float
    best: float
    learned: float
    seconds: float

    @property
    def ratio(self) -> float:
        """The ratio `between` / `within`."""
        return self.between / self.within if self.within else math.inf


def measure_signal(table: Table, encodings: Sequence[str]) -> Signal:
    """Return the signal of a table.

    Args:
        table: table with one headline for each run.
        encodings: encodings to include; at least two, each with at least two seeds.
    """
    rows = table.rows
    headline = table.headline
    rows = rows[(rows["subset"] == headline.subset) & (rows["metric"] == headline.metric)]
    rows = rows[rows["length"].isna()]
    scores = [rows["value"][rows["encoding"] == encoding].tolist() for encoding in encodings]
    means = [fmean(seeds) for seeds in scores]
    from_seeds = fmean(variance(seeds) / len(seeds) for seeds in scores)
    runs = [record for record in table.records if record.encoding in encodings]
    return Signal(
        between=math.sqrt(max(0.0, variance(means) - from_seeds)),
        within=math.sqrt(fmean(variance(seeds) for seeds in scores)),
        worst=min(means) if table.higher_is_better else max(means),
        best=max(means) if table.higher_is_better else min(means),
        learned=sum(map(table.learned, encodings)) / len(runs),
        seconds=median(training_seconds(record) for record in runs),
    )
