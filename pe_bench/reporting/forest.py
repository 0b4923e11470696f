"""The forest plot of two encodings: their difference on each task, with its interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pe_bench.reporting import panels, sentences, verdicts
from pe_bench.reporting.panels import styled
from pe_bench.reporting.styles import Style, styles_of
from pe_bench.reporting.verdicts import Verdicts
from pe_bench.stats.comparison import Difference
from pe_bench.stats.significance import FEWEST_SEEDS

ROW = 0.5  # height of a row, inches
MIDDLE = 4.2  # width of the panel between the labels, inches
ABOVE = 48  # characters that fit above the panel
OPEN = "0.55"  # grey of differences that are not significant
BOLD = 0.085  # width of a character of a label, inches


@dataclass(frozen=True)
class ForestRow:
    """A line of the figure.

    Attributes:
        name: label on the left.
        text: label on the right, the difference in the unit of the task.
        value, low, high: difference and interval on the common scale; positive values mean
            that the first encoding is better.
        difference: the difference that the line shows.
    """

    name: str
    text: str
    value: float
    low: float
    high: float
    difference: Difference


@styled
def draw_forest(found: Verdicts) -> Figure:
    """Return a figure with a line for each task and one for their mean.

    Units differ between tasks. Therefore each difference is divided by the distance between the
    task's best baseline and its ceiling. The text on the right gives it in the task's unit.
    """
    rows = _rows(found)
    left = max(len(line) for row in rows for line in row.name.splitlines()) * BOLD
    right = max(len(row.text) for row in rows) * BOLD
    figure = Figure(figsize=(left + MIDDLE + right, ROW * len(rows) + 1.9), layout="constrained")
    axis = figure.subplots()
    records = [record for verdict in found.tasks for record in verdict.table.records]
    looks = styles_of(records, (found.first, found.second))
    axis.axvline(0, color="0.3", linewidth=1, zorder=0)
    for index, row in enumerate(rows):
        _draw_row(axis, -index, row, looks[found.first if row.value > 0 else found.second])
    if found.mean is not None:
        axis.axhline(0.5 - len(rows) + 1, color="0.8", linewidth=1, zorder=0)
    axis.set_yticks(range(0, -len(rows), -1), [row.name for row in rows])
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(0.6 - len(rows), 0.6)
    _scale(axis, rows)
    axis.grid(axis="x", alpha=0.3)
    axis.spines["left"].set_visible(False)
    _name_sides(axis, f"← {found.second} better", f"{found.first} better →")
    axis.set_xlabel("difference of scores (0: best baseline of the task, 1: its ceiling)")
    panels.set_title(figure, sentences.title(found), *_key(found))
    return figure


def _draw_row(axis: Axes, y: float, row: ForestRow, winner: Style) -> None:
    """Draw a difference with its interval, in the style of the better encoding if significant."""
    apart = row.difference.significant
    colour = winner.colour if apart else OPEN
    if not math.isnan(row.low):
        axis.plot([row.low, row.high], [y, y], color=colour, linewidth=2, zorder=1)
        axis.plot([row.low, row.high], [y, y], "|", color=colour, markersize=8, zorder=1)
    axis.plot(
        row.value,
        y,
        marker=winner.marker if apart else "o",
        markersize=9,
        color=colour,
        markerfacecolor=colour if apart else "white",
        zorder=2,
    )
    axis.annotate(
        row.text,
        (1.0, y),
        xycoords=("axes fraction", "data"),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color="black" if apart else panels.GREY,
    )


def _scale(axis: Axes, rows: Sequence[ForestRow]) -> None:
    """Set limits around 0 that contain all intervals."""
    ends = [abs(end) for row in rows for end in (row.value, row.low, row.high)]
    reach = 1.1 * max(filter(math.isfinite, ends))
    axis.set_xlim(-(reach or 1), reach or 1)
    axis.xaxis.set_major_locator(MaxNLocator(7))
    axis.xaxis.set_major_formatter(FuncFormatter(_tick))


def _name_sides(axis: Axes, left: str, right: str) -> None:
    """Write above each half which encoding is better there."""
    crowded = len(left) + len(right) > ABOVE
    for x, side, text in ((0.0, "left", left), (1.0, "right", right)):
        axis.annotate(
            text,
            (x, 1.0),
            xycoords="axes fraction",
            xytext=(0, 16 if crowded and x == 0 else 3),
            textcoords="offset points",
            ha=side,
            va="bottom",
            fontsize=9,
            color=panels.GREY,
        )


def _rows(found: Verdicts) -> list[ForestRow]:
    names = sentences.names_of([verdict.table for verdict in found.tasks])
    rows = []
    for name, verdict in zip(names, found.tasks, strict=True):
        table = verdict.table
        metric = table.ranking.metric
        label = f"{name}\n{metric.title} {metric.arrow}, {table.headline.subset}"
        value, low, high = verdicts.scaled(verdict)
        text = sentences.own_unit(verdict)
        rows.append(ForestRow(label, text, value, low, high, verdict.difference))
    if found.mean is not None:
        mean = found.mean
        text = f"{mean.value:+.3f}"
        text += f" ({mean.low:+.3f} to {mean.high:+.3f})" if mean.has_interval else ""
        rows.append(ForestRow("mean score", text, mean.value, mean.low, mean.high, mean))
    return rows


def _key(found: Verdicts) -> Sequence[str]:
    """Return how to read the marks."""
    shown = [verdict.difference for verdict in found.tasks]
    tasks = len(shown)
    shown += [found.mean] if found.mean is not None else []
    line = "Lines: 95 % intervals, each for one difference alone."
    if any(difference.significant for difference in shown):
        line += " Filled, in the colour of the better one: significant."
    if not all(difference.significant for difference in shown):
        few = any(difference.seeds < FEWEST_SEEDS for difference in shown)
        line += f" Hollow grey: not significant{' or not tested' if few else ''}"
        line += "." if tasks == 1 else f"; tasks are corrected for {tasks} comparisons."
    given = [
        verdict.table.describe_given([verdict.table.headline.metric]) for verdict in found.tasks
    ]
    return [line, *dict.fromkeys(given)]


def _tick(value: float, _: int) -> str:
    return "0" if abs(value) < 1e-9 else f"{value:+.3g}"
