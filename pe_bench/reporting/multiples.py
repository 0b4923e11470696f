"""Small multiples for many encodings: a panel for each, by rank."""

import math
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from pe_bench.reporting import panels
from pe_bench.reporting.chart_layout import keep_apart
from pe_bench.reporting.chart_model import CurveChart
from pe_bench.reporting.curve_charts import make_curves
from pe_bench.reporting.panels import styled
from pe_bench.reporting.plot_style import describe_bars, draw_options, short_labels
from pe_bench.reporting.styles import styles_of
from pe_bench.reporting.tables import Table
from pe_bench.results.items import Floats

MOST_CURVES = 8  # maximum number of curves in a panel
COLUMNS = 4  # maximum number of panels per row if several encodings share a row
LABELS_PER_INCH = 3  # tick labels of lengths per inch
TICK_CHARACTERS_PER_INCH = 13  # characters of these labels per inch, without the panel's margins
LINE = 0.16  # height of a line of the label above a panel, inches
BEHIND = "0.84"  # grey of the other encodings
BOLD = "0.45"  # grey of the reference encoding on logarithmic axes
SMALL = 8  # font size
CHARACTERS_PER_INCH = 14.5  # characters of a label per inch


@dataclass(frozen=True)
class Scale:
    """Map from a metric's numbers to panel heights: 0 at the lower end, 1 at the upper end."""

    low: float
    high: float
    log: bool = False

    def __call__(self, numbers: Sequence[float] | Floats) -> Floats:
        """Return the heights of numbers, clipped to the panel."""
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        inside = np.clip(np.asarray(numbers, float), self.low, self.high)
        shares: Floats = ((np.log(inside) if self.log else inside) - low) / (high - low)
        return shares

    def ticks(self) -> list[float]:
        """Return a few round numbers."""
        if self.log:
            candidates = LogLocator(subs=(1.0, 2.0, 5.0)).tick_values(self.low, self.high)
        else:
            candidates = MaxNLocator(3, steps=[1, 2, 5, 10]).tick_values(self.low, self.high)
        inside = [tick for tick in candidates if self.low <= tick <= self.high]
        return inside[:: math.ceil(len(inside) / 4)]


@dataclass(frozen=True)
class Layout:
    """Arrangement of the panels. A column has one view and every n-th encoding.

    Each column is one `Axes` in which a panel has height 1, because a separate `Axes` for each
    panel would take a minute.

    Attributes:
        labels: labels of the encodings, the best first, wrapped to the width of their panels.
        together: number of encodings in a row, each with a panel for every view.
        width, height: size of a panel, inches.
    """

    labels: dict[str, str]
    together: int
    width: float
    height: float

    @property
    def pitch(self) -> float:
        """Distance from one panel to the next one below, in panel heights."""
        lines = 1 + max(label.count("\n") for label in self.labels.values())
        return 1 + (LINE * lines + 0.1) / self.height

    @property
    def rows(self) -> int:
        """Number of panels in the longest column."""
        return math.ceil(len(self.labels) / self.together)

    def column(self, number: int) -> dict[str, float]:
        """Return the encodings of a column, each with the y position of its panel's lower end."""
        own = list(self.labels)[number :: self.together]
        return {encoding: -self.pitch * row for row, encoding in enumerate(own)}


@styled
def draw_multiples(table: Table, reference: str = "") -> Figure:
    """Return a figure with a panel for each encoding and `CurveChart`.

    Each panel also shows all other encodings in grey in the background.

    Args:
        table: the table.
        reference: encoding with a bold grey curve on logarithmic axes.
    """
    charts = make_curves(table)
    layout = _lay_out(table, len(charts))
    count = len(charts) * layout.together
    height = layout.rows * layout.pitch * layout.height + 1.4
    figure = Figure(figsize=(layout.width * count + 0.3, height), layout="constrained")
    for index, axis in enumerate(figure.subplots(1, count, squeeze=False)[0]):
        number = index % len(charts)
        chart = charts[number]
        column = layout.column(index // len(charts))
        _draw_column(axis, table, chart, column, reference)
        _set_axes(axis, chart, layout)
        if index == 0 or chart.y_limits != charts[number - 1].y_limits:
            _label_heights(axis, chart, layout)
        if index < len(charts):
            lines = [chart.title, chart.y]
            panels.set_panel_title(axis, panels.wrap(lines, layout.width - 0.4), marked=True)
        if number == 0:
            for encoding, low in column.items():
                _write_above(axis, low + 1, layout.labels[encoding])
    baselines = dict.fromkeys(one.name for chart in charts for one in chart.baselines)
    bold = reference if any(chart.log_y for chart in charts) else ""
    key = _key(table, baselines, bold)
    given = table.describe_given(chart.metric for chart in charts)
    panels.set_title(
        figure, f"{table.task_name}: one encoding at a time", table.heading, given, key
    )
    return figure


def _lay_out(table: Table, charts: int) -> Layout:
    together = max(1, COLUMNS // charts)
    width = max(1.9, min(2.8, 11.0 / charts)) if together == 1 else 2.8
    order = table.ranking.order
    ranked = enumerate(table.ranking.names, 1)
    ranks = {encoding: f"{rank}.\N{NO-BREAK SPACE}" for rank, encoding in ranked}
    labels = {}
    for encoding, label in zip(order, short_labels(table, order), strict=True):
        text = ranks.get(encoding, "") + label
        labels[encoding] = panels.wrap([text], width * charts - 0.3, CHARACTERS_PER_INCH)
    return Layout(labels, together, width, 0.9 if together == 1 else 1.25)


def _draw_column(
    axis: Axes, table: Table, chart: CurveChart, column: dict[str, float], reference: str
) -> None:
    """Draw the panels of a column of encodings."""
    scale = Scale(*chart.y_limits, chart.log_y)
    ends = (chart.lengths[0], chart.lengths[-1])
    lows = np.array([*column.values()])  # (panels,)
    ticks = scale(scale.ticks())
    axis.hlines(np.add.outer(lows, ticks).ravel(), *ends, color="0.93", linewidth=0.8, zorder=0)
    axis.hlines(lows, *ends, color="0.6", linewidth=0.8, zorder=0.6)
    for mark in chart.trained:
        axis.vlines(
            [mark.x] * len(lows),
            lows,
            lows + 1,
            colors="0.4",
            linestyles="--",
            linewidth=1,
            zorder=0.7,
        )
    curves = {}
    for encoding, points in chart.series.items():
        curves[encoding] = [(point.x, point.mean) for point in points]
    axis.plot(*_join(curves.values(), scale, lows), color=BEHIND, linewidth=0.8, zorder=0.5)
    if chart.log_y and reference in curves:
        bold = _join([curves[reference]], scale, lows)
        axis.plot(*bold, color=BOLD, linewidth=2.5, zorder=0.55)
    for one in chart.baselines:
        axis.plot(*_join([one.points], scale, lows), **panels.REFERENCE)
    _draw_encodings(axis, table, chart, column)


def _draw_encodings(axis: Axes, table: Table, chart: CurveChart, column: dict[str, float]) -> None:
    """Draw the curve and the error bars of each encoding of a column in its panel."""
    scale = Scale(*chart.y_limits, chart.log_y)
    chosen = styles_of(table.records)
    bars: list[Floats] = []  # of one encoding each: x, low, high
    colours: list[str] = []
    for encoding, low in column.items():
        if encoding not in chart.series:
            continue
        own = np.array(chart.series[encoding], float)  # (points, fields of a point)
        x, y = own[:, 0], low + scale(own[:, 1])
        look = draw_options(table, encoding, chosen[encoding]) | {"markersize": 4, "zorder": 3}
        axis.plot(x, y, **look)
        bounds = np.where(np.isnan(own[:, 2:4]), own[:, 1:2], own[:, 2:4])
        bars.append(np.column_stack([x, low + scale(bounds)]))
        colours += [chosen[encoding].colour] * len(x)
    if bars:
        x, low, high = np.concatenate(bars).T
        axis.vlines(x, low, high, colors=colours, linewidth=1)


def _join(
    curves: Iterable[Sequence[tuple[float, float]]], scale: Scale, lows: Floats
) -> tuple[Floats, Floats]:
    """Return the curves of all panels as one line with gaps, to draw them in one call."""
    points = [point for curve in curves for point in (*curve, (math.nan, math.nan))]
    x, y = np.array(points).T
    return np.tile(x, len(lows)), np.add.outer(lows, scale(y)).ravel()


def _set_axes(axis: Axes, chart: CurveChart, layout: Layout) -> None:
    """Set ticks, labels and limits of the axes of a column, without labels of heights."""
    fit = int(layout.width * LABELS_PER_INCH)
    room = layout.width * TICK_CHARACTERS_PER_INCH
    lengths = keep_apart(chart.ticks, log=chart.log_x, most=fit, characters=room)
    panels.set_lengths(axis, lengths, log=chart.log_x)
    axis.set_xlim(*chart.x_limits)
    axis.set_xlabel(textwrap.fill(chart.x, int(layout.width * 11)))
    axis.set_yticks([])
    axis.set_ylim(-layout.pitch * (layout.rows - 1) - 0.1, layout.pitch)
    axis.tick_params(labelsize=SMALL)
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.patch.set_visible(False)  # keeps labels visible that extend from the left column
    for mark in chart.trained:
        panels.write_mark(axis, mark)


def _label_heights(axis: Axes, chart: CurveChart, layout: Layout) -> None:
    """Write the tick labels of the y axis to the left of each panel in a column."""
    scale = Scale(*chart.y_limits, chart.log_y)
    ticks = scale.ticks()
    labels = [f"{tick:,g}" for tick in ticks]
    axis.tick_params(axis="y", length=0)
    axis.set_yticks(scale(ticks), labels)  # the layout reserves space for these
    for low in list(layout.column(0).values())[1:]:
        for height, label in zip(low + scale(ticks), labels, strict=True):
            text = axis.annotate(
                label,
                (0, height),
                xycoords=axis.get_yaxis_transform(),
                xytext=(-rcParams["ytick.major.pad"], 0),
                textcoords="offset points",
                fontsize=SMALL,
                ha="right",
                va="center_baseline",
            )
            text.set_in_layout(False)  # five times as fast as a tick


def _write_above(axis: Axes, y: float, label: str) -> None:
    """Write a label above a panel. A long label extends above the panels to the right."""
    text = axis.annotate(
        label,
        (0, y),
        xycoords=axis.get_yaxis_transform(),
        xytext=(0, 4),
        textcoords="offset points",
        fontsize=SMALL + 1,
        va="bottom",
    )
    text.set_in_layout(False)


def _key(table: Table, baselines: Collection[str], bold: str) -> str:
    """Return a sentence that replaces a legend."""
    first = "The best first" if table.ranking.names else "In alphabetical order"
    parts = [first, "grey: all others", f"bars: {describe_bars(table)}"]
    if bold in table.encodings:
        parts.insert(2, f"bold: {bold}")
    if baselines:
        parts.append(f"dotted: best baseline ({', '.join(baselines)})")
    if any(table.learned(encoding) == 0 for encoding in table.encodings):
        parts.append("hollow, dashed: not learned")
    return "; ".join(parts)
