"""Make heatmaps and galleries: charts with a panel for each encoding."""

from collections.abc import Sequence

import pandas as pd

from pe_bench.reporting import chart_layout as layout
from pe_bench.reporting.chart_model import GalleryChart, MapChart
from pe_bench.reporting.tables import Table
from pe_bench.results.views import Gallery, Heatmap


def make_map(table: Table, view: Heatmap) -> MapChart:
    """Return the heatmaps of a view."""
    numbers = _cells(table, view)
    xs = [float(x) for x in sorted(numbers["x"].unique())]
    ys = [float(y) for y in sorted(numbers["length"].unique())]
    cells = numbers.groupby(["encoding", "length", "x"])["mean"].mean()
    names = sorted(numbers["encoding"].unique())
    every = pd.MultiIndex.from_product([names, ys, xs])
    grids = cells.reindex(every).to_numpy(float).reshape(len(names), len(ys), len(xs))
    series = dict(zip(names, grids.tolist(), strict=True))
    limits = (0.0, 100.0)
    if not table.metric(view.metric).is_percent:
        limits = (float(numbers["mean"].min()), float(numbers["mean"].max()))
    return MapChart(
        title=view.title,
        xs=xs,
        ys=ys,
        x=table.axis("second"),
        y=table.axis("length"),
        z=table.metric(view.metric).label,
        limits=limits,
        x_ticks=layout.even_ticks(xs),
        y_ticks=layout.even_ticks(ys),
        border=_border(view, xs, ys),
        series=series,
        seeds=_seeds(numbers),
    )


def make_gallery(table: Table, view: Gallery) -> GalleryChart:
    """Return the panels of a gallery."""
    numbers = _cells(table, view).sort_values("x")
    series: dict[str, list[tuple[float, list[tuple[float, float]]]]] = {}
    limits = {}
    for encoding, own in numbers.groupby("encoding"):
        curves = []
        for length in sorted(own["length"].unique()):
            part = own[own["length"] == length]
            points = list(zip(part["x"].tolist(), part["mean"].tolist(), strict=True))
            curves.append((float(length), points))
        series[str(encoding)] = curves
        low, high = layout.pad(float(own["mean"].min()), float(own["mean"].max()))
        if high - low < layout.LEAST_LOGITS or own["mean"].nunique() == 1:
            middle = (low + high) / 2
            low, high = middle - layout.LEAST_LOGITS / 2, middle + layout.LEAST_LOGITS / 2
        limits[str(encoding)] = (low, high)
    last = float(numbers["x"].max())
    return GalleryChart(
        title=view.title,
        x=table.axis("second"),
        y=view.y,
        x_limits=(0.0, last),
        ticks=layout.octaves(last),
        trained=table.about.max_train_axis,
        y_limits=limits,
        series=series,
        seeds=_seeds(numbers),
    )


def _cells(table: Table, view: Heatmap | Gallery) -> pd.DataFrame:
    """Return the numbers that have a value on both axes; `x` holds the second axis."""
    numbers = table.numbers(view.subset, view.metric)
    numbers = numbers[(numbers["second_axis"] != "") & numbers["length"].notna()]
    return numbers.assign(x=numbers["second_axis"].astype(float))


def _border(view: Heatmap, xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    """Return the corners of the line around the trained cells, if they end within the map."""
    last_x, last_y = view.trained
    right = len(xs) if last_x is None else sum(x <= last_x for x in xs)
    top = len(ys) if last_y is None else sum(y <= last_y for y in ys)
    corners: list[tuple[float, float]] = []
    if last_x is not None:
        corners += [(right, 0), (right, top)]
    if last_y is not None:
        corners += [(right, top), (0, top)]
    return list(dict.fromkeys(corners))


def _seeds(numbers: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Return for each encoding the minimum and maximum number of seeds of a mean."""
    ends = numbers.groupby("encoding")["seeds"].agg(["min", "max"])
    return {str(name): (int(low), int(high)) for name, low, high in ends.itertuples()}
