"""Charts as data: what they show and how, for every renderer.

Renderers only draw: `curves`, `multiples`, `dot_plot`, `heatmap` and `tradeoff` with matplotlib,
`page/charts.js` with Observable Plot.
"""

from dataclasses import dataclass
from typing import NamedTuple

from pe_bench.reporting.chart_layout import Limits


class Point(NamedTuple):
    """A mean with its error bar; low and high are nan where there is none."""

    x: float
    mean: float
    low: float
    high: float
    seeds: int


class Mark(NamedTuple):
    """A length that was trained, and where its label is."""

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
        metric: its name.
        title: of the panel.
        says: the best and the worst at the largest length, in words; may be empty.
        x, y: labels of the axes.
        log_x, log_y: whether an axis is logarithmic.
        x_limits, y_limits: ends of the axes; charts of percentages share those of y.
        ticks: lengths with a label.
        trained: marks of training lengths.
        baselines: one, or none.
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
    trained: list[Mark]
    baselines: list[Baseline]
    series: dict[str, list[Point]]

    @property
    def lengths(self) -> list[float]:
        """All lengths, ascending."""
        return sorted({point.x for points in self.series.values() for point in points})


@dataclass(frozen=True)
class ScoreChart:
    """The parts of a task beside each other, those with the shortest inputs first.

    Attributes:
        metrics: names, one for each part.
        parts: their names; the place of a part is its index.
        ticks: lines below each part: its name, its length, its metric where these differ.
        x, y: labels of the axes.
        percent: whether all are percentages.
        y_limits: ends of the axis of scores.
        trained: marks between the parts.
        baselines: the best one of each part, as a point at its place.
        series: points of each encoding; x is the place.
    """

    metrics: list[str]
    parts: list[str]
    ticks: list[str]
    x: str
    y: str
    percent: bool
    y_limits: Limits
    trained: list[Mark]
    baselines: list[Baseline]
    series: dict[str, list[Point]]


@dataclass(frozen=True)
class MapChart:
    """A heatmap for each encoding: length up, the second axis to the right.

    Attributes:
        title: message of the chart.
        xs, ys: values of the axes; a cell is a square between whole numbers.
        x, y, z: labels of the axes and of the colours.
        limits: ends of the colours.
        x_ticks, y_ticks: places and labels.
        border: corners of the line around the trained cells; empty: there is none.
        series: means by encoding, (ys, xs); nan where there is none.
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
        trained: longest trained distance; None: not known.
        y_limits: ends of the axis of each encoding.
        series: of each encoding the lengths, each with x and y of its curve.
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
        says: where the costs are from, or the heading.
        x, y: labels of the axes.
        x_limits, y_limits: ends of the axes.
        baseline: quality of the best baseline; None: there is none.
        names: the side of its point on which an encoding is named, see `chart_layout.SIDES`.
        hollow: encodings that did not learn the trained lengths.
        series: cost and quality.
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


Chart = CurveChart | ScoreChart | MapChart | GalleryChart | CostChart
