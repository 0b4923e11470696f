"""Panels, legends and labels of figures at the width of a paper's column."""

import math
import re
from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from pe_bench.reporting import panels
from pe_bench.reporting.chart_layout import keep_apart
from pe_bench.reporting.chart_model import TrainedLength
from pe_bench.reporting.plot_style import draw_options
from pe_bench.reporting.styles import Style
from pe_bench.reporting.tables import Table

SMALL = 7.0  # font size of ticks and legends, the smallest one
MEDIUM = 8.0  # font size of titles and labels of axes
PER_INCH = {SMALL: 19.0, MEDIUM: 16.0}  # characters of a text per inch
LEGEND_LINE = 0.14  # height of a line of a legend, inches
LEGEND_KEY = 0.6  # width of a legend entry without its text, inches
TICKS_PER_INCH = 3  # tick labels of lengths per inch
TITLE_LINE = 0.14  # height of a line of a panel's title, inches
TITLE_LINES = 2  # lines that the title of a panel has, if the figure is wide enough
BESIDE_TITLE = 0.4  # width of a panel where its title cannot be, inches
AXIS = 0.5  # width of tick labels and label of a y axis, inches
MARKER = {"markersize": 3.5, "markeredgewidth": 0.8}
DASHES: Sequence[Any] = ("--", "-.", ":")  # styles of the lines of several training lengths

STYLE: Any = panels.STYLE | {
    "font.size": MEDIUM,
    "axes.titlesize": MEDIUM,
    "axes.labelsize": MEDIUM,
    "figure.labelsize": MEDIUM,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.titlepad": 3.0,
    "axes.labelpad": 2.0,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.3,
}

styled = rc_context(STYLE)
"""Decorator for functions that draw."""


def make_panels(
    count: int, width: float, *, least: float, height: float, legend: int = 0, **shared: bool
) -> tuple[Figure, list[Axes]]:
    """Return a figure of a given width with panels in rows as even as possible.

    Args:
        count: number of panels.
        width: width of the figure, inches.
        least: smallest width of a panel, inches.
        height: height of a panel, inches.
        legend: number of lines of the legend above the panels.
        **shared: `share_x` and `share_y`, as in `panels.make_panels`.
    """
    per_row = max(1, int(width / least))
    columns = math.ceil(count / math.ceil(count / per_row))
    figure, axes = panels.make_panels(
        count,
        per_row=per_row,
        size=(width / columns, height),
        margin=(0.0, 0.2 + LEGEND_LINE * legend),
        **shared,
    )
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.02, h_pad=0.03, wspace=0.02, hspace=0.03)
    return figure, axes


def panel_width(axis: Axes, width: float) -> float:
    """Return the width of a panel of a figure of a given width, inches."""
    cell = axis.get_subplotspec()
    assert cell is not None
    return width / cell.get_gridspec().ncols


def legend_lines(labels: Sequence[str], width: float) -> tuple[list[str], int, int]:
    """Return the wrapped labels of a legend, and its numbers of columns and of lines.

    Args:
        labels: the labels.
        width: width of the figure, inches.
    """
    wrapped = [panels.wrap([label], width - LEGEND_KEY, PER_INCH[SMALL]) for label in labels]
    longest = max((len(line) for label in wrapped for line in label.splitlines()), default=0)
    columns = max(1, int(width / (LEGEND_KEY + longest / PER_INCH[SMALL])))
    columns = min(columns, len(labels))
    rows = math.ceil(len(labels) / max(1, columns))
    most = max((label.count("\n") + 1 for label in wrapped), default=0)
    return wrapped, columns, rows * most


def add_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Add a legend above all panels."""
    if not handles:
        return
    wrapped, columns, _ = legend_lines(labels, figure.get_figwidth())
    figure.legend(
        handles,
        wrapped,
        loc="outside upper center",
        ncols=columns,
        frameon=False,
        handlelength=2.0,
        handletextpad=0.5,
        columnspacing=1.0,
        labelspacing=0.3,
        borderpad=0.1,
    )


def curve_style(table: Table, encoding: str, style: Style) -> dict[str, Any]:
    """Return the plot options of a curve: those of a report, with thinner lines."""
    thin = {"linewidth": 1.1, "elinewidth": 0.7, "capsize": 1.5}
    return draw_options(table, encoding, style) | MARKER | thin


def point_style(table: Table, encoding: str, style: Style) -> dict[str, Any]:
    """Return the plot options of a point."""
    return draw_options(table, encoding, style) | MARKER | {"linestyle": "none"}


def draw_marks(axis: Axes, marks: Sequence[TrainedLength], found: dict[str, Line2D]) -> None:
    """Draw a line at each training length, and add it to `found` for the legend."""
    for mark in marks:
        known = found.get(mark.label)
        style = known.get_linestyle() if known else DASHES[len(found) % len(DASHES)]
        line = axis.axvline(mark.x, color="0.4", linestyle=style, linewidth=0.8, zorder=0)
        found.setdefault(mark.label, line)


def set_lengths(axis: Axes, lengths: Sequence[float], width: float, *, log: bool) -> None:
    """Set an x axis of lengths with as many labels as fit into a panel of a width, inches."""
    fit = max(2, int((width - AXIS) * TICKS_PER_INCH))
    panels.set_lengths(axis, keep_apart(lengths, log=log, most=fit), log=log)


def title_size(titles: Sequence[str], least: float, width: float) -> tuple[float, float]:
    """Return the smallest width of panels with these titles, and the height of the longest one.

    Args:
        titles: titles of the panels.
        least: smallest width without regard to titles, inches.
        width: width of the figure, inches.
    """
    longest = max(len(title) for title in titles) / TITLE_LINES
    word = max((len(word) for title in titles for word in title.split()), default=0)
    needed = max(longest, word) / PER_INCH[MEDIUM] + BESIDE_TITLE + 0.05
    panel = min(max(least, needed), width)
    panel = width / int(width / panel)
    most = max(_wrap_title(title, panel).count("\n") for title in titles)
    return panel, TITLE_LINE * (most + 1)


def _wrap_title(title: str, width: float) -> str:
    return panels.wrap([title], width - BESIDE_TITLE, PER_INCH[MEDIUM])


def set_title(axis: Axes, title: str, width: float) -> None:
    """Write a title above a panel of a width, inches."""
    axis.set_title(_wrap_title(title, width), loc="left")


def set_labels(
    figure: Figure, axes: Sequence[Axes], xs: Sequence[str], ys: Sequence[str], height: float
) -> None:
    """Write the labels of axes: one for all panels, or one for each panel if they differ.

    Args:
        figure: the figure.
        axes: its panels.
        xs, ys: labels of each panel.
        height: height of a panel, inches.
    """
    xs = [keep_arrow(x) for x in xs]
    ys = [keep_arrow(y) for y in ys]
    rows = axes[0].get_subplotspec()
    assert rows is not None
    shape = rows.get_gridspec().get_geometry()  # rows, columns
    width = figure.get_figwidth() / shape[1] - AXIS
    height -= 0.3  # title and tick labels
    if len(set(xs)) == 1:
        figure.supxlabel(panels.wrap(xs[:1], figure.get_figwidth(), PER_INCH[MEDIUM]))
    else:
        for axis, x in zip(axes, xs, strict=True):
            axis.set_xlabel(panels.wrap([x], width, PER_INCH[MEDIUM]))
    if len(set(ys)) == 1:
        figure.supylabel(panels.wrap(ys[:1], height * shape[0], PER_INCH[MEDIUM]))
    else:
        for axis, y in zip(axes, ys, strict=True):
            axis.set_ylabel(panels.wrap([y], height, PER_INCH[MEDIUM]))


def keep_arrow(label: str) -> str:
    """Return a label whose arrow at the end is never alone on a line."""
    return re.sub(r" (?=[↑↓]$)", "\N{NO-BREAK SPACE}", label)


def finish(figure: Figure) -> Figure:
    """Lay out a figure, centre common labels, remove tick labels that overlap others."""
    figure.set_dpi(300)
    figure.draw_without_rendering()
    boxes = [axes.get_position() for axes in figure.axes if axes.get_visible()]
    for text in figure.texts:  # the common labels, see `set_labels`
        if text.get_rotation():
            bottom = min(box.y0 for box in boxes)
            top = max(box.y1 for box in boxes)
            text.set_y((bottom + top) / 2)
        else:
            left = min(box.x0 for box in boxes)
            right = max(box.x1 for box in boxes)
            text.set_x((left + right) / 2)
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            _thin_labels(axis)
    return figure


def overlapping(texts: Sequence[Text], gap: float = 0.0) -> list[tuple[str, str]]:
    """Return the pairs of texts whose bounding boxes overlap, or are closer than 2 `gap` pixels."""
    boxes = [(text.get_text(), text.get_window_extent().padded(gap)) for text in texts]
    pairs = []
    for number, (one, box) in enumerate(boxes):
        for other, other_box in boxes[number + 1 :]:
            if box.overlaps(other_box):
                pairs.append((one, other))
    return pairs


def _shown_labels(axis: Axis) -> list[Text]:
    """Return the labels of the ticks within the limits of an axis."""
    low, high = sorted(axis.get_view_interval())
    slack = 1e-6 * (high - low)
    ticks = [t for t in axis.get_major_ticks() if low - slack <= t.get_loc() <= high + slack]
    labels = [tick.label1 for tick in ticks]
    return [label for label in labels if label.get_visible() and label.get_text().strip()]


def _thin_labels(axis: Axis) -> None:
    """Remove labels of an axis until none overlap; the last one remains."""
    labels = _shown_labels(axis)
    gap = SMALL / 4 * axis.axes.figure.dpi / 72  # pixels
    step = 1
    while overlapping(labels[::-1][::step], gap):
        step += 1
    if step > 1:
        kept = {*labels[::-1][::step]}
        ticks = axis.get_major_ticks()
        texts = [tick.label1.get_text() if tick.label1 in kept else "" for tick in ticks]
        axis.set_ticks([float(tick.get_loc()) for tick in ticks], texts)
