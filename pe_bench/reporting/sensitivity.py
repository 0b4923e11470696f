"""How sensitive a table is: its signal, and the smallest difference that its seeds show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median, variance

import numpy as np

from pe_bench.reporting.paired import headline_scores
from pe_bench.reporting.run_costs import training_seconds
from pe_bench.reporting.tables import Table
from pe_bench.reporting.task_summary import (
    FEWEST_ENCODINGS,
    find_end,
    find_limits,
    has_model_scores,
)
from pe_bench.results.items import Floats
from pe_bench.stats.significance import FEWEST_SEEDS, effect_to_show

SATURATED = 0.9  # minimum normalised score of the last encoding


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
    values = headline_scores(table, encodings).values  # (E, S)
    scores: list[list[float]] = []
    for row in values:
        scores.append(row[np.isfinite(row)].tolist())
    means = [fmean(seeds) for seeds in scores]
    from_seeds = fmean(variance(seeds) / len(seeds) for seeds in scores)
    runs = [record for record in table.records if record.encoding in encodings]
    within = math.sqrt(fmean(variance(seeds) for seeds in scores))
    return Signal(
        between=math.sqrt(max(0.0, variance(means) - from_seeds)),
        within=within,
        worst=min(means) if table.ranking.higher_is_better else max(means),
        best=max(means) if table.ranking.higher_is_better else min(means),
        learned=sum(map(table.learned, encodings)) / len(runs),
        seconds=median(training_seconds(record) for record in runs),
    )


def describe_sensitivity(table: Table) -> list[str]:
    """Return how sensitive a table is, a line each; empty without several encodings and seeds.

    A table that is saturated or at its floor is marked: it cannot show a difference.
    """
    names = table.ranking.names
    counts = np.isfinite(headline_scores(table, names).values).sum(1)  # (E,)
    encodings = [name for name, count in zip(names, counts, strict=True) if count > 1]
    if len(encodings) < FEWEST_ENCODINGS or not has_model_scores(table):
        return []
    signal = measure_signal(table, encodings)
    line = (
        f"Signal: standard deviation {signal.between:.2g} {table.ranking.unit} between "
        f"encodings, {signal.within:.2g} between the seeds of an encoding"
    )
    line += f", ratio {signal.ratio:.1f}." if math.isfinite(signal.ratio) else "."
    lines = [line]
    seeds = min((len(one) for one in _paired_differences(table)), default=0)
    shown = describe_power(table, seeds, len(encodings) - 1)
    if shown:
        lines.append(
            f"Smallest difference between two encodings that the seeds show (power 80 %): {shown}."
        )
    return lines + _describe_ends(table, signal)


def _describe_ends(table: Table, signal: Signal) -> list[str]:
    """Return marks of a table whose encodings are all near the ceiling or all at the floor."""
    floor, ceiling = find_limits(table)
    if find_end(table) is not None and (signal.worst - floor) / (ceiling - floor) >= SATURATED:
        return ["Saturated: all encodings are close to the ceiling."]
    baseline = table.ranking.best_baseline
    sign = 1 if table.ranking.higher_is_better else -1
    if baseline is not None and sign * signal.best <= sign * baseline:
        return ["At its floor: no encoding is better than the best baseline."]
    return []


def describe_power(table: Table, seeds: int, comparisons: int = 1) -> str:
    """Return the smallest difference that a comparison with some seeds shows, in words.

    The spread of a difference over seeds varies from pair to pair. The line has the median over all
    pairs of encodings of the table, and the largest. The result is empty if the table has no pair
    of encodings with two seeds in common, or no scores of trained models.

    Args:
        table: finished runs.
        seeds: number of seeds of the comparison.
        comparisons: number of comparisons for a second difference, which is corrected.
    """
    spreads = find_spreads(table) if has_model_scores(table) else []
    if not spreads or max(spreads) == 0:
        return ""
    if seeds < FEWEST_SEEDS:
        return f"none; a test needs {FEWEST_SEEDS} seeds"
    typical, largest = (effect_to_show(seeds, of) for of in (median(spreads), max(spreads)))
    metric = table.ranking.metric
    unit = "points" if metric.is_percent else metric.unit
    most = f" ({largest:.2g} for the pair that varies most)" if len(spreads) > 1 else ""
    amount = f"{typical:.2g} {unit} of {metric.title}" if unit else f"{typical:.2g} {metric.title}"
    found = f"{amount}{most}, {seeds} seeds"
    if comparisons > 1:
        corrected = effect_to_show(seeds, median(spreads), comparisons)
        found += f"; {corrected:.2g} after correction for {comparisons} comparisons"
    return found


def find_spreads(table: Table) -> list[float]:
    """Return the standard deviation over seeds of the difference of each pair of encodings."""
    return [float(differences.std(ddof=1)) for differences in _paired_differences(table)]


def _paired_differences(table: Table) -> list[Floats]:
    """Return the differences (S,) of each pair of encodings with two or more seeds in common."""
    values = headline_scores(table, table.ranking.names).values  # (E, S)
    found = []
    for one, other in combinations(values, 2):
        differences = one - other
        differences = differences[np.isfinite(differences)]
        if len(differences) > 1:
            found.append(differences)
    return found
