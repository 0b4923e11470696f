"""Curves of all encodings over lengths, a panel for each `Curve` of a task."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from pe_bench.reporting import panels
from pe_bench.reporting.multiples import MOST_CURVES, draw_multiples
from pe_bench.reporting.panels import styled
from pe_bench.reporting.plot_style import (
    BARS,
    LEAST_RANGE,
    PERCENT_RANGE,
    add_legend,
    best_reference,
    draw_options,
    error_bars,
    is_percent,
    legend_width,
    list_curves,
    trained_lengths,
)
from pe_bench.reporting.styles import styles
from pe_bench.reporting.tables import Table

PANELS_PER_ROW = 4
WIDTH = 4.6  # of a panel, inches


@styled
def draw_curves(table: Table, reference: str = "") -> Figure:
    """Return a panel for each `Curve` of the task, with a curve for each encoding.

    Of more encodings than colours can tell apart each has panels of its own.

    Args:
        table: the table.
        reference: encoding whose curve is bold on logarithmic axes.
    """
    if len(table.encodings) > MOST_CURVES:
        return draw_multiples(table, reference)
    views = list_curves(table)
    figure, axes = panels.make_panels(
        len(views),
        per_row=PANELS_PER_ROW,
        size=(WIDTH, 3.9),
        margin=(legend_width(table), 0.3),
    )
    chosen = styles(table.encodings)
    handles: dict[str, Any] = {}
    references: dict[str, Line2D] = {}
    percentages: list[Axes] = []
    logarithmic: dict[str, list[Axes]] = {}
    for axis, view in zip(axes, views, strict=True):
        numbers = table.numbers(view.subset, view.metric)
        numbers = numbers[numbers["length"].notna()]
        for order, encoding in enumerate(table.encodings):
            curve = numbers[numbers["encoding"] == encoding].sort_values("length")
            if not curve.empty:
                look = draw_options(table, encoding, chosen[encoding]) | BARS
                # Later curves are thinner, so that those below can be seen where they coincide.
                look["linewidth"] = 2.6 - 1.6 * order / len(table.encodings)
                if view.log_y and encoding == reference:
                    look |= {"linewidth": 4.0, "zorder": 3}
                bars = error_bars(table, curve, percent=is_percent(table, view))
                handles[encoding] = axis.errorbar(curve["length"], curve["mean"], bars, **look)
        panels.set_lengths(axis, numbers["length"], log=view.log_x, width=WIDTH)
        axis.set_xlabel(view.x or table.axis("length"))
        if view.log_y:
            _set_log_y(axis)
            logarithmic.setdefault(view.metric, []).append(axis)
        axis.set_ylabel(table.label(view.metric))
        axis.grid(axis="y", alpha=0.3)
        panels.set_panel_title(axis, view.title or view.subset, marked=True)
        for length, label in trained_lengths(table).items():
            panels.mark_trained(axis, length, label)
        for name, line in best_reference(table, view).items():
            references[name] = panels.draw_reference(axis, line["length"], line["mean"])
        if is_percent(table, view):
            percentages.append(axis)
    _share_percent_range(percentages)
    for alike in logarithmic.values():
        _share_range(alike)
    add_legend(figure, table, handles, references)
    given = table.describe_given(view.metric for view in views)
    panels.set_title(figure, _say(table), table.heading, given, beside=legend_width(table))
    return figure


def _say(table: Table) -> str:
    """Return what a picture of curves shows."""
    if table.about.measures_time:
        return f"{table.task_name}: what it costs as inputs get longer"
    if trained_lengths(table):
        return f"{table.task_name}: what is left beyond what was trained"
    return f"{table.task_name}: scores by length"


def _set_log_y(axis: Axes) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.yaxis.set_minor_formatter(NullFormatter())


def _share_percent_range(axes: list[Axes]) -> None:
    """Give panels of percentages one range, which ends where percentages do."""
    ranges = [axis.get_ylim() for axis in axes]
    for axis in axes:
        low = min(low for low, _ in ranges)
        high = max(high for _, high in ranges)
        if high - low < LEAST_RANGE:
            middle = (low + high) / 2
            low = middle - LEAST_RANGE / 2
            high = middle + LEAST_RANGE / 2
        axis.set_ylim(max(low, PERCENT_RANGE[0]), min(high, PERCENT_RANGE[1]))


def _share_range(axes: list[Axes]) -> None:
    """Give panels of one metric one range."""
    ranges = [axis.get_ylim() for axis in axes]
    for axis in axes:
        axis.set_ylim(min(low for low, _ in ranges), max(high for _, high in ranges))
