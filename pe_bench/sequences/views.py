"""Columns, curves and maps of a report, from the evaluation points of a task."""

from collections.abc import Mapping, Sequence

from pe_bench.results.metrics import find_metric
from pe_bench.results.splits import FAR, ID, OOD
from pe_bench.results.views import Column, Curve, Heatmap, View
from pe_bench.sequences.eval_points import EvalPoint


def make_views(
    points_of: Mapping[str, Sequence[EvalPoint]],
    axes: Mapping[str, str],
    metrics: Sequence[str],
    headline: str,
    *,
    each_subset: bool,
    max_trained: float,
) -> tuple[View, ...]:
    """Return columns for means, curves for subsets with one axis, maps for subsets with two axes.

    Args:
        points_of: the evaluation points of each subset.
        axes: titles of `length` and of the second axis.
        metrics: metrics of every point.
        headline: metric of the headline.
        each_subset: whether every subset has separate means.
        max_trained: largest training length.
    """
    columns = [ID]
    far: list[str] = []
    curves: list[str] = []
    maps: list[View] = []
    for subset, points in points_of.items():
        for point in points:
            columns += point.groups
            curves.append(point.curve)
        if each_subset and len(points_of) > 1:
            columns.append(f"{subset}-{OOD}")
        if any(point.split == FAR for point in points):
            far.append(FAR)
            if each_subset and len(points_of) > 1:
                far.append(f"{subset}-{FAR}")
        if any(point.second_axis for point in points):
            maps.append(_make_map(subset, points, axes, headline, max_trained))
        else:
            curves.append(subset)
    views: list[View] = []
    for name in dict.fromkeys([*columns, *far]):
        views.append(Column(name, headline, at_trained_length=name == ID))
    views.append(Column(OOD, "effective_length", "effective length"))
    for metric in metrics:
        if metric != headline:
            views += [Column(ID, metric), Column(OOD, metric)]
    for name in dict.fromkeys(curves):
        if name:
            views += [Curve(name, metric) for metric in metrics]
    return (*views, *maps)


def _make_map(
    subset: str,
    points: Sequence[EvalPoint],
    axes: Mapping[str, str],
    metric: str,
    max_trained: float,
) -> Heatmap:
    """Return the map of a subset, with the largest trained value of each axis."""
    trained = [float(point.second_axis) for point in points if point.split == ID]
    right = max(trained, default=None)
    if right == max(float(point.second_axis) for point in points):
        right = None  # the whole axis is in distribution
    name = find_metric(metric).title
    title = f"{subset}: {name} by {axes['length']} and {axes['second']} (dashed: trained)"
    return Heatmap(subset, metric, title, trained=(right, max_trained))
