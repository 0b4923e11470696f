"""Figures of scores by the size of the model, one for each task."""

from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pe_bench.reporting import chart_layout as layout
from pe_bench.reporting import panels
from pe_bench.reporting.chart_model import Baseline, CurveChart, Point
from pe_bench.reporting.curves import draw_curve_panel
from pe_bench.reporting.figure_files import Redraw, save_overview, stamp_of
from pe_bench.reporting.plot_style import BARS, INCHES_PER_CHARACTER, draw_options
from pe_bench.reporting.sizes import Ladder
from pe_bench.reporting.styles import styles_of

MOST_TICKS = 5  # numbers of parameters are long
PANEL = (5.6, 4.2)  # width and height, inches
APART = 0.08  # width of the group of points of a size, as a fraction of the distance of sizes
CEILING = "best possible score"
LINES: dict[str, Any] = {"best baseline": "-.", "chance": ":", CEILING: (0, (6, 3))}
"""Line style of each kind of limit, by the beginning of its name."""


def save_sizes(ladder: Ladder, folder: Path, redraw: Redraw) -> list[Path]:
    """Draw and save the figure of a ladder, and return its files, see `save_overview`.

    There is no figure if the sizes have no encoding in common.
    """
    if not ladder.encodings:
        return []
    stamp = stamp_of(ladder.tables) if redraw == "changes" else ""
    path = folder / f"{ladder.name}.png"
    return save_overview(partial(draw_sizes, ladder), path, stamp, redraw)


def make_size_chart(ladder: Ladder) -> CurveChart:
    """Return the scores of all encodings by the size of the model.

    Points of one size lie side by side, so that their intervals do not cover each other.
    """
    last = ladder.tables[-1]
    percent = last.ranking.metric.is_percent
    sizes = [float(number) for number in ladder.parameters]
    step = (sizes[-1] / sizes[0]) ** (APART / (len(sizes) - 1))
    series: dict[str, list[Point]] = {}
    for order, encoding in enumerate(ladder.encodings):
        aside = step ** (order / max(1, len(ladder.encodings) - 1) - 0.5)
        for size, table in zip(sizes, ladder.tables, strict=True):
            scores = table.ranking.scores
            row = scores[scores["encoding"] == encoding].iloc[0]
            point = Point(size * aside, row["mean"], row["ci_low"], row["ci_high"], row["seeds"])
            series.setdefault(encoding, []).append(point)
    x_limits = layout.pad(sizes[0], sizes[-1], log=True, by=0.1)
    limits = {CEILING: 100.0} if percent else {}
    shown = last.ranking.shown_baselines
    kinds = ["chance", "best baseline"][-len(shown) :]  # chance may be the best
    for kind, name in zip(kinds, shown, strict=False):
        limits[f"{kind} ({name})"] = last.ranking.baselines[name]
    baselines = []
    for name, y in limits.items():
        baselines.append(Baseline(name, [(x, y) for x in x_limits]))
    ends: list[float] = []
    for points in series.values():
        for point in points:
            ends += point.ends
    ends += [one.points[0][1] for one in baselines]
    if percent:
        y_limits = layout.percent_limits(max(0.0, min(ends)), 100.0)
    else:
        y_limits = layout.pad(min(ends), max(ends))
    return CurveChart(
        metric=last.headline.metric,
        title="",
        says="",
        x="parameters of the model, without the encoding",
        y=f"{last.headline.subset}: {last.ranking.metric.label}",
        log_x=True,
        log_y=False,
        x_limits=x_limits,
        y_limits=y_limits,
        ticks=layout.keep_apart(sizes, log=True, most=MOST_TICKS),
        trained=[],
        baselines=baselines,
        series=series,
    )


@panels.styled
def draw_sizes(ladder: Ladder) -> Figure:
    """Return the figure of a task: score by size, a line for each encoding."""
    chart = make_size_chart(ladder)
    names = [*ladder.encodings, *(one.name for one in chart.baselines)]
    beside = 0.8 + INCHES_PER_CHARACTER * max(map(len, names))
    figure, (axis,) = panels.make_panels(1, per_row=1, size=PANEL, margin=(beside, 0.6))
    chosen = styles_of(record for table in ladder.tables for record in table.records)
    looks = {}
    for name in ladder.encodings:
        looks[name] = draw_options(ladder.tables[-1], name, chosen[name]) | BARS
        looks[name] |= {"linestyle": "-", "markerfacecolor": chosen[name].colour}
    handles: dict[str, Any] = draw_curve_panel(axis, chart, looks)
    for name, points in chart.series.items():
        for point, table in zip(points, ladder.tables, strict=True):
            if not table.learned(name):
                look = draw_options(table, name, chosen[name]) | {"zorder": 4}  # hollow
                axis.plot([point.x], [point.mean], **look)
    for one in chart.baselines:
        handles[one.name] = panels.draw_baseline(axis, one.points)
        handles[one.name].set_linestyle(LINES[one.name.partition(" (")[0]])
    panels.set_lengths(axis, chart.ticks, log=True)
    axis.set_xlim(*chart.x_limits)
    axis.set_xlabel(chart.x)
    axis.set_ylabel(chart.y)
    if any(not table.learned(name) for table in ladder.tables for name in ladder.encodings):
        handles["hollow: not learned"] = Line2D([], [], color="0.35", marker="o", linestyle="none",
                                                markerfacecolor="white", markersize=5)  # fmt: skip
    figure.legend([*handles.values()], [*handles], loc="outside right upper", frameon=False,
                  title="encoding", alignment="left")  # fmt: skip
    panels.set_title(figure, _say(ladder), ladder.title, beside=beside)
    return figure


def _say(ladder: Ladder) -> str:
    """Return a title that says what the figure shows."""
    said = {
        "stable": "the order of encodings is stable over these sizes",
        "changes": "the order of encodings changes with the size",
        "unknown": "whether the order of encodings holds at these sizes is unknown",
    }
    name = ladder.tables[0].task_name
    return f"{name}: {said[ladder.mark]}. Means over seeds with 95 % intervals"
