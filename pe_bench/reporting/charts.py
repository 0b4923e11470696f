"""Make the charts of a table: choose their numbers, limits, ticks, error bars, marks and names."""

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from pe_bench.reporting import chart_layout as layout
from pe_bench.reporting.chart_layout import Limits
from pe_bench.reporting.chart_model import (
    Baseline,
    Chart,
    CostChart,
    CurveChart,
    GalleryChart,
    MapChart,
    Mark,
    Point,
    ScoreChart,
)
from pe_bench.reporting.chart_titles import title_curve
from pe_bench.reporting.run_costs import training_seconds
from pe_bench.reporting.tables import Table, select
from pe_bench.reporting.training_charts import make_training
from pe_bench.results.views import Column, Curve, Gallery, Heatmap

DIGITS = 5  # significant digits of a number on the page
FEWEST = 2  # minimum number of encodings shared by a table of costs and a table of quality


def list_charts(table: Table, tables: Sequence[Table]) -> dict[str, list[Any]]:
    """Return the charts of a table as JSON, by kind.

    Args:
        table: the table.
        tables: all tables; a table of times is plotted against their quality.
    """
    curves = make_curves(table)
    scores = None if curves else make_scores(table)
    kinds: dict[str, Sequence[Chart]] = {
        "curves": curves,
        "scores": [scores] if scores else [],
        "maps": [make_map(table, view) for view in table.views(Heatmap)],
        "galleries": [make_gallery(table, view) for view in table.views(Gallery)],
        "training": make_training(table),
        "costs": make_costs(table, tables),
    }
    return {kind: [_plain(asdict(one)) for one in found] for kind, found in kinds.items() if found}


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
                y=table.label(view.metric),
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
    views = _of_one_unit(table, table.views(Column))
    lengths = {view: _length_of(table, view) for view in views}
    known = [(length, view) for view, length in lengths.items() if length is not None]
    known.sort(key=lambda pair: pair[0])
    if not known:
        return None
    series: dict[str, list[Point]] = {}
    baselines = []
    for place, (_, view) in enumerate(known):
        for row in table.numbers(view.subset, view.metric).to_dict("records"):
            series.setdefault(row["encoding"], []).append(_point(table, place, row))
        for one in _baselines(table, view):
            baselines.append(Baseline(one.name, [(place, one.points[0][1])]))
    parts = [view.title or view.subset for _, view in known]
    ticks = [[part, f"{length:,.0f}"] for part, (length, _) in zip(parts, known, strict=True)]
    titles = {table.metric(view.metric).title for _, view in known}
    if len(titles) > 1:
        for lines, (_, view) in zip(ticks, known, strict=True):
            lines.append(textwrap.fill(table.metric(view.metric).title, layout.TICK_WIDTH))
    points = [point for own in series.values() for point in own]
    ends = [end for point in points for end in point[1:4] if math.isfinite(end)]
    ends += [y for one in baselines for _, y in one.points]
    places: dict[float, list[str]] = {}
    for trained, label in trained_lengths(table).items():
        shorter = sum(length <= trained for length, _ in known)
        places.setdefault(shorter - 0.5, []).append(label)
    marks = {place: ", ".join(labels) for place, labels in places.items()}
    return ScoreChart(
        metrics=[view.metric for _, view in known],
        parts=parts,
        ticks=["\n".join(lines) for lines in ticks],
        x=", ".join(["subset", table.axis("length"), *(["metric"] if len(titles) > 1 else [])]),
        y=_common_label(table, [view for _, view in known]),
        percent=all(is_percent(table, view) for _, view in known),
        y_limits=layout.pad(min(0.0, *ends), max(0.0, *ends), by=0.02),
        trained=_marks(marks, (-0.5, len(known) - 0.5)),
        baselines=baselines,
        series=series,
    )


def make_map(table: Table, view: Heatmap) -> MapChart:
    """Return the heatmaps of a view."""
    numbers = _cells(table, view)
    xs = [float(x) for x in sorted(numbers["x"].unique())]
    ys = [float(y) for y in sorted(numbers["length"].unique())]
    cells = numbers.groupby(["encoding", "length", "x"])["mean"].mean()
    names = sorted(numbers["encoding"].unique())
    every = pd.MultiIndex.from_product([names, ys, xs])
    grids = cells.reindex(every).to_numpy(float).reshape(len(names), len(ys), len(xs))
    series = dict(zip(names, grids.tolist(), strict=True))
    limits = (0.0, 100.0)
    if not is_percent(table, view):
        limits = (float(numbers["mean"].min()), float(numbers["mean"].max()))
    return MapChart(
        title=view.title,
        xs=xs,
        ys=ys,
        x=table.axis("second"),
        y=table.axis("length"),
        z=table.label(view.metric),
        limits=limits,
        x_ticks=layout.even_ticks(xs),
        y_ticks=layout.even_ticks(ys),
        border=_border(view, xs, ys),
        series=series,
        seeds=_seeds(numbers),
    )


def make_gallery(table: Table, view: Gallery) -> GalleryChart:
    """Return the panels of a gallery."""
    numbers = _cells(table, view).sort_values("x")
    series: dict[str, list[tuple[float, list[tuple[float, float]]]]] = {}
    limits = {}
    for encoding, own in numbers.groupby("encoding"):
        curves = []
        for length in sorted(own["length"].unique()):
            part = own[own["length"] == length]
            points = list(zip(part["x"].tolist(), part["mean"].tolist(), strict=True))
            curves.append((float(length), points))
        series[str(encoding)] = curves
        low, high = layout.pad(float(own["mean"].min()), float(own["mean"].max()))
        if high - low < layout.LEAST_LOGITS or own["mean"].nunique() == 1:
            middle = (low + high) / 2
            low, high = middle - layout.LEAST_LOGITS / 2, middle + layout.LEAST_LOGITS / 2
        limits[str(encoding)] = (low, high)
    last = float(numbers["x"].max())
    return GalleryChart(
        title=view.title,
        x=table.axis("second"),
        y=view.y,
        x_limits=(0.0, last),
        ticks=layout.octaves(last),
        trained=table.about.max_train_axis,
        y_limits=limits,
        series=series,
        seeds=_seeds(numbers),
    )


def make_costs(table: Table, tables: Sequence[Table]) -> list[CostChart]:
    """Return charts of quality over cost.

    The cost is the measured time for a table of times, otherwise the training time.
    """
    if table.about.measures_time:
        costs = table.headline_means()
        label = _headline_label(table)
        return [
            _cost_chart(other, costs, label, other.heading) for other in find_quality(table, tables)
        ]
    seconds: dict[str, float] = {}
    for encoding in table.encodings:
        own = [training_seconds(r) for r in table.records if r.encoding == encoding]
        known = [value for value in own if value]
        if known:
            seconds[encoding] = statistics.median(known)
    if len(seconds.keys() & table.headline_means().keys()) < FEWEST:
        return []
    label = "seconds of training, median over seeds ↓"
    says = "Wall time of the runs above, including whatever else their machine did"
    return [_cost_chart(table, seconds, label, says)]


def find_quality(table: Table, tables: Sequence[Table]) -> list[Table]:
    """Return the tables of quality that share encodings with a table of times."""
    timed = set(table.ranked())
    others = [other for other in tables if not other.about.measures_time]
    return [other for other in others if len(timed & set(other.ranked())) >= FEWEST]


def is_percent(table: Table, view: Curve | Column | Heatmap) -> bool:
    """Return whether a view shows percentages."""
    return table.metric(view.metric).unit == "%"


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
    """Return the training lengths of the original model and of the adapted models."""
    about = table.about
    first = about.max_train_axis or about.train_length or 0
    lengths = {float(first): f"trained to {first:,g}"}
    for record in table.records:
        config = (record.adaptation or {}).get("config", {})
        if config.get("steps") and config.get("length"):
            lengths.setdefault(float(config["length"]), f"some to {config['length']:,}")
    return lengths


def _marks(trained: Mapping[float, str], limits: Limits, *, log: bool = False) -> list[Mark]:
    """Return marks with labels that stay within the panel and do not overlap."""
    marks = []
    for x, label in trained.items():
        right = layout.place_in(limits, x, log=log) > 0.5
        alone = "right" if right else "left"
        is_first_of_several = x == min(trained) < max(trained)
        marks.append(Mark(x, label, "center" if is_first_of_several else alone))
    return marks


def _distinct(table: Table, views: Sequence[Curve]) -> list[Curve]:
    """Remove views whose numbers equal those of an earlier view of the same subset."""
    first: dict[tuple[str, str, str], str] = {}
    found = []
    for view in views:
        scores = table.numbers(view.subset, view.metric).sort_values(["encoding", "length"])
        numbers = scores[["encoding", "length", "mean", "sd"]].to_csv(index=False)
        key = (view.subset, table.metric(view.metric).unit, numbers)
        if first.setdefault(key, view.metric) == view.metric:
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
        if table.metric(row["metric"]).unit == "%":
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
        elif is_percent(table, view):
            name = "%"
        names.append(name)
        ends = groups.setdefault(name, [])
        for points in series[number].values():
            for point in points:
                ends += [point.mean] if view.log_y else point[1:4]
        for one in baselines[number]:
            ends += [y for _, y in one.points]
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
    digits = 1 if metric.unit == "%" else 3
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
    labels = {table.label(view.metric) for view in views}
    if len(labels) == 1:
        return labels.pop()
    units = {table.metric(view.metric).unit for view in views}
    arrows = {table.arrow(view.metric) for view in views}
    unit = units.pop() if len(units) == 1 else ""
    arrow = arrows.pop() if len(arrows) == 1 else ""
    return f"score{f', {unit}' if unit else ''} {arrow}".strip()


def _cells(table: Table, view: Heatmap | Gallery) -> pd.DataFrame:
    """Return the numbers that have a value on both axes; `x` holds the second axis."""
    numbers = table.numbers(view.subset, view.metric)
    numbers = numbers[(numbers["second_axis"] != "") & numbers["length"].notna()]
    return numbers.assign(x=numbers["second_axis"].astype(float))


def _border(view: Heatmap, xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    """Return the corners of the line around the trained cells, if they end within the map."""
    last_x, last_y = view.trained
    right = len(xs) if last_x is None else sum(x <= last_x for x in xs)
    top = len(ys) if last_y is None else sum(y <= last_y for y in ys)
    corners: list[tuple[float, float]] = []
    if last_x is not None:
        corners += [(right, 0), (right, top)]
    if last_y is not None:
        corners += [(right, top), (0, top)]
    return list(dict.fromkeys(corners))


def _seeds(numbers: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Return for each encoding the minimum and maximum number of seeds of a mean."""
    ends = numbers.groupby("encoding")["seeds"].agg(["min", "max"])
    return {str(name): (int(low), int(high)) for name, low, high in ends.itertuples()}


def _cost_chart(table: Table, costs: Mapping[str, float], label: str, says: str) -> CostChart:
    qualities = table.headline_means()
    points = {name: (costs[name], qualities[name]) for name in qualities if name in costs}
    baseline = table.best_baseline()
    ys = [y for _, y in points.values()]
    ys += [] if baseline is None else [baseline]
    xs = [x for x, _ in points.values()]
    x_limits = layout.pad(min(xs), max(xs), by=0.1)
    y_limits = layout.pad(min(ys), max(ys), by=0.1)
    return CostChart(
        title=table.heading,
        says=says,
        x=label,
        y=_headline_label(table),
        x_limits=x_limits,
        y_limits=y_limits,
        baseline=baseline,
        names=layout.place_names(points, x_limits, y_limits),
        hollow=[name for name in points if not table.learned(name)],
        series=points,
    )


def _headline_label(table: Table) -> str:
    return f"{table.headline.subset}: {table.label(table.headline.metric)}"


def _plain(value: Any) -> Any:
    """Convert a value to JSON types, with numbers rounded to `DIGITS` digits."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float | np.floating):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() else float(f"{value:.{DIGITS}g}")
    return value
