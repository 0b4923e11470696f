"""Figures of curves, scores and costs at the width of a paper's column."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator

from pe_bench.reporting import panels
from pe_bench.reporting.chart_model import ScoreChart
from pe_bench.reporting.cost_charts import make_costs
from pe_bench.reporting.curve_charts import make_curves, make_scores
from pe_bench.reporting.curves import draw_curve_panel
from pe_bench.reporting.paper_panels import (
    DASHES,
    PER_INCH,
    SMALL,
    add_legend,
    curve_style,
    draw_marks,
    finish,
    legend_lines,
    make_panels,
    panel_width,
    point_style,
    set_labels,
    set_lengths,
    set_title,
    styled,
    title_size,
)
from pe_bench.reporting.plot_style import error_bars
from pe_bench.reporting.styles import styles_of
from pe_bench.reporting.tables import Table
from pe_bench.reporting.tradeoff import draw_cost_panel

LEAST = 1.6  # smallest width of a panel, inches
HEIGHT = 1.35  # height of a panel without its title, inches
PART_WIDTH = 1.3  # largest width of the name of a task's part, inches
FLOOR = "best baseline"

Names = Mapping[str, str]  # display names by label


@styled
def draw_paper_curves(table: Table, width: float, names: Names, order: Sequence[str]) -> Figure:
    """Return the figure of a table's curves, a panel for each `CurveChart`.

    Args:
        table: the table.
        width: width of the figure, inches.
        names: display names of its encodings, by label.
        order: labels in the order of the legend.
    """
    charts = make_curves(table)
    marks = {mark.label for chart in charts for mark in chart.trained}
    texts = [*(names[name] for name in order), FLOOR, *marks]
    legend = legend_lines(texts, width)[2]
    least, above = title_size([chart.title for chart in charts], LEAST, width)
    figure, axes = make_panels(
        len(charts), width, least=least, height=HEIGHT + above, legend=legend
    )
    panel = panel_width(axes[0], width)
    chosen = styles_of(table.records)
    handles: dict[str, Any] = {}
    baselines: dict[str, Line2D] = {}
    trained: dict[str, Line2D] = {}
    for axis, chart in zip(axes, charts, strict=True):
        shown = [name for name in order if name in chart.series]
        looks = {name: curve_style(table, name, chosen[name]) for name in shown}
        handles |= draw_curve_panel(axis, chart, looks)
        if chart.log_y:
            axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=6))
        else:
            axis.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        set_lengths(axis, chart.ticks, panel, log=chart.log_x)
        axis.set_xlim(*chart.x_limits)
        set_title(axis, chart.title, panel)
        draw_marks(axis, chart.trained, trained)
        for one in chart.baselines:
            baselines[FLOOR] = panels.draw_baseline(axis, one.points)
    xs = [chart.x for chart in charts]
    ys = [chart.y for chart in charts]
    set_labels(figure, axes, xs, ys, HEIGHT)
    _add_legend(figure, handles, names, order, baselines, trained)
    return finish(figure)


@styled
def draw_paper_scores(table: Table, width: float, names: Names, order: Sequence[str]) -> Figure:
    """Return the figure of the parts of a task, below each other.

    Args:
        table, width, names, order: as in `draw_paper_curves`.
    """
    chart = make_scores(table)
    assert chart is not None  # `paper_figures` calls this for tables with lengths only
    marks = [mark.label for mark in chart.trained]
    texts = [*(names[name] for name in order), FLOOR, *marks]
    legend = legend_lines(texts, width)[2]
    pitch = 0.2 + 0.07 * len(order)
    height = pitch * len(chart.parts) + 0.3
    figure, (axis,) = make_panels(1, width, least=width, height=height, legend=legend)
    chosen = styles_of(table.records)
    handles: dict[str, Any] = {}
    step = 0.7 / len(order)
    for index, encoding in enumerate(order):
        points = chart.series.get(encoding)
        if points:
            look = curve_style(table, encoding, chosen[encoding]) | {"linestyle": "none"}
            shift = (index - (len(order) - 1) / 2) * step
            x = [point.mean for point in points]
            y = [point.x + shift for point in points]
            handles[encoding] = axis.errorbar(x, y, xerr=error_bars(points), **look)
    baselines = _draw_floors(axis, chart)
    parts = [" ".join(tick.split("\n")) for tick in chart.ticks]
    wrapped = [panels.wrap([part], PART_WIDTH, PER_INCH[SMALL]) for part in parts]
    axis.set_yticks(range(len(parts)), wrapped)
    axis.set_ylim(len(parts) - 0.4, -0.6)
    axis.set_xlim(*chart.y_limits)
    axis.grid(axis="x")
    axis.set_xlabel(panels.wrap([chart.y], width - PART_WIDTH, PER_INCH[SMALL]))
    trained: dict[str, Line2D] = {}
    for mark, dashes in zip(chart.trained, cycle(DASHES), strict=False):
        line = axis.axhline(mark.x, color="0.4", linestyle=dashes, linewidth=0.8, zorder=0)
        trained[mark.label] = line
    _add_legend(figure, handles, names, order, baselines, trained)
    return finish(figure)


@styled
def draw_paper_costs(
    table: Table, others: Sequence[Table], width: float, names: Names, order: Sequence[str]
) -> Figure:
    """Return a figure of quality over cost, a panel for each table of quality.

    Args:
        table: table of times.
        others: tables of quality, at least one.
        width, names, order: as in `draw_paper_curves`.
    """
    charts = make_costs(table, others)
    legend = legend_lines([*(names[name] for name in order), FLOOR], width)[2]
    figure, axes = make_panels(len(charts), width, least=LEAST, height=HEIGHT, legend=legend)
    panel = panel_width(axes[0], width)
    chosen = styles_of(table.records)
    handles: dict[str, Any] = {}
    baselines: dict[str, Line2D] = {}
    for axis, chart in zip(axes, charts, strict=True):
        shown = [name for name in order if name in chart.series]
        looks = {name: point_style(table, name, chosen[name]) for name in shown}
        handles |= draw_cost_panel(axis, chart, looks)
        if chart.baseline is not None:
            baselines[FLOOR] = Line2D([], [], **panels.REFERENCE)
        axis.xaxis.set_major_locator(MaxNLocator(3))
        axis.yaxis.set_major_locator(MaxNLocator(4))
        set_title(axis, chart.title.partition(" · ")[0], panel)
    xs = [chart.x for chart in charts]
    ys = [chart.y for chart in charts]
    set_labels(figure, axes, xs, ys, HEIGHT)
    _add_legend(figure, handles, names, order, baselines, {})
    return finish(figure)


def _add_legend(
    figure: Figure,
    handles: Mapping[str, Any],
    names: Names,
    order: Sequence[str],
    baselines: Mapping[str, Line2D],
    trained: Mapping[str, Line2D],
) -> None:
    """Add a legend of encodings, baselines and training lengths."""
    shown = [name for name in order if name in handles]
    lines = [*(handles[name] for name in shown), *baselines.values(), *trained.values()]
    add_legend(figure, lines, [*(names[n] for n in shown), *baselines, *trained])


def _draw_floors(axis: Axes, chart: ScoreChart) -> dict[str, Line2D]:
    found = {}
    for one in chart.baselines:
        ((at, value),) = one.points
        ends = [(value, at - 0.45), (value, at + 0.45)]
        found[FLOOR] = panels.draw_baseline(axis, ends)
    return found
