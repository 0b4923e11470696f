"""The scores of a task's parts side by side, all encodings in one panel."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pe_bench.reporting import panels
from pe_bench.reporting.multiples import MOST_CURVES
from pe_bench.reporting.panels import styled
from pe_bench.reporting.plot_style import (
    BARS,
    PERCENT_RANGE,
    add_legend,
    best_reference,
    describe_bars,
    draw_options,
    error_bars,
    is_percent,
    legend_width,
    short_labels,
    trained_lengths,
)
from pe_bench.reporting.styles import styles
from pe_bench.reporting.tables import Table
from pe_bench.results.views import Column

PANELS_PER_ROW = 5
LINE = 0.2  # inches, of an encoding


@styled
def draw_scores(table: Table) -> Figure:
    """Return the columns of the task side by side, those with the shortest inputs first.

    Of more encodings than colours can tell apart each has a line of its own.
    """
    views = _of_one_unit(table, table.views(Column))
    views = [view for view in views if length_of(table, view) is not None]
    views.sort(key=lambda view: length_of(table, view) or 0)
    if len(table.encodings) > MOST_CURVES:
        return _draw_lines(table, views)
    lengths = [length_of(table, view) or 0 for view in views]
    figure, (axis,) = panels.make_panels(
        1,
        per_row=1,
        size=(1.5 + 1.25 * len(views), 4.4),
        margin=(legend_width(table), 0.0),
    )
    chosen = styles(table.encodings)
    handles: dict[str, Any] = {}
    references: dict[str, Line2D] = {}
    step = 0.7 / len(table.encodings)
    for index, encoding in enumerate(table.encodings):
        shift = (index - (len(table.encodings) - 1) / 2) * step
        look = draw_options(table, encoding, chosen[encoding]) | BARS | {"linestyle": "none"}
        for place, view in enumerate(views):
            numbers = table.numbers(view.subset, view.metric)
            number = numbers[numbers["encoding"] == encoding]
            if not number.empty:
                bars = error_bars(table, number, percent=is_percent(table, view))
                x = [place + shift] * len(number)
                handles[encoding] = axis.errorbar(x, number["mean"], bars, **look)
    for place, view in enumerate(views):
        for name, line in best_reference(table, view).items():
            value = line["mean"].iloc[0]
            ends = [place - 0.45, place + 0.45]
            references[name] = panels.draw_reference(axis, ends, [value, value])
    ticks = [_describe(table, view) for view in views]
    axis.set_xticks(range(len(views)), ticks)
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlabel(f"subset, {table.axis('length')}, metric")
    axis.set_ylabel(_common_label(table, views))
    axis.set_ylim(bottom=-0.02 * axis.get_ylim()[1])  # a score of zero is a whole marker
    axis.set_xlim(-0.6, len(views) - 0.4)
    axis.grid(axis="y", alpha=0.3)
    _mark_between(axis, lengths, trained_lengths(table))
    add_legend(figure, table, handles, references)
    given = table.describe_given(view.metric for view in views)
    panels.set_title(figure, _say(table), table.heading, given, beside=legend_width(table))
    return figure


def _draw_lines(table: Table, views: Sequence[Column]) -> Figure:
    """Return a panel for each view, with a line for each encoding, the best first."""
    order = table.ranking()
    figure, axes = panels.make_panels(
        len(views),
        per_row=PANELS_PER_ROW,
        size=(2.5, LINE * len(order) + 0.9),
        margin=(legend_width(table), 0.8),
        share_y=True,
    )
    chosen = styles(table.encodings)
    references: dict[str, None] = {}
    for axis, view in zip(axes, views, strict=True):
        numbers = table.numbers(view.subset, view.metric)
        percent = is_percent(table, view)
        for name, line in best_reference(table, view).items():
            references[name] = None
            axis.axvline(line["mean"].iloc[0], **panels.REFERENCE)
        for place, encoding in enumerate(order):
            number = numbers[numbers["encoding"] == encoding]
            look = draw_options(table, encoding, chosen[encoding]) | BARS | {"linestyle": "none"}
            bars = error_bars(table, number, percent=percent)
            axis.errorbar(number["mean"], [place] * len(number), xerr=bars, **look)
        panels.set_panel_title(axis, _describe(table, view) + _beyond(table, view))
        axis.set_yticks(range(len(order)), short_labels(table, order))
        axis.tick_params(axis="y", length=0)
        axis.grid(alpha=0.3)
        if percent:
            axis.set_xlim(*PERCENT_RANGE)
    axes[0].set_ylim(len(order) - 0.4, -0.6)
    figure.supxlabel(_common_label(table, views), fontsize=10)
    key = [f"The best first; bars: {describe_bars(table)}"]
    if references:
        key.append(f"dotted: best reference ({', '.join(references)})")
    given = table.describe_given(view.metric for view in views)
    panels.set_title(figure, _say(table), table.heading, given, "; ".join(key))
    return figure


def _say(table: Table) -> str:
    """Return what a picture of scores shows."""
    costs = table.about.measures_time
    return f"{table.task_name}: {'what each part costs' if costs else 'one part after the other'}"


def _beyond(table: Table, view: Column) -> str:
    """Return a line that says how far was trained where a column goes beyond it."""
    labels = [
        label for at, label in trained_lengths(table).items() if at < (length_of(table, view) or 0)
    ]
    return "\n" + ", ".join(labels) if labels else ""


def _of_one_unit(table: Table, views: Sequence[Column]) -> list[Column]:
    """Return the columns; of several units those that share the headline's, after the headline."""
    units = {table.metric(view.metric).unit for view in views}
    if len(units) < 2:
        return list(views)
    headline = table.headline
    unit = table.metric(headline.metric).unit
    alike = [view for view in views if table.metric(view.metric).unit == unit]
    return [Column(headline.subset, headline.metric), *alike]


def _mark_between(axis: Axes, lengths: list[float], trained: Mapping[float, str]) -> None:
    """Mark where lengths that stand side by side, the shortest first, become longer."""
    places: dict[float, list[str]] = {}
    for length, label in trained.items():
        shorter = sum(other <= length for other in lengths)
        places.setdefault(shorter - 0.5, []).append(label)
    for place, labels in places.items():
        align = "left" if place < 0 else "right" if place > len(lengths) - 1 else "center"
        panels.mark_trained(axis, place, ", ".join(labels), align)


def length_of(table: Table, view: Column) -> float | None:
    """Return the length of a column's inputs; None where its numbers have none."""
    lengths = table.numbers(view.subset, view.metric)["length"].dropna()
    return None if lengths.empty else float(lengths.median())


def _describe(table: Table, view: Column) -> str:
    """Return subset, length and metric for the tick of a column."""
    title = textwrap.fill(table.metric(view.metric).title, 14)
    return f"{view.title or view.subset}\n{length_of(table, view):,.0f}\n{title}"


def _common_label(table: Table, views: Sequence[Column]) -> str:
    """Return a label for the axis of one metric or several."""
    labels = {table.label(view.metric) for view in views}
    if len(labels) == 1:
        return labels.pop()
    units = {table.metric(view.metric).unit for view in views}
    arrows = {table.arrow(view.metric) for view in views}
    unit = units.pop() if len(units) == 1 else ""
    arrow = arrows.pop() if len(arrows) == 1 else ""
    return f"score{f', {unit}' if unit else ''} {arrow}".strip()
