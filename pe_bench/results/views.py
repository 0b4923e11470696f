"""What a task wants shown of its rows: columns of the table, panels, maps.

`run.json` keeps them, so that a report needs no task: `to_json` and `from_json`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Headline:
    """The number by which a table is sorted; the metric says which direction is better."""

    metric: str
    subset: str


@dataclass(frozen=True)
class Column:
    """A column of the table, left out where it has no rows.

    Attributes:
        subset, metric: the rows.
        title: heading; empty: made from subset and metric.
        at_trained_length: whether these are scores at the length that models are trained on; of
            models that go on from another one, their difference to it is a column then.
    """

    subset: str
    metric: str
    title: str = ""
    at_trained_length: bool = False


@dataclass(frozen=True)
class Curve:
    """A panel with the metric against `length`, a curve for each encoding.

    Attributes:
        subset, metric: the rows.
        title: of the panel; empty: the subset.
        x: label of the axis; empty: that of the task's lengths.
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
    """A map of a percentage over length (upwards) and the second axis (to the right).

    Attributes:
        subset, metric: the rows.
        title: what is shown.
        trained: largest trained value of the second axis and of the length; None: not such an axis.
    """

    subset: str
    metric: str
    title: str
    trained: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class Gallery:
    """A panel for each encoding: the metric against the second axis, a curve for each length.

    Attributes:
        subset, metric: the rows.
        title: what is shown.
        y: label of the metric's axis.
    """

    subset: str
    metric: str
    title: str
    y: str


View = Column | Curve | Heatmap | Gallery

KINDS: dict[str, type[View]] = {
    "column": Column,
    "curve": Curve,
    "heatmap": Heatmap,
    "gallery": Gallery,
}


def to_json(view: View) -> dict[str, Any]:
    """Return a view as `run.json` keeps it."""
    return {"kind": type(view).__name__.lower(), **asdict(view)}


def from_json(record: Mapping[str, Any]) -> View:
    """Return the view that `to_json` has written."""
    kind = KINDS[record["kind"]]
    known = {field.name for field in fields(kind)}  # earlier versions wrote more
    given = {name: value for name, value in record.items() if name in known}
    if "trained" in given:
        given["trained"] = tuple(given["trained"])
    return kind(**given)
