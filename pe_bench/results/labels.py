"""Labels of encodings: "name", "name:option=value", "origin -> name [what is trained]"."""

from collections.abc import Sequence

ARROW = " -> "
"""Between the encoding that a model was trained with and the one that goes on from it."""


def find_label(wanted: str, labels: Sequence[str]) -> str:
    """Return the label that is meant: itself, or of a model that stayed as it was trained; or "".

    Args:
        wanted: such as "rope", which stands for "rope -> rope" where all rows go on from a model.
        labels: those of a table.
    """
    unchanged = f"{wanted}{ARROW}{wanted}"
    return next((label for label in (wanted, unchanged) if label in labels), "")


def split_label(label: str) -> tuple[str, str]:
    """Return the name of the encoding that a row measures, and all else that its label says."""
    origin, arrow, measured = label.rpartition(ARROW)
    ends = [place for place in (measured.find(":"), measured.find(" [")) if place >= 0]
    name = measured[: min(ends, default=len(measured))]
    return name, origin + arrow + measured[len(name) :]
