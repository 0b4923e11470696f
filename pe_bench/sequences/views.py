"""Columns, curves and maps of a report that follow from the cells of a task."""

from collections.abc import Mapping, Sequence

from pe_bench.results.metrics import describe_metric
from pe_bench.results.views import Column, Curve, Heatmap, View
from pe_bench.sequences.cells import FAR, ID, OOD, Cell


def make_views(
    cells: Mapping[str, Sequence[Cell]],
    axes: Mapping[str, str],
    metrics: Sequence[str],
    headline: str,
    *,
    each_subset: bool,
    max_trained: float,
) -> tuple[View, ...]:
    """Return columns of means, curves of subsets with one axis, maps of those with two.

    Args:
        cells: of each subset.
        axes: titles of `length` and of the second axis.
        metrics: of every cell.
        headline: the metric of the headline.
        each_subset: whether every subset has means of its own.
        max_trained: largest trained length.
    """
    columns = [ID]
    far: list[str] = []
    curves: list[str] = []
    maps: list[View] = []
    for subset, points in cells.items():
        for cell in points:
            columns += cell.groups
            curves.append(cell.curve)
        if each_subset and len(cells) > 1:
            columns.append(f"{subset}-{OOD}")
        if any(cell.split == FAR for cell in points):
            far.append(FAR)
            if each_subset and len(cells) > 1:
                far.append(f"{subset}-{FAR}")
        if any(cell.second_axis for cell in points):
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
    subset: str, cells: Sequence[Cell], axes: Mapping[str, str], metric: str, max_trained: float
) -> Heatmap:
    """Return the map of a subset, with the largest trained value of each axis."""
    trained = [float(cell.second_axis) for cell in cells if cell.split == ID]
    right = max(trained, default=None)
    if right == max(float(cell.second_axis) for cell in cells):
        right = None  # all of that axis is trained
    name = describe_metric(metric).title
    title = f"{subset}: {name} by {axes['length']} and {axes['second']} (dashed: trained)"
    return Heatmap(subset, metric, title, trained=(right, max_trained))
