"""Charts as data: what they show and how, for every renderer.

Renderers only draw: modules of this folder with matplotlib, `page/charts.js` with Observable Plot.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from pe_bench.reporting.chart_layout import Limits


class Point(NamedTuple):
    """A mean with its error bar; low and high are nan without an error bar."""

    x: float
    mean: float
    low: float
    high: float
    seeds: int

    @property
    def ends(self) -> list[float]:
        """The finite numbers among mean, low and high."""
        return [end for end in (self.mean, self.low, self.high) if math.isfinite(end)]


class TrainedLength(NamedTuple):
    """A training length and the position of its label."""

    x: float
    label: str
    align: str  # "left": the label begins at the line; "right": it ends there; "center"


class Baseline(NamedTuple):
    """The best baseline, drawn dotted."""

    name: str
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class CurveChart:
    """A metric over lengths, a curve for each encoding.

    Attributes:
        metric: name of the metric.
        title: title of the panel.
        says: sentence on the best and the worst encoding at the largest length; may be empty.
        x, y: labels of the axes.
        log_x, log_y: whether an axis is logarithmic.
        x_limits, y_limits: ends of the axes; charts of percentages share `y_limits`.
        ticks: lengths with a label.
        trained: marks of training lengths.
        baselines: the best baseline, or an empty list.
        series: points of each encoding by ascending length.
    """

    metric: str
    title: str
    says: str
    x: str
    y: str
    log_x: bool
    log_y: bool
    x_limits: Limits
    y_limits: Limits
    ticks: list[float]
    trained: list[TrainedLength]
    baselines: list[Baseline]
    series: dict[str, list[Point]]

    @property
    def lengths(self) -> list[float]:
        """All lengths, ascending."""
        return sorted({point.x for points in self.series.values() for point in points})


@dataclass(frozen=True)
class ScoreChart:
    """The parts of a task side by side, ordered by the length of their inputs.

    Attributes:
        metrics: name of the metric of each part.
        parts: names of the parts; the x position of a part is its index.
        ticks: lines below each part: its name, and its length and metric where these differ.
        x, y: labels of the axes.
        percent: whether all scores are percentages.
        y_limits: ends of the axis of scores.
        trained: marks between the parts.
        baselines: the best baseline of each part, as a point at the part's position.
        series: points of each encoding; x is the position of the part.
    """

    metrics: list[str]
    parts: list[str]
    ticks: list[str]
    x: str
    y: str
    percent: bool
    y_limits: Limits
    trained: list[TrainedLength]
    baselines: list[Baseline]
    series: dict[str, list[Point]]


@dataclass(frozen=True)
class MapChart:
    """A heatmap for each encoding: the length on the y axis, the second axis on the x axis.

    Attributes:
        title: message of the chart.
        xs, ys: values of the axes; a cell is a square between whole numbers.
        x, y, z: labels of the axes and of the colour scale.
        limits: ends of the colour scale.
        x_ticks, y_ticks: positions and labels of the ticks.
        border: corners of the line around the trained cells; empty if there is no line.
        series: means by encoding, (ys, xs); nan for cells without a number.
        seeds: fewest and most seeds of each encoding.
    """

    title: str
    xs: list[float]
    ys: list[float]
    x: str
    y: str
    z: str
    limits: Limits
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    border: list[tuple[float, float]]
    series: dict[str, list[list[float]]]
    seeds: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class GalleryChart:
    """A metric over distances for each encoding, a curve for each length.

    Attributes:
        title: message of the chart.
        x, y: labels of the axes.
        x_limits: ends of the axis of distances, which is symmetric logarithmic.
        ticks: distances with a label.
        trained: longest trained distance; None if unknown.
        y_limits: ends of the y axis of each encoding.
        series: curves by encoding and length, each as x and y values.
        seeds: fewest and most seeds of each encoding.
    """

    title: str
    x: str
    y: str
    x_limits: Limits
    ticks: list[float]
    trained: float | None
    y_limits: dict[str, Limits]
    series: dict[str, list[tuple[float, list[tuple[float, float]]]]]
    seeds: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class CostChart:
    """Quality over cost, a point for each encoding.

    Attributes:
        title: heading of the table of quality.
        says: source of the costs, or the heading.
        x, y: labels of the axes.
        x_limits, y_limits: ends of the axes.
        baseline: quality of the best baseline; None without baselines.
        names: the side of the point where an encoding's name is, see `chart_layout.SIDES`.
        hollow: encodings that did not learn the trained lengths.
        series: cost and quality of each encoding.
    """

    title: str
    says: str
    x: str
    y: str
    x_limits: Limits
    y_limits: Limits
    baseline: float | None
    names: dict[str, str]
    hollow: list[str]
    series: dict[str, tuple[float, float]]


class Quantity(NamedTuple):
    """A column of the learning curves, and its axis.

    Attributes:
        name: name of the column.
        title: description of the quantity.
        y: label of the axis.
        log: whether the axis is logarithmic.
        limits: ends of the axis.
        ticks: values with a label.
    """

    name: str
    title: str
    y: str
    log: bool
    limits: Limits
    ticks: list[float]


class Band(NamedTuple):
    """Mean over seeds with the lowest and highest seed; these are empty if all seeds agree."""

    mean: list[float]
    low: list[float]
    high: list[float]


class TrainingCurve(NamedTuple):
    """Learning curves of one encoding.

    Attributes:
        steps: optimizer steps at the end of each point's interval.
        seeds: number of seeds.
        bands: a band for each quantity, by name.
    """

    steps: list[float]
    seeds: int
    bands: dict[str, Band]


@dataclass(frozen=True)
class TrainingChart:
    """The learning curves of one training phase; shows one quantity at a time.

    Attributes:
        title: name of the training phase.
        says: meaning of line and band.
        x: label of the axis of steps.
        x_limits: ends of the axis of steps.
        quantities: the quantities to choose from, the loss first.
        every: a marker is at every n-th point of a curve.
        series: curves of each encoding.
    """

    title: str
    says: str
    x: str
    x_limits: Limits
    quantities: list[Quantity]
    every: int
    series: dict[str, TrainingCurve]


Chart = CurveChart | ScoreChart | MapChart | GalleryChart | CostChart | TrainingChart
