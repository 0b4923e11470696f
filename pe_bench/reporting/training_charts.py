"""Make the charts of the learning curves of a table."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pe_bench.reporting import chart_layout as layout
from pe_bench.reporting.chart_layout import Limits
from pe_bench.reporting.chart_model import Band, Quantity, TrainingChart, TrainingCurve
from pe_bench.reporting.tables import Table
from pe_bench.results.items import Floats
from pe_bench.results.learning_curves import CurveKey, LearningCurve

MOST_POINTS = 100  # maximum number of points of a curve; a panel cannot show more
MARKERS = 8  # markers of a curve, because encodings of one family have similar colours
DIGITS = 4  # significant digits
LOG_RANGE = 10.0  # an axis is logarithmic if the means span more than this factor


class Axis(NamedTuple):
    """How a quantity is shown.

    Attributes:
        title: description of the quantity.
        y: label of its axis.
        log: whether the axis may be logarithmic; if not, it begins at 0.
    """

    title: str
    y: str
    log: bool


AXES = {
    "loss": Axis("loss", "loss, nats per target ↓", log=True),
    "lr": Axis("learning rate", "learning rate", log=False),
    "grad_norm": Axis("gradient norm", "gradient norm before clipping", log=True),
    "tokens_per_second": Axis("tokens per second", "tokens per second ↑", log=False),
}


def make_training(table: Table) -> list[TrainingChart]:
    """Return a chart for each training phase of a table; none if no curves were recorded.

    A task that trains a model for each of its subsets has a chart for each subset.
    """
    with np.errstate(all="ignore"):  # files from other users may have infinite numbers
        return _make_charts(table)


def _make_charts(table: Table) -> list[TrainingChart]:
    groups: dict[CurveKey, dict[str, dict[int, LearningCurve]]] = {}
    for record, curves in zip(table.records, table.learning_curves, strict=True):
        for (phase, subset), curve in curves.items():
            label = record.encoding
            if record.adaptation and phase == "start":
                label = record.adaptation["from"]  # all rows have adapted the same model
            if len(curve):
                group = groups.setdefault((phase, subset), {})
                group.setdefault(label, {})[record.seed] = _thin(curve)
    charts = []
    for phase, subset in sorted(groups):  # "start" comes before "task"
        series = {}
        for label, by_seed in sorted(groups[phase, subset].items()):
            averaged = _average([*by_seed.values()])
            if averaged is not None:
                series[label] = averaged
        if series:
            several = any(one == "start" for one, _ in groups)
            title = _title(table, phase, subset, several=several)
            charts.append(_make_chart(title, series))
    return charts


def _make_chart(title: str, series: Mapping[str, TrainingCurve]) -> TrainingChart:
    quantities = []
    for name, axis in AXES.items():
        bands = [curve.bands[name] for curve in series.values()]
        quantities.append(_make_quantity(name, axis, bands))
    says = "a line for each encoding"
    if any(curve.seeds > 1 for curve in series.values()):
        says = "line: mean over seeds; band: from the lowest to the highest seed"
    last = max(1.0, *(curve.steps[-1] for curve in series.values()))
    return TrainingChart(
        title=title,
        says=says,
        x="optimizer steps",
        x_limits=(0.0, last),
        quantities=quantities,
        every=math.ceil(max(len(curve.steps) for curve in series.values()) / MARKERS),
        series=dict(series),
    )


def _make_quantity(name: str, axis: Axis, bands: Sequence[Band]) -> Quantity:
    means = [value for band in bands for value in band.mean if math.isfinite(value)]
    ends = [value for band in bands for part in band for value in part if math.isfinite(value)]
    if axis.log and means and min(ends) > 0 and max(means) > LOG_RANGE * min(means):
        limits = layout.pad(min(ends), max(ends), log=True)
        return Quantity(name, axis.title, axis.y, True, limits, layout.log_ticks(limits))
    limits = _linear_limits(ends, from_zero=not axis.log)
    return Quantity(name, axis.title, axis.y, False, limits, layout.linear_ticks(limits))


def _linear_limits(ends: Sequence[float], *, from_zero: bool) -> Limits:
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    if from_zero and high > 0:
        return 0.0, 1.04 * high
    return layout.pad(low, high)


def _title(table: Table, phase: str, subset: str, *, several: bool) -> str:
    """Return which training a chart shows.

    Args:
        table: the table.
        phase: "start" or "task".
        subset: subset that the models were trained for; "" if they were trained for all.
        several: whether the table has curves of both phases.
    """
    adaptation = table.about.adaptation
    if phase == "start":
        title = f"Training of {adaptation['from']}" if adaptation else "Pre-training"
    elif adaptation:
        title = "Adaptation"
    else:
        title = "Fine-tuning" if several else "Training"
    return f"{title} for {subset}" if subset else title


def _thin(curve: LearningCurve) -> LearningCurve:
    """Return a curve of at most `MOST_POINTS` points, each for an equal number of points."""
    size = math.ceil(len(curve) / MOST_POINTS)
    whole = len(curve) // size * size  # the last summary may be of fewer points
    last = [*range(size - 1, whole, size)]
    if whole < len(curve):
        last.append(len(curve) - 1)

    def mean(values: Sequence[float] | Floats) -> Floats:
        points = np.asarray(values, float)
        means = points[:whole].reshape(-1, size).mean(axis=1)
        return np.append(means, points[whole:].mean()) if whole < len(curve) else means

    # Intervals have equally many tokens, so that their times are averaged.
    speeds = np.array(curve.tokens_per_second, float)
    speed = 1 / mean(1 / np.where(speeds > 0, speeds, math.nan))
    steps = tuple(curve.step[index] for index in last)
    rates = tuple(curve.lr[index] for index in last)
    return LearningCurve(
        step=steps,
        loss=tuple(mean(curve.loss).tolist()),
        lr=rates,
        grad_norm=tuple(mean(curve.grad_norm).tolist()),
        tokens_per_second=tuple(speed.tolist()),
    )


def _average(curves: Sequence[LearningCurve]) -> TrainingCurve | None:
    """Return mean, minimum and maximum over seeds at the steps that all seeds have."""
    steps = sorted(set.intersection(*(set(curve.step) for curve in curves)))
    if not steps:
        return None
    bands = {}
    for name in AXES:
        rows = []
        for curve in curves:
            values = dict(zip(curve.step, getattr(curve, name), strict=True))
            rows.append([values[step] for step in steps])
        bands[name] = _make_band(np.array(rows, float))
    return TrainingCurve([float(step) for step in steps], len(curves), bands)


def _make_band(values: Floats) -> Band:
    """Return the band of values of the shape (seeds, steps); nan if a seed has no number."""
    mean, low, high = (_round(f(values, axis=0)) for f in (np.mean, np.min, np.max))
    if np.array_equal(low, high, equal_nan=True):
        return Band(mean, [], [])
    return Band(mean, low, high)


def _round(values: Floats) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values.tolist()]
