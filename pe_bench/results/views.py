"""Views of a task's rows in a report: columns of the table, panels, maps.

`run.json` stores them, so that a report does not need the task: see `to_json`.
"""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Headline:
    """The number that sorts a table, in the direction of its metric."""

    metric: str
    subset: str


@dataclass(frozen=True)
class Column:
    """A column of the table; it is omitted if it has no rows.

    Attributes:
        subset, metric: subset and metric of the rows in the column.
        title: heading; empty: made from subset and metric.
        at_trained_length: whether these are scores at the training length. If models start from
            trained weights, the table then has a column with the difference from the scores before
            adaptation.
    """

    subset: str
    metric: str
    title: str = ""
    at_trained_length: bool = False


@dataclass(frozen=True)
class Curve:
    """A panel with the metric against `length`, a curve for each encoding.

    Attributes:
        subset, metric: subset and metric of the rows in the panel.
        title: title of the panel; empty: the subset.
        x: label of the x axis; empty: label of the task's axis `length`.
        log_x, log_y: whether the axis is logarithmic.
    """

    subset: str
    metric: str
    title: str = ""
    x: str = ""
    log_x: bool = True
    log_y: bool = False


@dataclass(frozen=True)
class Heatmap:
    """A heatmap of a percentage over length (y axis) and the second axis (x axis).

    Attributes:
        subset, metric: subset and metric of the rows in the heatmap.
        title: title of the heatmap.
        trained: largest value in training of the second axis and of the length; None: no limit.
    """

    subset: str
    metric: str
    title: str
    trained: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class Gallery:
    """A panel for each encoding: the metric against the second axis, a curve for each length.

    Attributes:
        subset, metric: subset and metric of the rows in the gallery.
        title: title of the gallery.
        y: label of the y axis.
    """

    subset: str
    metric: str
    title: str
    y: str


View = Column | Curve | Heatmap | Gallery


def to_json(view: View) -> dict[str, Any]:
    """Convert a view to JSON, with its class as "kind"; `read_as` reads it."""
    return {"kind": type(view).__name__.lower(), **asdict(view)}
