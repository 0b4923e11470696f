"""Figures of cost against quality, a panel for each `CostChart`."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pe_bench.reporting import panels
from pe_bench.reporting.chart_layout import SIDES
from pe_bench.reporting.chart_model import CostChart
from pe_bench.reporting.cost_charts import make_costs
from pe_bench.reporting.panels import styled
from pe_bench.reporting.plot_style import draw_options
from pe_bench.reporting.styles import styles_of
from pe_bench.reporting.tables import Table

PANELS_PER_ROW = 3
LEGEND_WIDTH = 1.8
POINT: dict[str, Any] = {"linestyle": "none", "markersize": 8}
BEGIN: dict[float, Any] = {0.0: "left", -1.0: "right", -0.5: "center"}  # alignment of a name's text


@styled
def draw_tradeoff(table: Table, others: Sequence[Table]) -> Figure:
    """Return a figure with a panel for each table of quality: its headline over measured times.

    Args:
        table: table of times.
        others: tables of quality, at least one.
    """
    charts = make_costs(table, others)
    figure, axes = panels.make_panels(
        len(charts), per_row=PANELS_PER_ROW, size=(5.0, 4.2), margin=(LEGEND_WIDTH, 0.3)
    )
    chosen = styles_of(table.records)
    handles: dict[str, Any] = {}
    floors: dict[str, Any] = {}
    for axis, chart in zip(axes, charts, strict=True):
        looks = {name: draw_options(table, name, chosen[name]) | POINT for name in chart.series}
        handles |= draw_cost_panel(axis, chart, looks)
        if chart.baseline is not None:
            floors["best baseline"] = Line2D([], [], **panels.REFERENCE)
        axis.set_xlabel(chart.x)
        axis.set_ylabel(chart.y)
        panels.set_panel_title(axis, chart.title, width=4.6)
        _write_names(axis, chart)
    named = {name: handles[name] for name in sorted(handles)} | floors
    figure.legend(
        [*named.values()],
        [*named],
        loc="outside right upper",
        frameon=False,
        title="encoding (hollow: not learned)",
        alignment="left",
    )
    title = "Quality against the time of a training step"
    given = dict.fromkeys(other.describe_given([other.headline.metric]) for other in others)
    panels.set_title(figure, title, table.heading, *given, beside=LEGEND_WIDTH)
    return figure


def draw_cost_panel(
    axis: Axes, chart: CostChart, looks: Mapping[str, dict[str, Any]]
) -> dict[str, Line2D]:
    """Draw the points of a panel, and return markers for the legend by encoding.

    Args:
        axis: the panel.
        chart: the chart.
        looks: options of `Axes.plot` for each encoding to draw.
    """
    handles = {}
    for name, look in looks.items():
        handles[name] = Line2D([], [], **look)
        hollow = {"markerfacecolor": "white"} if name in chart.hollow else {}
        axis.plot(*chart.series[name], **look | hollow)
    if chart.baseline is not None:
        axis.axhline(chart.baseline, **panels.REFERENCE)
    axis.set_xlim(*chart.x_limits)
    axis.set_ylim(*chart.y_limits)
    axis.grid(alpha=0.3)
    return handles


def _write_names(axis: Axes, chart: CostChart) -> None:
    for name, side in chart.names.items():
        right, up, begin = SIDES[side]
        text = axis.annotate(
            name,
            chart.series[name],
            xytext=(0.8 * right, 0.8 * up),
            textcoords="offset points",
            ha=BEGIN[begin],
            va="center",
            fontsize=8,
            color=panels.GREY,
        )
        text.set_in_layout(False)
