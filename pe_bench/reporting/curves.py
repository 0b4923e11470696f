"""Figures of curves over lengths, a panel for each `CurveChart`, all encodings in it."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from pe_bench.reporting import panels
from pe_bench.reporting.chart_model import CurveChart
from pe_bench.reporting.curve_charts import make_curves, trained_lengths
from pe_bench.reporting.multiples import MOST_CURVES, draw_multiples
from pe_bench.reporting.panels import styled
from pe_bench.reporting.plot_style import (
    BARS,
    add_legend,
    draw_options,
    error_bars,
    legend_width,
)
from pe_bench.reporting.styles import styles_of
from pe_bench.reporting.tables import Table

PANELS_PER_ROW = 4
WIDTH = 4.6  # width of a panel, inches


@styled
def draw_curves(table: Table, reference: str = "") -> Figure:
    """Return the figure of a table's curves.

    With more than `MOST_CURVES` encodings, each encoding has separate panels.

    Args:
        table: the table.
        reference: encoding whose curve is bold on logarithmic axes.
    """
    if len(table.encodings) > MOST_CURVES:
        return draw_multiples(table, reference)
    charts = make_curves(table)
    figure, axes = panels.make_panels(
        len(charts),
        per_row=PANELS_PER_ROW,
        size=(WIDTH, 3.9),
        margin=(legend_width(table), 0.3),
    )
    chosen = styles_of(table.records)
    handles: dict[str, Any] = {}
    baselines: dict[str, Line2D] = {}
    for axis, chart in zip(axes, charts, strict=True):
        looks = {}
        shown = [name for name in table.encodings if name in chart.series]
        for order, encoding in enumerate(shown):
            look = draw_options(table, encoding, chosen[encoding]) | BARS
            # Later curves are thinner, so that coinciding curves below stay visible.
            look["linewidth"] = 2.6 - 1.6 * order / len(table.encodings)
            if chart.log_y and encoding == reference:
                look |= {"linewidth": 4.0, "zorder": 3}
            looks[encoding] = look
        handles |= draw_curve_panel(axis, chart, looks)
        panels.set_lengths(axis, chart.ticks, log=chart.log_x)
        axis.set_xlim(*chart.x_limits)
        axis.set_xlabel(chart.x)
        axis.set_ylabel(chart.y)
        panels.set_panel_title(axis, chart.title, marked=True)
        for mark in chart.trained:
            panels.mark_trained(axis, mark)
        for one in chart.baselines:
            baselines[one.name] = panels.draw_baseline(axis, one.points)
    add_legend(figure, table, handles, baselines)
    given = table.describe_given(chart.metric for chart in charts)
    panels.set_title(figure, _say(table), table.heading, given, beside=legend_width(table))
    return figure


def draw_curve_panel(
    axis: Axes, chart: CurveChart, looks: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Draw the curves of a panel and its y axis, and return the curves by encoding.

    Args:
        axis: the panel.
        chart: the chart.
        looks: options of `Axes.errorbar` for each encoding to draw.
    """
    handles = {}
    for encoding, look in looks.items():
        points = chart.series[encoding]
        x = [point.x for point in points]
        y = [point.mean for point in points]
        handles[encoding] = axis.errorbar(x, y, error_bars(points), **look)
    if chart.log_y:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_ylim(*chart.y_limits)
    axis.grid(axis="y", alpha=0.3)
    return handles


def _say(table: Table) -> str:
    """Return a title that says what a figure of curves shows."""
    if table.about.measures_time:
        return f"{table.task_name}: what it costs as inputs get longer"
    if trained_lengths(table):
        return f"{table.task_name}: scores beyond the training lengths"
    return f"{table.task_name}: scores by length"
