"""Means and ratios as rows, with a standard error and a 95 % interval."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pe_bench.results.measurement import Measurement, Status
from pe_bench.results.metrics import find_metric

Numbers = npt.NDArray[np.floating] | npt.NDArray[np.integer]

Z95 = 1.959964
BOOTSTRAP_SEED = 20_250_104  # the same for every encoding
DRAWN_AT_ONCE = 1_000_000  # number of cluster counts in memory: 8 MB


def wilson(fraction: float, n: float) -> tuple[float, float]:
    """Return the 95 % interval of a fraction of n (Wilson 1927)."""
    middle = (fraction + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = math.sqrt(fraction * (1 - fraction) / n + (Z95 / (2 * n)) ** 2)
    half *= Z95 / (1 + Z95**2 / n)
    # Rounding must not exclude the fraction itself, in particular 0 and 1.
    return min(fraction, max(0.0, middle - half)), max(fraction, min(1.0, middle + half))


def mean_of(subset: str, rows: Sequence[Measurement], status: Status = "ranked") -> Measurement:
    """Return the unweighted mean of rows of one metric.

    The interval is computed from the intervals of the rows: the distances between values and ends
    are added in quadrature (Zou and Donner 2008). So the mean has an interval even if all rows are
    at 100 %.
    """
    value = float(np.mean([row.value for row in rows]))
    below = _root_of_squares([row.value - row.ci_low for row in rows])
    above = _root_of_squares([row.ci_high - row.value for row in rows])
    stderr = _root_of_squares([row.stderr for row in rows]) / len(rows)
    return Measurement(
        subset,
        rows[0].metric,
        value,
        sum(row.n for row in rows),
        stderr=stderr,
        ci_low=value - below / len(rows),
        ci_high=value + above / len(rows),
        status=status,
    )


def ratio(
    subset: str,
    metric: str,
    numerators: Numbers,
    denominators: Numbers,
    clusters: npt.NDArray[np.integer] | None = None,
    *,
    n: int | None = None,
    length: int | None = None,
    second_axis: str = "",
    resamples: int = 0,
    percent: bool | None = None,
) -> Measurement:
    """Return the ratio of two sums over items, with the error of a ratio of cluster sums.

    Args:
        subset, metric: subset and metric of the row.
        numerators, denominators: terms of the two sums, one per item, (N,).
        clusters: the cluster of each item, (N,); None: every item is a cluster. A single cluster
            gives no error.
        n: number of items of the row; None: N.
        length, second_axis: position of the row on the axes of the task.
        resamples: number of bootstrap resamples of clusters for the interval; 0: the normal
            interval.
        percent: whether 100 is the largest value, so that the interval ends there; None: as in
            `METRICS`.
    """
    if percent is None:
        percent = find_metric(metric).ends_at_100
    above, below = sum_clusters([numerators, denominators], clusters)  # (C,) each
    count = len(above)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = above.sum() / below.sum()
        squares = ((above - value * below) ** 2).sum()
        stderr = np.sqrt(squares * count / (count - 1)) / below.sum() if count > 1 else np.nan
        low = value - Z95 * stderr
        high = value + Z95 * stderr
        if resamples and count > 1:
            low, high = _bootstrap(above, below, resamples)
    least = 0.0 if numerators.min() >= 0 else -math.inf
    largest = 100.0 if percent else math.inf
    return Measurement(
        subset,
        metric,
        float(value),
        len(numerators) if n is None else n,
        stderr=float(stderr),
        length=length,
        second_axis=second_axis,
        ci_low=float(np.maximum(low, least)),
        ci_high=float(np.minimum(high, largest)),
    )


def sum_clusters(
    columns: Sequence[Numbers], clusters: npt.NDArray[np.integer] | None
) -> list[npt.NDArray[np.float64]]:
    """Return columns (N,) summed within each cluster, (C,).

    Args:
        columns: the columns.
        clusters: the cluster of each item, (N,); None: every item is a cluster.
    """
    values = [column.astype(np.float64) for column in columns]
    if clusters is None:
        return values
    _, index = np.unique(clusters, return_inverse=True)
    return [np.bincount(index, column).astype(np.float64) for column in values]


def average(runs: Sequence[Sequence[Measurement]]) -> list[Measurement]:
    """Return the mean of evaluations that differ only in the frozen random choices of an encoding.

    Errors and intervals are averaged too: since the items are the same, more evaluations do not
    reduce the uncertainty.
    """
    if len(runs) == 1:
        return list(runs[0])
    averaged = []
    for same in zip(*runs, strict=True):
        means = {}
        for name in ("value", "stderr", "ci_low", "ci_high"):
            means[name] = sum(getattr(row, name) for row in same) / len(same)
        averaged.append(replace(same[0], **means))
    return averaged


def _root_of_squares(numbers: Sequence[float]) -> float:
    return float(np.sqrt(np.sum(np.square(numbers))))


def _bootstrap(
    above: npt.NDArray[np.float64], below: npt.NDArray[np.float64], resamples: int
) -> npt.NDArray[np.float64]:
    """Return the ends of the central 95 % interval of ratios over resampled clusters."""
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    sums = np.stack([above, below], axis=1)  # (clusters, 2)
    even = np.full(len(sums), 1 / len(sums))
    drawn = np.empty((resamples, 2))
    at_once = max(1, DRAWN_AT_ONCE // len(sums))
    for start in range(0, resamples, at_once):
        part = drawn[start : start + at_once]
        part[:] = rng.multinomial(len(sums), even, len(part)) @ sums
    ends: npt.NDArray[np.float64] = np.percentile(drawn[:, 0] / drawn[:, 1], [2.5, 97.5])
    return ends
