"""Pictures of all encodings in one panel: curves over lengths, and scores of the parts."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from pe_bench.reporting import charts
from pe_bench.reporting.charts import styled
from pe_bench.reporting.styles import Style, styles
from pe_bench.reporting.tables import Table, select
from pe_bench.results.views import Column, Curve

PANELS_PER_ROW = 4
PERCENT_RANGE = (-3.0, 103.0)  # a marker at 0 or 100 is whole
LEAST_RANGE = 40.0  # of percentages
LEGEND_ROWS = 20


@styled
def draw_curves(table: Table, reference: str = "") -> Figure:
    """Return a panel for each `Curve` of the task, with a curve for each encoding.

    Args:
        table: the table.
        reference: encoding whose curve is bold on logarithmic axes.
    """
    views = table.views(Curve)
    figure, axes = charts.make_panels(
        len(views),
        per_row=PANELS_PER_ROW,
        size=(4.6, 3.9),
        margin=(_legend_width(table), 0.3),
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
                look = _look(table, encoding, chosen[encoding])
                # Later curves are thinner, so that those below can be seen where they coincide.
                look["linewidth"] = 2.6 - 1.6 * order / len(table.encodings)
                if view.log_y and encoding == reference:
                    look |= {"linewidth": 4.0, "zorder": 3}
                bars = _bars(table, curve, percent=_is_percent(table, view))
                handles[encoding] = axis.errorbar(curve["length"], curve["mean"], bars, **look)
        _set_x(axis, view, numbers, table.axis("length"))
        if view.log_y:
            _set_log_y(axis)
            logarithmic.setdefault(view.metric, []).append(axis)
        axis.set_ylabel(table.label(view.metric))
        axis.grid(axis="y", alpha=0.3)
        charts.set_panel_title(axis, view.title or view.subset, marked=True)
        for length, label in trained_lengths(table).items():
            charts.mark_trained(axis, length, label)
        for name, line in best_reference(table, view).items():
            references[name] = charts.draw_reference(axis, line["length"], line["mean"])
        if _is_percent(table, view):
            percentages.append(axis)
    _share_percent_range(percentages)
    for alike in logarithmic.values():
        _share_range(alike)
    _add_legend(figure, table, handles, references)
    charts.set_title(figure, _say(table), table.heading, beside=_legend_width(table))
    return figure


@styled
def draw_scores(table: Table) -> Figure:
    """Return the columns of the task side by side, those with the shortest inputs first."""
    views = _of_one_unit(table, table.views(Column))
    views = [view for view in views if length_of(table, view) is not None]
    views.sort(key=lambda view: length_of(table, view) or 0)
    lengths = [length_of(table, view) or 0 for view in views]
    figure, (axis,) = charts.make_panels(
        1,
        per_row=1,
        size=(1.5 + 1.25 * len(views), 4.4),
        margin=(_legend_width(table), 0.0),
    )
    chosen = styles(table.encodings)
    handles: dict[str, Any] = {}
    references: dict[str, Line2D] = {}
    step = 0.7 / len(table.encodings)
    for index, encoding in enumerate(table.encodings):
        shift = (index - (len(table.encodings) - 1) / 2) * step
        look = _look(table, encoding, chosen[encoding])
        look["linestyle"] = "none"
        for place, view in enumerate(views):
            numbers = table.numbers(view.subset, view.metric)
            number = numbers[numbers["encoding"] == encoding]
            if not number.empty:
                bars = _bars(table, number, percent=_is_percent(table, view))
                x = [place + shift] * len(number)
                handles[encoding] = axis.errorbar(x, number["mean"], bars, **look)
    for place, view in enumerate(views):
        for name, line in best_reference(table, view).items():
            value = line["mean"].iloc[0]
            ends = [place - 0.45, place + 0.45]
            references[name] = charts.draw_reference(axis, ends, [value, value])
    ticks = [_describe(table, view) for view in views]
    axis.set_xticks(range(len(views)), ticks)
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlabel(f"subset, {table.axis('length')}, metric")
    axis.set_ylabel(_common_label(table, views))
    axis.set_ylim(bottom=-0.02 * axis.get_ylim()[1])  # a score of zero is a whole marker
    axis.set_xlim(-0.6, len(views) - 0.4)
    axis.grid(axis="y", alpha=0.3)
    _mark_between(axis, lengths, trained_lengths(table))
    _add_legend(figure, table, handles, references)
    costs = table.about.measures_time
    message = (
        f"{table.task_name}: {'what each part costs' if costs else 'one part after the other'}"
    )
    charts.set_title(figure, message, table.heading, beside=_legend_width(table))
    return figure


def _of_one_unit(table: Table, views: Sequence[Column]) -> list[Column]:
    """Return the columns; of several units those that share the headline's, after the headline."""
    units = {table.metric(view.metric).unit for view in views}
    if len(units) < 2:
        return list(views)
    headline = table.headline
    unit = table.metric(headline.metric).unit
    alike = [view for view in views if table.metric(view.metric).unit == unit]
    return [Column(headline.subset, headline.metric), *alike]


def best_reference(table: Table, view: Curve | Column) -> dict[str, pd.DataFrame]:
    """Return the best reference by its name, with its scores by ascending length."""
    if table.references is None:
        return {}
    scores = select(table.references, view.subset, view.metric).sort_values("length")
    if isinstance(view, Curve):
        scores = scores[scores["length"].notna()]
    means = scores.groupby("encoding", sort=False)["mean"].mean()
    if means.empty:
        return {}
    best = means.idxmax() if table.metric(view.metric).higher_is_better else means.idxmin()
    return {str(best): scores[scores["encoding"] == best]}


def _say(table: Table) -> str:
    """Return what a picture of curves shows."""
    if table.about.measures_time:
        return f"{table.task_name}: what it costs as inputs get longer"
    beyond = ", and what is left beyond it" if trained_lengths(table) else ""
    return f"{table.task_name}: within what was trained{beyond}"


def _set_x(axis: Axes, view: Curve, numbers: pd.DataFrame, label: str) -> None:
    lengths = sorted(numbers["length"].unique())
    log = view.log_x and lengths[0] > 0
    if log:
        axis.set_xscale("log", base=2)
    ticks = charts.keep_apart(lengths, log=log)
    axis.set_xticks(ticks, [f"{length:,.0f}" for length in ticks])
    axis.minorticks_off()
    axis.set_xlabel(view.x or label)


def _set_log_y(axis: Axes) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.yaxis.set_minor_formatter(NullFormatter())


def _is_percent(table: Table, view: Curve | Column) -> bool:
    return table.metric(view.metric).unit == "%"


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


def _bars(table: Table, numbers: pd.DataFrame, *, percent: bool) -> pd.DataFrame:
    """Return the lengths of error bars down and up (2, N), within 0 and 100 for percentages.

    They are standard deviations over seeds, or, where no encoding has two, 95 % intervals over
    items, quartiles over repetitions where times are measured: one meaning in a picture.
    """
    if _has_seeds(table):
        down = numbers["sd"]
        up = numbers["sd"]
        if percent:
            down = down.clip(upper=numbers["mean"].clip(lower=0))
            up = up.clip(upper=(100 - numbers["mean"]).clip(lower=0))
    else:
        down = numbers["mean"] - numbers["ci_low"]
        up = numbers["ci_high"] - numbers["mean"]
    return pd.DataFrame([down, up])


def _has_seeds(table: Table) -> bool:
    return bool(table.scores["seeds"].max() > 1)


def _look(table: Table, encoding: str, style: Style) -> dict[str, Any]:
    """Return the options of a curve: hollow and dashed if what was trained was not learned."""
    learned = table.learned(encoding) > 0
    return {
        "color": style.colour,
        "marker": style.marker,
        "markersize": 5,
        "markerfacecolor": style.colour if learned else "white",
        "linestyle": "-" if learned else (0, (4, 2)),
        "linewidth": 1.5,
        "elinewidth": 1,
        "capsize": 2,
    }


def trained_lengths(table: Table) -> dict[float, str]:
    """Return the lengths of training, each with the label of its line."""
    about = table.about
    if about.measures_time:  # nothing is trained
        return {}
    if about.fine_tune_length is not None and about.train_length is not None:
        return {
            about.train_length: f"pre-trained to {about.train_length:,}",
            about.fine_tune_length: f"fine-tuned to {about.fine_tune_length:,}",
        }
    if about.max_train_axis is not None:
        return {about.max_train_axis: f"trained to {about.max_train_axis:,g}"}
    return {}


def _mark_between(axis: Axes, lengths: list[float], trained: Mapping[float, str]) -> None:
    """Mark where lengths that stand side by side, the shortest first, become longer."""
    places: dict[float, list[str]] = {}
    for length, label in trained.items():
        shorter = sum(other <= length for other in lengths)
        places.setdefault(shorter - 0.5, []).append(label)
    for place, labels in places.items():
        align = "left" if place < 0 else "right" if place > len(lengths) - 1 else "center"
        charts.mark_trained(axis, place, ", ".join(labels), align)


def length_of(table: Table, view: Column) -> float | None:
    """Return the length of a column's inputs; None where its numbers have none."""
    lengths = table.numbers(view.subset, view.metric)["length"].dropna()
    return None if lengths.empty else float(lengths.median())


def _describe(table: Table, view: Column) -> str:
    """Return subset, length and metric for the tick of a column."""
    title = textwrap.fill(table.metric(view.metric).title, 14)
    return f"{view.title or view.subset}\n{length_of(table, view):,.0f}\n{title}"


def _common_label(table: Table, views: list[Column]) -> str:
    """Return a label for the axis of one metric or several."""
    labels = {table.label(view.metric) for view in views}
    if len(labels) == 1:
        return labels.pop()
    percent = all(_is_percent(table, view) for view in views)
    arrows = {table.arrow(view.metric) for view in views}
    if table.about.measures_time and len(arrows) == 1:
        return f"{table.metric(views[0].metric).unit} {arrows.pop()}"
    return f"score{', %' if percent else ''} {arrows.pop() if len(arrows) == 1 else ''}".strip()


def _legend_width(table: Table) -> float:
    """Return the room of a legend, inches."""
    labels = [table.describe(encoding) for encoding in table.encodings]
    columns = math.ceil(len(labels) / LEGEND_ROWS)
    return max(1.7, columns * (0.6 + 0.075 * max(map(len, labels))))


def _add_legend(
    figure: Figure, table: Table, handles: Mapping[str, Any], references: Mapping[str, Line2D]
) -> None:
    """Name the encodings on the right of all panels, and the references that are dotted there."""
    bars = "95 % interval over items"
    if _has_seeds(table):
        bars = "sd over seeds"
    elif table.about.measures_time:
        bars = "quartiles"
    lines = list(handles.values())
    labels = [table.describe(encoding) for encoding in handles]
    if references:
        lines.append(next(iter(references.values())))
        labels.append("best reference:\n" + ",\n".join(references))
    figure.legend(
        lines,
        labels,
        loc="outside right upper",
        ncols=math.ceil(len(handles) / LEGEND_ROWS),
        frameon=False,
        title=f"encoding, ± {bars}",
        alignment="left",
    )
