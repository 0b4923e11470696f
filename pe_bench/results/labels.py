"""Labels of plugins: "name", "name:option=value", "origin -> name [method]"; titles of runs."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

ARROW = " -> "
"""Separator between the encoding of the initial weights and the encoding of the run."""

LONG_VALUE = re.compile(r"(?<==)([^,\[\]\s]{12})[^,\[\]\s]{12,}")
"""Value of an option with more than 24 characters, such as a list of numbers."""


def plugin_name(label: str) -> str:
    """Return the name of a plugin: its label or spec without the options."""
    return label.partition(":")[0]


def shorten_labels(labels: Iterable[str]) -> dict[str, str]:
    """Return labels with shortened values of options, for figures and tables, by label.

    Labels that would be equal are not shortened.
    """
    short = {label: LONG_VALUE.sub(r"\1…", label) for label in labels}
    counts = Counter(short.values())
    return {label: label if counts[name] > 1 else name for label, name in short.items()}


def find_label(wanted: str, labels: Sequence[str]) -> str:
    """Return the label that the user means, or "".

    Args:
        wanted: a label. "rope" also matches "rope -> rope", a model without adaptation.
        labels: labels of a table.
    """
    unchanged = f"{wanted}{ARROW}{wanted}"
    return next((label for label in (wanted, unchanged) if label in labels), "")


def run_title(encoding: str, task: str, seed: int) -> str:
    """Return the title of a run in messages, from the labels of its encoding and its task."""
    return f"{encoding} · {task} · seed {seed}"


def split_label(label: str) -> tuple[str, str]:
    """Split a label into the name of the measured encoding and the rest."""
    origin, arrow, measured = label.rpartition(ARROW)
    ends = [index for index in (measured.find(":"), measured.find(" [")) if index >= 0]
    name = measured[: min(ends, default=len(measured))]
    return name, origin + arrow + measured[len(name) :]
