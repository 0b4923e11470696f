"""Make the charts of scores: curves over lengths, and the parts of a task side by side."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pe_bench.reporting import chart_layout as layout
from pe_bench.reporting.chart_layout import Limits
from pe_bench.reporting.chart_model import Baseline, CurveChart, Point, ScoreChart, TrainedLength
from pe_bench.reporting.chart_titles import title_curve
from pe_bench.reporting.tables import Table, select
from pe_bench.results.views import Column, Curve

LABEL = 0.3
"""Approximate width of the label of a training length, relative to a panel."""


def make_curves(table: Table) -> list[CurveChart]:
    """Return a chart for each curve of the task.

    If several metrics have equal numbers throughout a subset, only the first is shown. For
    example, accuracy and exact match are equal if each item has one answer.
    """
    views = _distinct(table, table.views(Curve))
    series = [_series(table, view) for view in views]
    baselines = [_baselines(table, view) for view in views]
    limits = _curve_limits(table, views, series, baselines)
    charts = []
    for number, view in enumerate(views):
        lengths = sorted({point.x for points in series[number].values() for point in points})
        log = view.log_x and lengths[0] > 0
        trained = {x: label for x, label in trained_lengths(table).items() if x > 0 or not log}
        x_limits = layout.pad(min([*lengths, *trained]), max([*lengths, *trained]), log=log)
        charts.append(
            CurveChart(
                metric=view.metric,
                title=title_curve(table, view),
                says=_describe_end(table, view, series[number], lengths[-1]),
                x=view.x or table.axis("length"),
                y=table.metric(view.metric).label,
                log_x=log,
                log_y=view.log_y,
                x_limits=x_limits,
                y_limits=limits[number],
                ticks=layout.keep_apart(lengths, log=log),
                trained=_marks(trained, x_limits, log=log),
                baselines=baselines[number],
                series=series[number],
            )
        )
    return charts


def make_scores(table: Table) -> ScoreChart | None:
    """Return the chart of the parts of a task; None if no part has a length."""
    length_of: dict[Column, float] = {}
    for view in _of_one_unit(table, table.views(Column)):
        length = _length_of(table, view)
        if length is not None:
            length_of[view] = length
    if not length_of:
        return None
    views = sorted(length_of, key=lambda view: length_of[view])
    lengths = [length_of[view] for view in views]
    series: dict[str, list[Point]] = {}
    baselines = []
    for index, view in enumerate(views):
        for row in table.numbers(view.subset, view.metric).to_dict("records"):
            series.setdefault(row["encoding"], []).append(_point(table, index, row))
        for one in _baselines(table, view):
            baselines.append(Baseline(one.name, [(index, one.points[0][1])]))
    metrics = [view.metric for view in views]
    x_names, ticks = _name_parts(table, views, lengths)
    ends = _ends(series, baselines)
    percent = all(table.metric(name).is_percent for name in metrics)
    return ScoreChart(
        metrics=metrics,
        parts=[view.title or view.subset for view in views],
        ticks=ticks,
        x=", ".join(x_names),
        y=_common_label(table, views),
        percent=percent,
        y_limits=layout.pad(min(0.0, *ends), max(0.0, *ends), by=0.02),
        trained=_mark_borders(table, lengths),
        baselines=baselines,
        series=series,
    )


def _name_parts(
    table: Table, views: Sequence[Column], lengths: Sequence[float]
) -> tuple[list[str], list[str]]:
    """Return the names of the lines of a tick, and the tick of each part of a task.

    A tick names the metric only if the metrics of the parts differ.
    """
    names = ["subset", table.axis("length")]
    ticks = []
    for view, length in zip(views, lengths, strict=True):
        ticks.append([view.title or view.subset, f"{length:,.0f}"])
    titles = [table.metric(view.metric).title for view in views]
    if len(set(titles)) > 1:
        names.append("metric")
        for lines, title in zip(ticks, titles, strict=True):
            lines.append(textwrap.fill(title, layout.TICK_WIDTH))
    return names, ["\n".join(lines) for lines in ticks]


def _mark_borders(table: Table, lengths: Sequence[float]) -> list[TrainedLength]:
    """Return the marks between parts of a task that are trained on and longer ones.

    Args:
        table: the table.
        lengths: ascending lengths of the parts.
    """
    borders: dict[float, list[str]] = {}
    for trained, label in trained_lengths(table).items():
        shorter = sum(length <= trained for length in lengths)
        borders.setdefault(shorter - 0.5, []).append(label)
    marks = {x: ", ".join(labels) for x, labels in borders.items()}
    return _marks(marks, (-0.5, len(lengths) - 0.5))


def _ends(
    series: Mapping[str, Sequence[Point]],
    baselines: Sequence[Baseline],
    *,
    with_bars: bool = True,
) -> list[float]:
    """Return the values that a chart has to show.

    Args:
        series: the points of each encoding.
        baselines: the baselines.
        with_bars: whether the ends of error bars are among the values.
    """
    ends: list[float] = []
    for points in series.values():
        for point in points:
            ends += point.ends if with_bars else [point.mean]
    for one in baselines:
        ends += [y for _, y in one.points]
    return ends


def trained_lengths(table: Table) -> dict[float, str]:
    """Return the training lengths, each with the label of its line."""
    about = table.about
    if about.measures_time:  # nothing is trained
        return {}
    if about.adaptation is not None:
        return _adapted_lengths(table)
    if about.fine_tune_length is not None and about.train_length is not None:
        return {
            about.train_length: f"pre-trained to {about.train_length:,}",
            about.fine_tune_length: f"fine-tuned to {about.fine_tune_length:,}",
        }
    if about.max_train_axis is not None:
        return {about.max_train_axis: f"trained to {about.max_train_axis:,g}"}
    return {}


def _adapted_lengths(table: Table) -> dict[float, str]:
    """Return the training lengths of the source model and of the adapted models."""
    about = table.about
    first = about.max_train_axis or about.train_length or 0
    lengths = {float(first): f"trained to {first:,g}"}
    for record in table.records:
        config = (record.adaptation or {}).get("config", {})
        if config.get("steps") and config.get("length"):
            lengths.setdefault(float(config["length"]), f"some to {config['length']:,}")
    return lengths


def _marks(
    trained: Mapping[float, str], limits: Limits, *, log: bool = False
) -> list[TrainedLength]:
    """Return marks with labels that stay within the panel and do not overlap."""
    shares = {x: layout.place_in(limits, x, log=log) for x in trained}
    close = len(shares) > 1 and max(shares.values()) - min(shares.values()) < LABEL
    marks = []
    for x, label in trained.items():
        is_first_of_several = x == min(trained) < max(trained)
        if close:
            align = "right" if is_first_of_several else "left"
        elif is_first_of_several:
            align = "center"
        else:
            align = "right" if shares[x] > 0.5 else "left"
        marks.append(TrainedLength(x, label, align))
    return marks


def _distinct(table: Table, views: Sequence[Curve]) -> list[Curve]:
    """Remove views whose numbers equal those of an earlier view of the same subset."""
    shown: dict[tuple[str, str], dict[str, pd.DataFrame]] = {}
    found = []
    for view in views:
        scores = table.numbers(view.subset, view.metric).sort_values(["encoding", "length"])
        numbers = scores[["encoding", "length", "mean", "sd"]].reset_index(drop=True)
        earlier = shown.setdefault((view.subset, table.metric(view.metric).unit), {})
        equal = [metric for metric, others in earlier.items() if numbers.equals(others)]
        if not equal or view.metric in equal:
            earlier[view.metric] = numbers
            found.append(view)
    return found


def _series(table: Table, view: Curve) -> dict[str, list[Point]]:
    numbers = table.numbers(view.subset, view.metric)
    numbers = numbers[numbers["length"].notna()].sort_values("length")
    series: dict[str, list[Point]] = {}
    for row in numbers.to_dict("records"):
        series.setdefault(row["encoding"], []).append(_point(table, row["length"], row))
    return series


def _point(table: Table, x: float, row: Mapping[Any, Any]) -> Point:
    """Return a mean with its error bar, within 0 and 100 for percentages.

    Error bars are standard deviations over seeds. Where no encoding of the table has two seeds,
    they are 95 % intervals over items, or quartiles over repetitions for times.
    """
    mean = float(row["mean"])
    low, high = float(row["ci_low"]), float(row["ci_high"])
    if table.has_seeds:
        low, high = mean - float(row["sd"]), mean + float(row["sd"])
        if table.metric(row["metric"]).is_percent:
            low, high = max(low, min(mean, 0.0)), min(high, max(mean, 100.0))
    return Point(float(x), mean, low, high, int(row["seeds"]))


def _baselines(table: Table, view: Curve | Column) -> list[Baseline]:
    """Return the best baseline by ascending length, if there is one."""
    scores = select(table.baselines, view.subset, view.metric).sort_values("length")
    if isinstance(view, Curve):
        scores = scores[scores["length"].notna()]
    means = scores.groupby("encoding", sort=False)["mean"].mean()
    if means.empty:
        return []
    best = means.idxmax() if table.metric(view.metric).higher_is_better else means.idxmin()
    own = scores[scores["encoding"] == best]
    points = list(zip(own["length"].tolist(), own["mean"].tolist(), strict=True))
    return [Baseline(str(best), points)]


def _curve_limits(
    table: Table,
    views: Sequence[Curve],
    series: Sequence[Mapping[str, Sequence[Point]]],
    baselines: Sequence[Sequence[Baseline]],
) -> list[Limits]:
    """Return the y limits of each chart.

    Charts of percentages share limits, and so do logarithmic charts of one metric.
    """
    groups: dict[str, list[float]] = {}
    names = []
    for number, view in enumerate(views):
        name = f"{number}"
        if view.log_y:
            name = f"log {view.metric}"
        elif table.metric(view.metric).is_percent:
            name = "%"
        names.append(name)
        ends = _ends(series[number], baselines[number], with_bars=not view.log_y)
        groups.setdefault(name, []).extend(ends)
    limits = []
    for name, view in zip(names, views, strict=True):
        known = [end for end in groups[name] if math.isfinite(end) and (end > 0 or not view.log_y)]
        low, high = min(known, default=1.0), max(known, default=1.0)
        if name == "%":
            limits.append(layout.percent_limits(low, high))
        else:
            limits.append(layout.pad(low, high, log=view.log_y))
    return limits


def _describe_end(
    table: Table, view: Curve, series: Mapping[str, Sequence[Point]], length: float
) -> str:
    """Return the best and the worst mean at a length, in words."""
    metric = table.metric(view.metric)
    last = {}
    for name, points in series.items():
        if points[-1].x == length and math.isfinite(points[-1].mean):
            last[name] = points[-1].mean
    if len(last) < 2 or metric.higher_is_better is None:
        return ""
    ordered = sorted(last, key=lambda name: last[name], reverse=metric.higher_is_better)
    best, worst = ordered[0], ordered[-1]
    if last[best] == last[worst]:
        return ""
    unit = f" {metric.unit}" if metric.unit else ""
    digits = 1 if metric.is_percent else 3
    return (
        f"At {length:,.0f} the best mean is that of {best} ({last[best]:.{digits}f}{unit}), the "
        f"last that of {worst} ({last[worst]:.{digits}f}{unit})"
    )


def _of_one_unit(table: Table, views: Sequence[Column]) -> list[Column]:
    """Return the columns. If their units differ, return the headline and columns of its unit."""
    units = {table.metric(view.metric).unit for view in views}
    if len(units) < 2:
        return list(views)
    headline = table.headline
    unit = table.metric(headline.metric).unit
    alike = [view for view in views if table.metric(view.metric).unit == unit]
    return [Column(headline.subset, headline.metric), *alike]


def _length_of(table: Table, view: Column) -> float | None:
    """Return the input length of a column; None if its numbers have no length."""
    lengths = table.numbers(view.subset, view.metric)["length"].dropna()
    return None if lengths.empty else float(lengths.median())


def _common_label(table: Table, views: Sequence[Column]) -> str:
    """Return a label for the axis of one metric or several."""
    labels = {table.metric(view.metric).label for view in views}
    if len(labels) == 1:
        return labels.pop()
    units = {table.metric(view.metric).unit for view in views}
    arrows = {table.metric(view.metric).arrow for view in views}
    unit = units.pop() if len(units) == 1 else ""
    arrow = arrows.pop() if len(arrows) == 1 else ""
    return f"score{f', {unit}' if unit else ''} {arrow}".strip()
