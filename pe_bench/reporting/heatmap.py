"""Figures with a panel for each encoding, drawn from a `MapChart` or a `GalleryChart`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pe_bench.reporting import panels
from pe_bench.reporting.chart_model import GalleryChart, MapChart
from pe_bench.reporting.map_charts import make_gallery, make_map
from pe_bench.reporting.panels import styled
from pe_bench.reporting.tables import Table
from pe_bench.results.views import Gallery, Heatmap

PANELS_PER_ROW = 5
SINGLE = (4.6, 4.0)  # size of a single map, inches
# Colours go from light to dark with the length, also in grey. Widths differ so that coinciding
# curves stay visible.
SHADES = ("#56B4E9", "#D55E00", "#000000")
WIDTHS = (4.0, 2.2, 0.9)
LEGEND_WIDTH = 1.3  # width of a gallery's legend, inches


@styled
def draw_heatmap(table: Table, view: Heatmap, encodings: Sequence[str] | None = None) -> Figure:
    """Return a figure with a map for each encoding, all with the same colour scale.

    The y axis is the length and the x axis the second axis.

    Args:
        table: the table that holds the numbers.
        view: the heatmap to draw.
        encodings: labels of the encodings to draw; None for all.
    """
    chart = make_map(table, view)
    shown = _present(chart.series, encodings)
    size = (2.5, 2.5) if len(shown) > 1 else SINGLE
    figure, axes = panels.make_panels(
        len(shown),
        per_row=PANELS_PER_ROW,
        size=size,
        margin=(0.8, 0.6),
        share_x=True,
        share_y=True,
    )
    for axis, encoding in zip(axes, shown, strict=True):
        image = draw_map_panel(axis, chart, encoding)
        panels.set_panel_title(axis, table.describe(encoding), width=size[0] - 0.4)
        axis.tick_params(labelsize=8)
    figure.supxlabel(chart.x, fontsize=10)
    rows = math.ceil(len(shown) / PANELS_PER_ROW)
    shrink = min(1.0, 1.2 / rows + 0.2)
    figure.colorbar(image, ax=axes, label=chart.z, shrink=shrink)
    title = panels.set_title(figure, *_titles(table, view, chart, shown))
    panels.label_rows(figure, chart.y, title)
    return figure


@styled
def save_heatmaps(table: Table, view: Heatmap, paths: Mapping[str, Path], stamp: str = "") -> None:
    """Write the map of each encoding to a separate file.

    Args:
        table, view: as in `draw_heatmap`.
        paths: paths of the files, by encoding.
        stamp: text stored in the files, see `panels.save`.
    """
    chart = make_map(table, view)
    longest = max(paths, key=lambda encoding: len(table.describe(encoding)))
    figure = draw_heatmap(table, view, [longest])
    axis = figure.axes[0]
    (image,) = axis.collections
    title = panels.set_title(figure, *_titles(table, view, chart, [longest]))
    label = panels.set_panel_title(axis, table.describe(longest), width=SINGLE[0] - 0.4)

    def change(encoding: str) -> None:
        image.set_array(np.asarray(chart.series[encoding]))
        label.set_text(panels.wrap([table.describe(encoding)], SINGLE[0] - 0.4))
        lines = _titles(table, view, chart, [encoding])
        title.set_text(panels.wrap(lines, figure.get_figwidth(), panels.TITLE_PER_INCH))

    changing = [image, *axis.lines, *axis.spines.values(), label, title]
    panels.save_each(figure, changing, change, paths, stamp)


@styled
def draw_gallery(table: Table, view: Gallery, encodings: Sequence[str] | None = None) -> Figure:
    """Return a figure with a panel for each encoding.

    A panel shows the metric over the second axis, with a curve for each length.

    Args:
        table: the table that holds the numbers.
        view: the gallery to draw.
        encodings: labels of the encodings to draw; None for all.
    """
    chart = make_gallery(table, view)
    shown = _present(chart.series, encodings)
    size = (2.6, 2.0) if len(shown) > 1 else (5.2, 3.2)
    figure, axes = panels.make_panels(
        len(shown),
        per_row=PANELS_PER_ROW,
        size=size,
        margin=(LEGEND_WIDTH, 0.4),
        share_x=True,
    )
    for axis, encoding in zip(axes, shown, strict=True):
        handles = draw_gallery_panel(axis, chart, encoding)
        axis.tick_params(labelsize=8)
        panels.set_panel_title(axis, table.describe(encoding), width=size[0] - 0.4)
    figure.supxlabel(chart.x, fontsize=10)
    figure.legend([*handles.values()], [*handles], loc="outside right upper", frameon=False)
    lines = [_describe(table, chart.seeds, shown), chart.title]
    title = panels.set_title(figure, *lines, beside=LEGEND_WIDTH)
    panels.label_rows(figure, chart.y, title)
    return figure


def _present(series: Iterable[str], encodings: Sequence[str] | None) -> list[str]:
    present = sorted(series)
    return present if encodings is None else [name for name in encodings if name in present]


def draw_map_panel(axis: Axes, chart: MapChart, encoding: str, line: float = 1.0) -> QuadMesh:
    """Draw the map of an encoding and return it.

    Args:
        axis: the panel.
        chart: the chart.
        encoding: label of the encoding.
        line: factor of the widths of lines.
    """
    low, high = chart.limits
    grid = np.asarray(chart.series[encoding])
    image = axis.pcolormesh(grid, cmap="cividis", vmin=low, vmax=high, rasterized=True)
    axis.set_xticks(*zip(*chart.x_ticks, strict=True))
    axis.set_yticks(*zip(*chart.y_ticks, strict=True))
    xs = [x for x, _ in chart.border]
    ys = [y for _, y in chart.border]
    axis.plot(xs, ys, color="white", linewidth=3.0 * line)
    axis.plot(xs, ys, color="black", linewidth=1.4 * line, linestyle="--")
    return image


def draw_gallery_panel(
    axis: Axes, chart: GalleryChart, encoding: str, line: float = 1.0
) -> dict[str, Line2D]:
    """Draw the curves of an encoding and return them by their names in the legend.

    Args:
        axis, chart, encoding, line: as in `draw_map_panel`.
    """
    handles = {}
    for index, (length, points) in enumerate(chart.series[encoding]):
        xs = [x for x, _ in points]
        ys = [y for _, y in points]
        (handles[f"{length:,.0f} tokens"],) = axis.plot(
            xs,
            ys,
            color=SHADES[index % len(SHADES)],
            linewidth=WIDTHS[index % len(WIDTHS)] * line,
        )
    axis.set_ylim(*chart.y_limits[encoding])
    axis.set_xscale("symlog", base=2, linthresh=1)
    axis.set_xticks(chart.ticks, [f"{tick:.0f}" for tick in chart.ticks])
    axis.set_xlim(-0.2, 1.05 * chart.x_limits[1])
    axis.minorticks_off()
    axis.grid(axis="y", alpha=0.3)
    if chart.trained is not None:
        axis.axvline(chart.trained, color="0.5", linestyle="--", linewidth=line)
    return handles


def _say(table: Table, view: Heatmap) -> str:
    """Return the message of the figure."""
    axes = [table.axis(name) for name in ("length", "second")]
    what = view.title or f"{table.metric(view.metric).title} by {' and '.join(axes)}"
    if view.trained != (None, None) and "dashed" not in what:
        what += " (dashed: trained)"
    return what[0].upper() + what[1:]


def _titles(
    table: Table, view: Heatmap, chart: MapChart, shown: Sequence[str]
) -> tuple[str, str, str]:
    """Return the title lines of maps."""
    given = table.describe_given([view.metric])
    return _say(table, view), given, _describe(table, chart.seeds, shown)


def _describe(table: Table, seeds: Mapping[str, tuple[int, int]], shown: Sequence[str]) -> str:
    """Return the table's heading and the number of seeds of the means."""
    parts = [table.heading]
    if len(shown) == 1:
        parts.insert(0, shown[0])
    fewest = min(seeds[name][0] for name in shown)
    most = max(seeds[name][1] for name in shown)
    if most > 1:
        least = f"{fewest} to " if fewest < most else ""
        parts.append(f"mean of {least}{most} seeds")
    return " · ".join(parts)
