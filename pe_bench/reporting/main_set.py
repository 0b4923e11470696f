"""The tasks of the main table, and the signal by which they were chosen: see docs/tasks.md."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

from pe_bench.reporting.tables import Table

MAIN_SET = {
    "arithmetic": ("addition",),
    "copying and addressing": ("copying", "probes"),
    "recall": ("mqar", "recall"),
    "long documents": ("passkey",),
    "language modelling": ("perplexity",),
}
"""The tasks of each family. The rule of their choice is in docs/tasks.md."""


@dataclass(frozen=True)
class Signal:
    """How far a task tells encodings apart, seed by seed, in the number that ranks.

    With m means of n seeds each, the variance of the means is that between encodings plus the
    variance within an encoding over n: an analysis of variance with one factor, random.

    Attributes:
        encodings: how many.
        between: standard deviation between encodings, without what seeds add to it.
        within: standard deviation over the seeds of an encoding, pooled.
        worst, best: the means at both ends.
        learned: share of the runs that learned what was trained.
        seconds: of training, median over runs.
    """

    encodings: int
    between: float
    within: float
    worst: float
    best: float
    learned: float
    seconds: float

    @property
    def ratio(self) -> float:
        """The deviation between encodings in units of that between seeds; inf where that is 0."""
        return self.between / self.within if self.within else math.inf


def measure_signal(table: Table, encodings: Sequence[str]) -> Signal:
    """Return the signal of a table.

    Args:
        table: of at least two seeds each.
        encodings: those that count; two or more.
    """
    numbers = table.rows
    headline = table.headline
    numbers = numbers[
        (numbers["subset"] == headline.subset)
        & (numbers["metric"] == headline.metric)
        & numbers["length"].isna()
    ]
    scores = []
    for encoding in encodings:
        scores.append([float(value) for value in numbers["value"][numbers["encoding"] == encoding]])
    means = [fmean(own) for own in scores]
    within = fmean(variance(own) for own in scores)
    of_means = fmean(variance_of_mean(own) for own in scores)
    ordered = sorted(means, reverse=table.higher_is_better)
    runs = sum(table.seeds(encoding) for encoding in encodings)
    learned = sum(table.learned(encoding) for encoding in encodings)
    seconds = [_training_seconds(table, r) for r in range(len(table.records))]
    return Signal(
        encodings=len(encodings),
        between=math.sqrt(max(0.0, variance(means) - of_means)),
        within=math.sqrt(within),
        worst=ordered[-1],
        best=ordered[0],
        learned=learned / runs,
        seconds=median(seconds),
    )
