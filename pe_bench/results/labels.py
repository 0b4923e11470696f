"""Labels of encodings: "name", "name:option=value", "origin -> name [what is trained]"."""

ARROW = " -> "
"""Between the encoding that a model was trained with and the one that goes on from it."""


def split_label(label: str) -> tuple[str, str]:
    """Return the name of the encoding that a row measures, and all else that its label says."""
    origin, arrow, measured = label.rpartition(ARROW)
    ends = [place for place in (measured.find(":"), measured.find(" [")) if place >= 0]
    name = measured[: min(ends, default=len(measured))]
    return name, origin + arrow + measured[len(name) :]
