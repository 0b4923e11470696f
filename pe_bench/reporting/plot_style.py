"""Styles of encodings in figures, and the legend."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pe_bench.reporting.chart_model import Point
from pe_bench.reporting.styles import Style
from pe_bench.reporting.tables import Table
from pe_bench.results.labels import ARROW

BARS = {"elinewidth": 1, "capsize": 2}  # style of error bars
LEGEND_ROWS = 20
INCHES_PER_CHARACTER = 0.08  # width of a character of a legend


def error_bars(points: Sequence[Point]) -> list[list[float]]:
    """Return the lengths of the error bars below and above the points."""
    down = [point.mean - point.low for point in points]
    up = [point.high - point.mean for point in points]
    return [down, up]


def draw_options(table: Table, encoding: str, style: Style) -> dict[str, Any]:
    """Return the plot options of a curve: hollow and dashed if no seed passed the task's gate."""
    learned = table.learned(encoding) > 0
    return {
        "color": style.colour,
        "marker": style.marker,
        "markersize": 5,
        "markerfacecolor": style.colour if learned else "white",
        "linestyle": "-" if learned else (0, (4, 2)),
        "linewidth": 1.5,
    }


def short_labels(table: Table, encodings: Iterable[str]) -> list[str]:
    """Return the labels of encodings without the source model, which the heading names."""
    origin = (table.about.adaptation or {}).get("from")
    prefix = f"{origin}{ARROW}" if origin else ""
    return [table.describe(encoding).removeprefix(prefix) for encoding in encodings]


def legend_width(table: Table) -> float:
    """Return the width of the legend, inches."""
    labels = short_labels(table, table.encodings)
    columns = math.ceil(len(labels) / LEGEND_ROWS)
    title = INCHES_PER_CHARACTER * len(f"encoding, {describe_bars(table)}")
    return max(title, columns * (0.6 + INCHES_PER_CHARACTER * max(map(len, labels))))


def describe_bars(table: Table) -> str:
    """Explain the error bars."""
    if table.has_seeds:
        return "± sd over seeds"
    if table.about.measures_time:
        return "± quartiles"
    return "± 95 % interval over items"


def add_legend(
    figure: Figure, table: Table, handles: Mapping[str, Any], baselines: Mapping[str, Line2D]
) -> None:
    """Add a legend of encodings and dotted baselines to the right of all panels."""
    lines = list(handles.values())
    labels = short_labels(table, handles)
    if baselines:
        lines.append(next(iter(baselines.values())))
        labels.append("best baseline:\n" + ",\n".join(baselines))
    figure.legend(
        lines,
        labels,
        loc="outside right upper",
        ncols=math.ceil(len(handles) / LEGEND_ROWS),
        frameon=False,
        title=f"encoding, {describe_bars(table)}",
        alignment="left",
    )
