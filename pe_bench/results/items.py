"""Scores of single items; rows are computed from them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from pe_bench.results.intervals import Z95, average, ratio, sum_clusters, wilson
from pe_bench.results.measurement import Measurement
from pe_bench.results.metrics import Metric, find_metric

Floats = npt.NDArray[np.floating]
Combine = Literal["mean", "exp", "geometric mean"]
COMBINE = get_args(Combine)


class RowKey(NamedTuple):
    """Key of a row within its run.

    Attributes:
        subset, metric: subset and metric of the row; an empty metric in `Items.groups` stands for
            the metric of the items.
        length, second_axis: position of the row on the axes of the task.
    """

    subset: str
    metric: str = ""
    length: int | None = None
    second_axis: str = ""


@dataclass(frozen=True, eq=False)
class Items:
    """The scores of the items at one evaluation point.

    The value of the point is computed from `sum(values) / sum(weights)`. A summary row is the mean
    over the evaluation points that list it in `groups`.

    Attributes:
        subset, metric, length, second_axis: key of the point's row.
        values: (N,) scores in the unit of the metric, 0 or 100 if answers are either right or
            wrong; or (N, K), K scores of each item.
        weights: (N,) weights of the items, such as their bytes; None: equal weights.
        clusters: (N,) ids of the clusters of items, such as documents; None: items are
            independent.
        groups: summary rows that include the point.
        combine: function of the means that gives the value: "mean": the mean itself; "exp": its
            exponential; "geometric mean": the geometric mean of K means.
    """

    subset: str
    metric: str
    values: Floats
    weights: Floats | None = None
    length: int | None = None
    second_axis: str = ""
    clusters: npt.NDArray[np.integer] | None = None
    groups: tuple[RowKey, ...] = ()
    combine: Combine = "mean"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Items) or _description(self) != _description(other):
            return False
        arrays = ("values", "weights", "clusters")
        pairs = [(getattr(self, name), getattr(other, name)) for name in arrays]
        return all(np.array_equal(a, b) if a is not None else b is None for a, b in pairs)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def key(self) -> RowKey:
        """Key of the evaluation point's row."""
        return RowKey(self.subset, self.metric, self.length, self.second_axis)

    @property
    def value(self) -> float:
        """Value of the evaluation point's row."""
        above, below = self.cluster_sums()
        return float(combined(above.sum(0) / below.sum(), self.combine))

    def cluster_sums(self) -> tuple[Floats, Floats]:
        """Return the sums over each cluster, of values (C, K) and of weights (C,)."""
        n = len(self.values)
        values = self.values.reshape(n, -1)  # (N, K)
        weights = np.ones(n) if self.weights is None else self.weights
        *columns, below = sum_clusters([*values.T, weights], self.clusters)
        return np.stack(columns, axis=1), below

    def row(self, metric: Metric | None = None) -> Measurement:
        """Return the evaluation point's row, with a standard error and an interval over clusters.

        A proportion has a Wilson interval. With clusters, the interval uses an effective number of
        items: the number of independent items that would give the standard error over clusters.

        Args:
            metric: the metric of the values, which says whether 100 is the largest one; None: as in
                `METRICS`.
        """
        percent = (metric or find_metric(self.metric)).ends_at_100
        if self.combine != "mean":
            return self._jackknifed()
        found = ratio(
            self.subset,
            self.metric,
            self.values,
            np.ones(len(self)) if self.weights is None else self.weights,
            self.clusters,
            n=len(self) if self.weights is None else round(float(self.weights.sum())),
            length=self.length,
            second_axis=self.second_axis,
            percent=percent,
        )
        if not percent or self.weights is not None or not np.isin(self.values, (0, 100)).all():
            return found
        share = found.value / 100
        independent = float(len(self))
        if self.clusters is not None:
            independent = float(len(np.unique(self.clusters)))
            if found.stderr > 0:
                independent = share * (1 - share) / (found.stderr / 100) ** 2
        low, high = wilson(share, independent)
        return replace(found, ci_low=100 * low, ci_high=100 * high)

    def _jackknifed(self) -> Measurement:
        above, below = self.cluster_sums()
        count = len(below)
        value = self.value
        stderr = math.nan
        if count > 1:
            means = (above.sum(0) - above) / (below.sum() - below)[:, None]  # (C, K)
            without_one = combined(np.maximum(means, 0), self.combine)
            stderr = float(np.sqrt((count - 1) * without_one.var()))
        return Measurement(
            self.subset,
            self.metric,
            value,
            len(self),
            stderr,
            self.length,
            self.second_axis,
            ci_low=max(value - Z95 * stderr, 0.0) if count > 1 else math.nan,
            ci_high=value + Z95 * stderr,
        )


def combined(means: Floats, combine: Combine) -> Floats:
    """Combine means (..., K) into values (...)."""
    if combine == "geometric mean":
        return np.asarray(means.prod(axis=-1) ** (1 / means.shape[-1]))
    mean: Floats = means[..., 0]
    with np.errstate(over="ignore"):
        return np.exp(mean) if combine == "exp" else mean


def groups_of(items: Iterable[Items]) -> dict[RowKey, list[Items]]:
    """Return the evaluation points of each summary row."""
    groups: dict[RowKey, list[Items]] = {}
    for point in items:
        for key in point.groups:
            key = key._replace(metric=key.metric or point.metric)
            groups.setdefault(key, []).append(point)
    return groups


def recompute(items: Iterable[Items]) -> dict[RowKey, float]:
    """Return the values of all rows that are computed from items: points and summaries."""
    points = list(items)
    values = {point.key: point.value for point in points}
    for key, members in groups_of(points).items():
        values[key] = sum(point.value for point in members) / len(members)
    return values


def average_draws(
    rows: Sequence[Sequence[Measurement]], items: Sequence[Sequence[Items]]
) -> tuple[list[Measurement], list[Items]]:
    """Return the means of evaluations that differ only in the frozen random choices of an encoding.

    The scores of each item are averaged. A value that is not a plain mean of items, such as a
    perplexity, is computed from the averaged scores.
    """
    if len(rows) == 1:
        return list(rows[0]), list(items[0])
    averaged = []
    values: dict[RowKey, float] = {}
    for draws in zip(*items, strict=True):
        point = replace(draws[0], values=np.mean([draw.values for draw in draws], axis=0))
        averaged.append(point)
        if point.combine != "mean":
            values[point.key] = point.value
    means = []
    for row in average(rows):
        key = RowKey(row.subset, row.metric, row.length, row.second_axis)
        value = values.get(key, row.value)
        # The mean interval can lie beside a value of averaged scores, which is not their mean.
        low, high = np.fmin(row.ci_low, value), np.fmax(row.ci_high, value)
        if not math.isnan(row.ci_low):
            row = replace(row, ci_low=float(low), ci_high=float(high))
        means.append(replace(row, value=value))
    return means, averaged


def _description(items: Items) -> tuple[Any, ...]:
    """Return everything about an evaluation point but its arrays."""
    return (items.key, items.groups, items.combine)
