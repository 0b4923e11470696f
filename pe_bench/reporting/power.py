"""What a number of seeds can show, from the spread of finished runs."""

import math
from itertools import combinations
from statistics import median

import numpy as np

from pe_bench.reporting.paired import headline_scores
from pe_bench.reporting.tables import Table
from pe_bench.reporting.task_summary import is_quality
from pe_bench.stats.significance import effect_to_show


def describe_power(table: Table, seeds: int) -> str:
    """Return the smallest difference that a comparison with some seeds shows, in one line.

    The spread of a difference over seeds varies from pair to pair. The line has the median over all
    pairs of encodings of the table, and the largest. The result is empty if the table has no pair
    of encodings with two seeds in common, or no scores of trained models.

    Args:
        table: finished runs.
        seeds: number of seeds of the comparison.
    """
    spreads = find_spreads(table) if is_quality(table) else []
    if not spreads or max(spreads) == 0:
        return ""
    typical, largest = (effect_to_show(seeds, of) for of in (median(spreads), max(spreads)))
    if typical is None or largest is None:
        return f"{table.about.task}: none, {seeds} of these seeds are in the finished runs"
    metric = table.metric(table.headline.metric)
    unit = "points" if metric.unit == "%" else metric.unit
    most = f" ({largest:.2g} for the pair that varies most)" if len(spreads) > 1 else ""
    amount = f"{typical:.2g} {unit} of {metric.title}" if unit else f"{typical:.2g} {metric.title}"
    return f"{table.about.task}: {amount}{most}, {seeds} seeds"


def find_spreads(table: Table) -> list[float]:
    """Return the standard deviation over seeds of the difference of each pair of encodings."""
    values = headline_scores(table, table.ranked()).values  # (E, S)
    found = []
    for one, other in combinations(values, 2):
        differences = one - other
        differences = differences[np.isfinite(differences)]
        if len(differences) > 1:
            found.append(float(differences.std(ddof=1)))
    return [spread for spread in found if math.isfinite(spread)]
