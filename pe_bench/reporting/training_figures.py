"""Figures of learning curves, a row for each `TrainingChart` and a panel for each quantity."""

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pe_bench.reporting import panels
from pe_bench.reporting.chart_model import Quantity, TrainingChart
from pe_bench.reporting.panels import styled
from pe_bench.reporting.plot_style import LEGEND_ROWS, draw_options, legend_width
from pe_bench.reporting.styles import Style, styles_of
from pe_bench.reporting.tables import Table
from pe_bench.reporting.training_charts import make_training

WIDTH = 4.2  # width of a panel, inches


@styled
def draw_training(table: Table) -> Figure:
    """Return the figure of a table's learning curves, which it has."""
    charts = make_training(table)
    shown = [(chart, quantity) for chart in charts for quantity in chart.quantities]
    figure, axes = panels.make_panels(
        len(shown),
        per_row=len(charts[0].quantities),
        size=(WIDTH, 3.4),
        margin=(legend_width(table), 0.4),
    )
    labels = dict.fromkeys(label for chart in charts for label in chart.series)
    chosen = styles_of(table.records, labels)
    handles: dict[str, Any] = {}
    for axis, (chart, quantity) in zip(axes, shown, strict=True):
        handles |= _draw_quantity(axis, table, chart, quantity, chosen)
        axis.set_xlim(*chart.x_limits)
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axis.set_xlabel(chart.x)
        if quantity.log:
            axis.set_yscale("log")
        axis.set_yticks(quantity.ticks, [f"{tick:,g}" for tick in quantity.ticks])
        axis.minorticks_off()
        axis.set_ylim(*quantity.limits)
        axis.set_ylabel(quantity.y)
        axis.grid(axis="y", alpha=0.3)
        panels.set_panel_title(axis, f"{chart.title}: {quantity.title}")
    figure.legend(
        list(handles.values()),
        [table.describe(label) if label in table.encodings else label for label in handles],
        loc="outside right upper",
        ncols=math.ceil(len(handles) / LEGEND_ROWS),
        frameon=False,
        title="encoding",
        alignment="left",
    )
    title = f"{table.task_name}: learning curves"
    panels.set_title(figure, title, table.heading, charts[0].says, beside=legend_width(table))
    return figure


def _draw_quantity(
    axis: Axes,
    table: Table,
    chart: TrainingChart,
    quantity: Quantity,
    chosen: dict[str, Style],
) -> dict[str, Any]:
    """Draw the curves of a panel and return their lines by encoding."""
    handles: dict[str, Any] = {}
    for label, curve in chart.series.items():
        band = curve.bands[quantity.name]
        style = chosen[label]
        if label in table.encodings:
            look = draw_options(table, label, style)
        else:  # the model that all encodings of the table started from
            look = {"color": style.colour, "marker": style.marker}
        look |= {"linewidth": 1.3, "markersize": 4, "markevery": chart.every}
        (handles[label],) = axis.plot(curve.steps, band.mean, **look)
        if band.low:
            band_look: dict[str, Any] = {"color": style.colour, "alpha": 0.15, "linewidth": 0}
            axis.fill_between(curve.steps, band.low, band.high, **band_look)
    return handles
