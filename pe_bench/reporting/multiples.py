"""Small multiples, for more encodings than colours can tell apart: a panel for each, by rank."""

import math
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from pe_bench.reporting import panels
from pe_bench.reporting.panels import styled
from pe_bench.reporting.plot_style import (
    LEAST_RANGE,
    best_reference,
    describe_bars,
    draw_options,
    error_bars,
    is_percent,
    list_curves,
    short_labels,
    trained_lengths,
)
from pe_bench.reporting.styles import styles
from pe_bench.reporting.tables import Table
from pe_bench.results.items import Floats
from pe_bench.results.views import Curve

MOST_CURVES = 8  # in a panel
COLUMNS = 4  # at most, if several encodings share a row
PERCENT = (0.0, 100.0)
LINE = 0.16  # inches, of a label's line above a panel
BEHIND = "0.84"  # grey of the other encodings
BOLD = "0.45"  # grey of the one that others are compared with, on logarithmic axes
SMALL = 8  # size of letters
CHARACTERS_PER_INCH = 14.5  # of a label


@dataclass(frozen=True)
class Scale:
    """From a metric's numbers to 0 at the lower end of a panel and 1 at its upper end."""

    low: float
    high: float
    log: bool = False

    def __call__(self, numbers: "pd.Series[float]") -> Floats:
        """Return the places of numbers; those outside are at the edge."""
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        inside = numbers.clip(self.low, self.high).to_numpy(float)
        places: Floats = ((np.log(inside) if self.log else inside) - low) / (high - low)
        return places

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
    """Where panels are: those of one view and of every n-th encoding below each other.

    Such a column is one `Axes`, with 1 for the height of a panel on its y axis: an `Axes` for each
    panel would take a minute.

    Attributes:
        labels: of the encodings, the best first, wrapped to the width of their panels.
        together: encodings in a row, each with a panel for every view.
        width, height: of a panel, inches.
    """

    labels: dict[str, str]
    together: int
    width: float
    height: float

    @property
    def pitch(self) -> float:
        """From one panel to the one below, in heights of a panel."""
        lines = 1 + max(label.count("\n") for label in self.labels.values())
        return 1 + (LINE * lines + 0.1) / self.height

    @property
    def rows(self) -> int:
        """Panels in the longest column."""
        return math.ceil(len(self.labels) / self.together)

    def column(self, number: int) -> dict[str, float]:
        """Return the encodings of a column, each with the lower end of its panel."""
        own = list(self.labels)[number :: self.together]
        return {encoding: -self.pitch * row for row, encoding in enumerate(own)}


@styled
def draw_multiples(table: Table, reference: str = "") -> Figure:
    """Return a panel for each encoding and `Curve`, with all other encodings in grey behind it.

    Args:
        table: the table.
        reference: encoding that is bold behind the others on logarithmic axes.
    """
    views = list_curves(table)
    scales = _find_scales(table, views)
    layout = _lay_out(table, len(views))
    count = len(views) * layout.together
    height = layout.rows * layout.pitch * layout.height + 1.4
    figure = Figure(figsize=(layout.width * count + 0.3, height), layout="constrained")
    references: dict[str, None] = {}
    for place, axis in enumerate(figure.subplots(1, count, squeeze=False)[0]):
        number = place % len(views)
        column = layout.column(place // len(views))
        references |= dict.fromkeys(best_reference(table, views[number]))
        _draw_column(axis, table, views[number], scales[number], column, reference)
        _set_axes(axis, table, views[number], scales[number], layout)
        if place > 0 and scales[number] == scales[number - 1]:
            axis.tick_params(labelleft=False)
        if place < len(views):
            _write_title(axis, table, views[number], layout.width)
        if number == 0:
            for encoding, low in column.items():
                _write_above(axis, low + 1, layout.labels[encoding])
    bold = reference if any(view.log_y for view in views) else ""
    key = _key(table, references, bold)
    given = table.describe_given(view.metric for view in views)
    panels.set_title(
        figure, f"{table.task_name}: one encoding at a time", table.heading, given, key
    )
    return figure


def _lay_out(table: Table, views: int) -> Layout:
    together = max(1, COLUMNS // views)
    width = max(1.9, min(2.8, 11.0 / views)) if together == 1 else 2.8
    order = table.ranking()
    ranked = enumerate(table.ranked(), 1)
    ranks = {encoding: f"{rank}.\N{NO-BREAK SPACE}" for rank, encoding in ranked}
    characters = int((width * views - 0.3) * CHARACTERS_PER_INCH)
    labels = {}
    for encoding, label in zip(order, short_labels(table, order), strict=True):
        text = ranks.get(encoding, "") + label
        labels[encoding] = textwrap.fill(text, characters, break_long_words=False)
    return Layout(labels, together, width, 0.9 if together == 1 else 1.25)


def _find_scales(table: Table, views: Sequence[Curve]) -> list[Scale]:
    """Return the scale of each view; percentages have one scale, a logarithmic metric too."""
    ranges: dict[str, list[float]] = {}
    names = []
    for number, view in enumerate(views):
        name = "%" if is_percent(table, view) else view.metric if view.log_y else str(number)
        names.append(name)
        numbers = _numbers(table, view)
        down, up = error_bars(table, numbers, percent=name == "%").fillna(0).to_numpy()
        ends = [numbers["mean"]] if view.log_y else [numbers["mean"] - down, numbers["mean"] + up]
        for line in best_reference(table, view).values():
            ends.append(line["mean"])
        ranges.setdefault(name, []).extend(float(end) for each in ends for end in each.dropna())
    return [_scale(ranges[n], v, n == "%") for n, v in zip(names, views, strict=True)]


def _scale(numbers: Sequence[float], view: Curve, percent: bool) -> Scale:
    low = min(numbers)
    high = max(numbers)
    if percent and high - low < LEAST_RANGE:
        low = max(PERCENT[0], min((low + high - LEAST_RANGE) / 2, PERCENT[1] - LEAST_RANGE))
        high = low + LEAST_RANGE
    if low == high:
        high = low * 2 if view.log_y else low + 1
    return Scale(low, high, view.log_y)


def _numbers(table: Table, view: Curve) -> pd.DataFrame:
    numbers = table.numbers(view.subset, view.metric)
    return numbers[numbers["length"].notna()].sort_values("length")


def _draw_column(
    axis: Axes,
    table: Table,
    view: Curve,
    scale: Scale,
    column: dict[str, float],
    reference: str,
) -> None:
    """Draw the panels of some encodings, below each other."""
    numbers = _numbers(table, view)
    ends = numbers["length"].agg(["min", "max"])
    lows = np.array([*column.values()])  # (panels,)
    ticks = scale(pd.Series(scale.ticks(), dtype=float))
    axis.hlines(np.add.outer(lows, ticks).ravel(), *ends, color="0.93", linewidth=0.8, zorder=0)
    axis.hlines(lows, *ends, color="0.6", linewidth=0.8, zorder=0.6)
    for length in trained_lengths(table):
        x = [length] * len(lows)
        axis.vlines(x, lows, lows + 1, colors="0.4", linestyles="--", linewidth=1, zorder=0.7)
    places = numbers.assign(place=scale(numbers["mean"]))
    curves = {str(encoding): curve for encoding, curve in places.groupby("encoding", sort=False)}
    behind = _join(curves.values(), lows)
    axis.plot(*behind, color=BEHIND, linewidth=0.8, zorder=0.5)
    if view.log_y and reference in curves:
        bold = _join([curves[reference]], lows)
        axis.plot(*bold, color=BOLD, linewidth=2.5, zorder=0.55)
    references = best_reference(table, view).values()
    dotted = [line.assign(place=scale(line["mean"])) for line in references]
    if dotted:
        panels.draw_reference(axis, *_join(dotted, lows))
    chosen = styles(table.encodings)
    shown = {encoding: low for encoding, low in column.items() if encoding in curves}
    for encoding, low in shown.items():
        look = draw_options(table, encoding, chosen[encoding])
        look |= {"markersize": 4, "zorder": 3}
        axis.plot(curves[encoding]["length"], low + curves[encoding]["place"], **look)
    own = pd.concat([curves[encoding].assign(low=low) for encoding, low in shown.items()])
    down, up = error_bars(table, own, percent=is_percent(table, view)).fillna(0).to_numpy()
    bars = (own["low"] + scale(own["mean"] - down), own["low"] + scale(own["mean"] + up))
    colours = [chosen[encoding].colour for encoding in own["encoding"]]
    axis.vlines(own["length"], *bars, color=colours, linewidth=1)


def _join(curves: Iterable[pd.DataFrame], lows: Floats) -> tuple[Floats, Floats]:
    """Return curves in all panels as one line with gaps, which is drawn at once."""
    gap = pd.DataFrame({"length": [math.nan], "place": [math.nan]})
    parts = [part for curve in curves for part in (curve[["length", "place"]], gap)]
    line = pd.concat(parts)
    x = np.tile(line["length"].to_numpy(float), len(lows))
    return x, np.add.outer(lows, line["place"].to_numpy(float)).ravel()


def _set_axes(axis: Axes, table: Table, view: Curve, scale: Scale, layout: Layout) -> None:
    """Set ticks, labels and ends of the axes of a column."""
    panels.set_lengths(axis, _numbers(table, view)["length"], log=view.log_x, width=layout.width)
    axis.set_xlabel(textwrap.fill(view.x or table.axis("length"), int(layout.width * 11)))
    ticks = scale.ticks()
    lows = layout.column(0).values()
    heights = [low + place for low in lows for place in scale(pd.Series(ticks, dtype=float))]
    axis.set_yticks(heights, [f"{tick:,g}" for tick in ticks] * len(lows))
    axis.set_ylim(-layout.pitch * (layout.rows - 1) - 0.1, layout.pitch)
    axis.tick_params(labelsize=SMALL)
    axis.tick_params(axis="y", length=0)
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.patch.set_visible(False)  # labels run on from the left
    marks = trained_lengths(table)
    for length, label in marks.items():
        before = len(marks) > 1 and length < max(marks)
        place = (axis.transScale + axis.transLimits).transform((length, 0))[0]
        panels.write_mark(axis, length, label, "right" if before and place > 0.5 else "center")


def _write_title(axis: Axes, table: Table, view: Curve, width: float) -> None:
    lines = [view.title or view.subset, table.label(view.metric)]
    panels.set_panel_title(axis, panels.wrap(lines, width - 0.4), marked=True)


def _write_above(axis: Axes, y: float, label: str) -> None:
    """Write a label above a panel; it may run on above the panels to the right."""
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


def _key(table: Table, references: Collection[str], bold: str) -> str:
    """Return in words what a legend would say."""
    first = "The best first" if table.ranked() else "In alphabetical order"
    parts = [first, "grey: all others", f"bars: {describe_bars(table)}"]
    if bold in table.encodings:
        parts.insert(2, f"bold: {bold}")
    if references:
        parts.append(f"dotted: best reference ({', '.join(references)})")
    if any(table.learned(encoding) == 0 for encoding in table.encodings):
        parts.append("hollow, dashed: not learned")
    return "; ".join(parts)
