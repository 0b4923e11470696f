"""Figures of the scores of a task's parts side by side, drawn from a `ScoreChart`."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pe_bench.reporting import panels
from pe_bench.reporting.chart_model import ScoreChart
from pe_bench.reporting.curve_charts import make_scores
from pe_bench.reporting.multiples import MOST_CURVES
from pe_bench.reporting.panels import styled
from pe_bench.reporting.plot_style import (
    BARS,
    add_legend,
    describe_bars,
    draw_options,
    error_bars,
    legend_width,
    short_labels,
)
from pe_bench.reporting.styles import styles_of
from pe_bench.reporting.tables import Table

PANELS_PER_ROW = 5
LINE = 0.2  # height of an encoding's line, inches
PERCENT_RANGE = (-3.0, 103.0)  # leaves room for markers at 0 and 100


@styled
def draw_scores(table: Table) -> Figure:
    """Return the figure of a task's parts, ordered by the length of their inputs.

    With more than `MOST_CURVES` encodings, each encoding has a separate line.
    """
    chart = make_scores(table)
    assert chart is not None  # `figure_files` calls this for tables with lengths only
    if len(table.encodings) > MOST_CURVES:
        return _draw_lines(table, chart)
    count = len(chart.ticks)
    figure, (axis,) = panels.make_panels(
        1,
        per_row=1,
        size=(1.5 + 1.25 * count, 4.4),
        margin=(legend_width(table), 0.0),
    )
    chosen = styles_of(table.records)
    handles: dict[str, Any] = {}
    baselines: dict[str, Line2D] = {}
    step = 0.7 / len(table.encodings)
    for index, encoding in enumerate(table.encodings):
        points = chart.series.get(encoding, [])
        if points:
            shift = (index - (len(table.encodings) - 1) / 2) * step
            look = draw_options(table, encoding, chosen[encoding]) | BARS | {"linestyle": "none"}
            x = [point.x + shift for point in points]
            y = [point.mean for point in points]
            handles[encoding] = axis.errorbar(x, y, error_bars(points), **look)
    for one in chart.baselines:
        ((at, value),) = one.points
        ends = [(at - 0.45, value), (at + 0.45, value)]
        baselines[one.name] = panels.draw_baseline(axis, ends)
    axis.set_xticks(range(count), chart.ticks)
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlabel(chart.x)
    axis.set_ylabel(chart.y)
    axis.set_ylim(*chart.y_limits)
    axis.set_xlim(-0.6, count - 0.4)
    axis.grid(axis="y", alpha=0.3)
    for mark in chart.trained:
        panels.mark_trained(axis, mark)
    add_legend(figure, table, handles, baselines)
    panels.set_title(figure, *_titles(table, chart), beside=legend_width(table))
    return figure


def _draw_lines(table: Table, chart: ScoreChart) -> Figure:
    """Return a panel for each part, with a line for each encoding, the best first."""
    order = table.ranking.order
    figure, axes = panels.make_panels(
        len(chart.ticks),
        per_row=PANELS_PER_ROW,
        size=(2.5, LINE * len(order) + 0.9),
        margin=(legend_width(table), 0.8),
        share_y=True,
    )
    chosen = styles_of(table.records)
    names = dict.fromkeys(one.name for one in chart.baselines)
    for part, axis in enumerate(axes):
        for one in chart.baselines:
            if one.points[0][0] == part:
                axis.axvline(one.points[0][1], **panels.REFERENCE)
        for index, encoding in enumerate(order):
            points = [point for point in chart.series.get(encoding, []) if point.x == part]
            look = draw_options(table, encoding, chosen[encoding]) | BARS | {"linestyle": "none"}
            x = [point.mean for point in points]
            axis.errorbar(x, [index] * len(points), xerr=error_bars(points), **look)
        beyond = ", ".join(mark.label for mark in chart.trained if mark.x < part)
        title = chart.ticks[part]
        panels.set_panel_title(axis, f"{title}\n{beyond}" if beyond else title)
        axis.set_yticks(range(len(order)), short_labels(table, order))
        axis.tick_params(axis="y", length=0)
        axis.grid(alpha=0.3)
        if chart.percent:
            axis.set_xlim(*PERCENT_RANGE)
        axis.set_ylim(len(order) - 0.4, -0.6)
    figure.supxlabel(chart.y, fontsize=10)
    key = [f"The best first; bars: {describe_bars(table)}"]
    if names:
        key.append(f"dotted: best baseline ({', '.join(names)})")
    panels.set_title(figure, *_titles(table, chart), "; ".join(key))
    return figure


def _titles(table: Table, chart: ScoreChart) -> tuple[str, str, str]:
    """Return the lines above the figure."""
    costs = table.about.measures_time
    says = f"{table.task_name}: {'what each part costs' if costs else 'one part after the other'}"
    given = table.describe_given(chart.metrics)
    return says, table.heading, given
