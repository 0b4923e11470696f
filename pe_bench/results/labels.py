"""Labels of encodings: "name", "name:option=value", "origin -> name [method]"."""

from collections.abc import Sequence

ARROW = " -> "
"""Separator between the encoding of the initial weights and the encoding of the run."""


def find_label(wanted: str, labels: Sequence[str]) -> str:
    """Return the label that the user means, or "".

    Args:
        wanted: a label. "rope" also matches "rope -> rope", a model without adaptation.
        labels: labels of a table.
    """
    unchanged = f"{wanted}{ARROW}{wanted}"
    return next((label for label in (wanted, unchanged) if label in labels), "")


def split_label(label: str) -> tuple[str, str]:
    """Split a label into the name of the measured encoding and the rest."""
    origin, arrow, measured = label.rpartition(ARROW)
    ends = [place for place in (measured.find(":"), measured.find(" [")) if place >= 0]
    name = measured[: min(ends, default=len(measured))]
    return name, origin + arrow + measured[len(name) :]
