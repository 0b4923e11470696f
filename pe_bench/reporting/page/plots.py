"""The numbers behind the charts of a table, as plain lists that the page draws."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pe_bench.reporting.dot_plot import length_of
from pe_bench.reporting.heatmap import cells_of
from pe_bench.reporting.plot_style import LEAST_RANGE, best_reference, list_curves, trained_lengths
from pe_bench.reporting.tables import Table, training_seconds
from pe_bench.reporting.tradeoff import find_quality
from pe_bench.results.views import Column, Curve, Gallery, Heatmap

DIGITS = 5  # of a number in a chart

Chart = dict[str, Any]


def list_charts(table: Table, tables: Sequence[Table]) -> dict[str, list[Chart]]:
    """Return the charts of a table by kind: curves, scores, maps, galleries, costs.

    Args:
        table: the table.
        tables: all, whose qualities stand against the times of this one.
    """
    curves = [_curve(table, view) for view in list_curves(table)]
    _share_ranges(curves)
    found = {
        "curves": curves,
        "scores": [] if curves else _scores(table),
        "maps": [_map(table, view) for view in table.views(Heatmap)],
        "galleries": [_gallery(table, view) for view in table.views(Gallery)],
        "costs": _costs(table, tables),
    }
    return {kind: charts for kind, charts in found.items() if charts}


def _curve(table: Table, view: Curve) -> Chart:
    numbers = table.numbers(view.subset, view.metric)
    numbers = numbers[numbers["length"].notna()].sort_values("length")
    series: dict[str, list[Any]] = {}
    for row in numbers.to_dict("records"):
        series.setdefault(row["encoding"], []).append(_point(table, row["length"], row))
    references = []
    for name, line in best_reference(table, view).items():
        places = zip(line["length"], line["mean"], strict=True)
        references.append({"name": name, "points": [[_short(x), _short(y)] for x, y in places]})
    return {
        "title": view.title or view.subset,
        "says": _say(table, view, numbers),
        "x": view.x or table.axis("length"),
        "y": table.label(view.metric),
        "logX": view.log_x and bool((numbers["length"] > 0).all()),
        "logY": view.log_y,
        "percent": _is_percent(table, view),
        "trained": [[x, label] for x, label in trained_lengths(table).items()],
        "references": references,
        "series": series,
    }


def _say(table: Table, view: Curve, numbers: pd.DataFrame) -> str:
    """Return what is to be seen at the right end of a curve."""
    last = numbers[numbers["length"] == numbers["length"].max()]
    metric = table.metric(view.metric)
    if len(last) < 2 or metric.higher_is_better is None:
        return ""
    ordered = last.sort_values("mean", ascending=not metric.higher_is_better, kind="stable")
    best, worst = ordered.iloc[0], ordered.iloc[-1]
    if best["mean"] == worst["mean"]:
        return ""
    unit = f" {metric.unit}" if metric.unit else ""
    digits = 1 if metric.unit == "%" else 3
    return (
        f"At {best['length']:,.0f} the best mean is that of {best['encoding']} "
        f"({best['mean']:.{digits}f}{unit}), the last that of {worst['encoding']} "
        f"({worst['mean']:.{digits}f}{unit})"
    )


def _scores(table: Table) -> list[Chart]:
    """Return the columns of a task side by side, those with the shortest inputs first."""
    places = [(length_of(table, view), view) for view in table.views(Column)]
    known = sorted(((n, v) for n, v in places if n is not None), key=lambda place: place[0])
    units = {table.metric(view.metric).unit for _, view in known}
    if len(units) != 1:  # none, or numbers that have no axis in common
        return []
    series: dict[str, list[Any]] = {}
    ticks = []
    references = []
    for place, (length, view) in enumerate(known):
        numbers = table.numbers(view.subset, view.metric)
        for row in numbers.to_dict("records"):
            series.setdefault(row["encoding"], []).append(_point(table, place, row))
        for name, line in best_reference(table, view).items():
            references.append([place, _short(line["mean"].iloc[0]), name])
        title = view.title or view.subset
        ticks.append([title, f"{length:,.0f}", table.label(view.metric)])
    return [
        {
            "title": "scores of the parts",
            "ticks": ticks,
            "x": table.axis("length"),
            "percent": all(_is_percent(table, view) for _, view in known),
            "references": references,
            "series": series,
        }
    ]


def _map(table: Table, view: Heatmap) -> Chart:
    numbers = cells_of(table, view)
    xs = sorted(numbers["x"].unique())
    ys = sorted(numbers["length"].unique())
    percent = _is_percent(table, view)
    series = {}
    for encoding, part in numbers.groupby("encoding"):
        grid = part.pivot_table(index="length", columns="x", values="mean")
        rows = grid.reindex(ys, columns=xs).to_numpy().tolist()
        series[str(encoding)] = [[_short(value) for value in row] for row in rows]
    low, high = (0, 100) if percent else (numbers["mean"].min(), numbers["mean"].max())
    return {
        "title": view.title,
        "xs": [_short(x) for x in xs],
        "ys": [_short(y) for y in ys],
        "x": table.axis("second"),
        "y": table.axis("length"),
        "z": table.label(view.metric),
        "domain": [_short(low), _short(high)],
        "trained": list(view.trained),
        "series": series,
    }


def _gallery(table: Table, view: Gallery) -> Chart:
    numbers = cells_of(table, view).sort_values("x")
    series: dict[str, list[Any]] = {}
    for (encoding, length), part in numbers.groupby(["encoding", "length"]):
        pairs = zip(part["x"], part["mean"], strict=True)
        points = [[_short(x), _short(y)] for x, y in pairs]
        series.setdefault(str(encoding), []).append([_short(length), points])
    return {
        "title": view.title,
        "x": table.axis("second"),
        "y": view.y,
        "trained": table.about.max_train_axis,
        "series": series,
    }


def _costs(table: Table, tables: Sequence[Table]) -> list[Chart]:
    """Return quality against cost: a table of times beside others, else the time of training."""
    if table.about.measures_time:
        costs = _means(table)
        label = f"{table.headline.subset}: {table.label(table.headline.metric)}"
        return [_against(other, costs, label) for other in find_quality(table, tables)]
    seconds = {}
    for encoding in table.encodings:
        own = [training_seconds(r) for r in table.records if r.encoding == encoding]
        known = [value for value in own if value]
        if known:
            seconds[encoding] = statistics.median(known)
    label = "seconds of training, median over seeds ↓"
    return [_against(table, seconds, label)] if len(seconds) > 1 else []


def _against(table: Table, costs: Mapping[str, float], label: str) -> Chart:
    points = {
        encoding: [_short(costs[encoding]), _short(quality)]
        for encoding, quality in _means(table).items()
        if encoding in costs
    }
    headline = f"{table.headline.subset}: {table.label(table.headline.metric)}"
    return {"title": table.heading, "x": label, "y": headline, "series": points}


def _means(table: Table) -> dict[str, float]:
    scores = table.headline_scores()
    ranked = scores[scores["status"] == "ranked"]
    return dict(zip(ranked["encoding"], ranked["mean"].astype(float), strict=True))


def _point(table: Table, x: float, row: Mapping[Any, Any]) -> list[Any]:
    """Return place, mean, ends of the error bar, number of seeds."""
    mean = float(row["mean"])
    low, high = float(row["ci_low"]), float(row["ci_high"])
    if table.has_seeds:
        low, high = mean - float(row["sd"]), mean + float(row["sd"])
        if table.metric(row["metric"]).unit == "%":
            low, high = max(low, min(mean, 0.0)), min(high, max(mean, 100.0))
    return [_short(x), _short(mean), _short(low), _short(high), int(row["seeds"])]


def _share_ranges(curves: Sequence[Chart]) -> None:
    """Give curves of percentages one range, in tens, so that panels compare."""
    percent = [curve for curve in curves if curve["percent"]]
    values = []
    for curve in percent:
        lines = [*curve["series"].values(), *(one["points"] for one in curve["references"])]
        for line in lines:
            values += [n for point in line for n in point[1:4] if n is not None]
    if not values:
        return
    low = math.floor(min(values) / 10) * 10
    high = math.ceil(max(values) / 10) * 10
    if high - low < LEAST_RANGE:
        high = min(100.0, max(high, low + LEAST_RANGE))
        low = max(0.0, min(low, high - LEAST_RANGE))
    for curve in percent:
        curve["domain"] = [low, high]


def _is_percent(table: Table, view: Curve | Column | Heatmap) -> bool:
    return table.metric(view.metric).unit == "%"


def _short(value: Any) -> float | int | None:
    """Return a number with as many digits as a chart shows; None: it is not finite."""
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() else float(f"{number:.{DIGITS}g}")
