"""Colour and marker of each encoding, the same in every picture."""

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib.markers import MarkerStyle

from pe_bench.results.labels import split_label

# Name, colour, marker, family. Hues follow Okabe and Ito (2008), with some of Tol (2021), and tell
# the usual baselines apart for colour-blind readers; relatives share a hue and differ in marker.
TABLE = Path(__file__).with_name("styles.csv")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
SHADES = (0.0, 0.35, -0.35)  # towards white or black


@dataclass(frozen=True)
class Style:
    """How an encoding is drawn: a colour as "#rrggbb" and a marker of matplotlib."""

    colour: str
    marker: str


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """Return a style for each encoding of a picture.

    An encoding's style follows from its label alone, unless two in `labels` would look the same.

    Args:
        labels: specs, such as "name" or "name:option=value".
    """
    chosen: dict[str, Style] = {}
    for label in sorted(labels, key=lambda label: (split_label(label)[1] != "", label)):
        candidates = _candidates(label)
        free = [style for style in candidates if style not in chosen.values()]
        chosen[label] = free[0] if free else candidates[0]
    return chosen


def _candidates(label: str) -> list[Style]:
    """Return the styles of a label, the preferred one first.

    A name of the table has one of its own. Its variants have another marker or shade, and unknown
    names a colour of the table; which one follows from a digest.
    """
    name, more = split_label(label)
    known = _known()
    digest = int(hashlib.sha256(label.encode()).hexdigest(), 16)
    if name in known and not more:
        return [known[name]]
    if name in known:
        colours = [_shade(known[name].colour, amount) for amount in SHADES]
    else:
        colours = sorted({style.colour for style in known.values()})
    pairs = [Style(colour, marker) for marker in MARKERS for colour in colours]
    start = digest % len(pairs)
    rotated = [*pairs[start:], *pairs[:start]]
    return [style for style in rotated if style not in known.values()]


def outline(marker: str) -> list[tuple[float, float]]:
    """Return the corners of a marker as matplotlib draws it, in a unit square around 0.

    y points down, as on a page. A circle has none.
    """
    if marker == "o":
        return []
    style = MarkerStyle(marker)
    path = style.get_path().transformed(style.get_transform())
    corners = np.asarray(path.to_polygons()[0]).tolist()
    return [(round(x, 3), round(-y, 3)) for x, y in corners]


def family_of(label: str) -> str:
    """Return where an encoding's positions enter, such as "rotary"; "other" for unknown names."""
    name, _ = split_label(label)
    with TABLE.open(encoding="utf-8", newline="") as file:
        families = {row["name"]: row["family"] for row in csv.DictReader(file)}
    return families.get(name, "other")


@cache
def _known() -> dict[str, Style]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row["name"]: Style(row["colour"], row["marker"]) for row in csv.DictReader(file)}


def _shade(colour: str, amount: float) -> str:
    """Return a colour moved towards white (amount > 0) or black (amount < 0)."""
    target = 255 if amount > 0 else 0
    channels = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    moved = [round(value + (target - value) * abs(amount)) for value in channels]
    return "#" + "".join(f"{value:02X}" for value in moved)
