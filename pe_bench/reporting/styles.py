"""Colour and marker of each encoding, the same in every figure.

Encodings declare colour and marker as class attributes. The records of runs keep them for encodings
that are not shipped. The hues of shipped encodings come from Okabe and Ito (2008) and Tol (2021),
so that colour-blind readers can distinguish the usual baselines. Encodings of one family share a
hue and differ in their markers.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np
from matplotlib.colors import is_color_like, to_hex
from matplotlib.markers import MarkerStyle

from pe_bench.registry import catalogue
from pe_bench.registry.attributes import STYLE, literal_attributes
from pe_bench.results.labels import split_label
from pe_bench.results.record import RunRecord

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
SHADES = (0.0, 0.35, -0.35)  # towards white or black
FREE_COLOURS = ("#EE3377", "#7755DD")  # for encodings without a colour; no shipped one has them


@dataclass(frozen=True)
class Style:
    """The style of an encoding: a colour as "#rrggbb" and a matplotlib marker."""

    colour: str
    marker: str


def styles_of(
    records: Iterable[RunRecord], labels: Collection[str] | None = None
) -> dict[str, Style]:
    """Return a style for each encoding of some runs, see `styles`.

    Args:
        records: records of the runs.
        labels: labels of the encodings; None: those of the records.
    """
    by_label = {record.encoding: record for record in records}
    declared: dict[str, Style] = {}
    for label, record in by_label.items():
        name, _ = split_label(label)
        style = _read_style(name, _recorded(record))
        if style is not None:
            declared[name] = style
    return styles([*(by_label if labels is None else labels)], declared)


def styles(
    labels: Sequence[str], declared: Mapping[str, Style] = MappingProxyType({})
) -> dict[str, Style]:
    """Return a style for each encoding of a figure.

    The style depends only on the label and the declared style, unless two of `labels` would look
    the same.

    Args:
        labels: specs, such as "name" or "name:option=value".
        declared: styles of encodings that are not shipped, by name.
    """
    chosen: dict[str, Style] = {}
    known = {**declared, **_known()}
    for label in sorted(labels, key=lambda label: (split_label(label)[1] != "", label)):
        candidates = _candidates(label, known)
        taken = {*chosen.values()}
        free = [style for style in candidates if style not in taken]
        chosen[label] = free[0] if free else candidates[0]
    return chosen


def _candidates(label: str, known: Mapping[str, Style]) -> list[Style]:
    """Return the styles of a label, the preferred one first.

    An encoding has the style that its class declares. Its variants have another marker or shade.
    Encodings without a declared style get a colour that no shipped encoding has, as long as there
    is a marker left. A digest of the label selects colour and marker.
    """
    name, more = split_label(label)
    digest = _digest(label)
    if name in known and not more:
        return [known[name]]
    if name in known:
        choices = [[_shade(known[name].colour, amount) for amount in SHADES]]
    else:
        choices = [[*FREE_COLOURS], sorted({style.colour for style in known.values()})]
    declared = {*known.values()}
    found = []
    for colours in choices:
        pairs = [Style(colour, marker) for marker in MARKERS for colour in colours]
        start = digest % len(pairs)
        rotated = [*pairs[start:], *pairs[:start]]
        found += [style for style in rotated if style not in declared]
    return found


def outline(marker: str) -> list[tuple[float, float]]:
    """Return the corners of a matplotlib marker, in a unit square around 0.

    y points down, as on a page. A circle has no corners.
    """
    if marker == "o":
        return []
    style = MarkerStyle(marker)
    path = style.get_path().transformed(style.get_transform())
    corners = np.asarray(path.to_polygons()[0]).tolist()
    return [(round(x, 3), round(-y, 3)) for x, y in corners]


def is_own(label: str) -> bool:
    """Return whether an encoding is the user's own: not shipped with the package."""
    return split_label(label)[0] not in catalogue.names("encoding")


def own_first(labels: Iterable[str]) -> list[str]:
    """Return labels with the user's own encodings first, otherwise in the given order."""
    return sorted(labels, key=lambda label: not is_own(label))


def family_of(label: str, record: RunRecord | None = None) -> str:
    """Return the family of an encoding, such as "rotary"; "other" if it declares none.

    Args:
        label: label of the encoding.
        record: record of one of its runs, for encodings that are not shipped.
    """
    return declared_attributes(label, record).get("family") or "other"


def declared_attributes(label: str, record: RunRecord | None = None) -> dict[str, str]:
    """Return the attributes of `STYLE` that the class of an encoding sets.

    Args:
        label, record: as in `family_of`.
    """
    name, _ = split_label(label)
    return _declared(name) or (_recorded(record) if record else {})


def _recorded(record: RunRecord) -> dict[str, str]:
    """Return the style attributes declared by the encoding of a run."""
    style = record.described.get("encoding", {}).get("style", {})
    return {key: str(style[key]) for key in STYLE if key in style}


def _read_style(name: str, declared: Mapping[str, str]) -> Style | None:
    """Return a declared style, or None without a colour that matplotlib knows."""
    if not is_color_like(declared.get("colour")):
        return None
    marker = declared.get("marker")
    if marker not in MARKERS:
        marker = MARKERS[_digest(name) % len(MARKERS)]
    return Style(to_hex(declared["colour"]).upper(), marker)


@cache
def _known() -> dict[str, Style]:
    """Return the styles of all shipped encodings that declare one."""
    found = {}
    for name in catalogue.names("encoding"):
        declared = _declared(name)
        if "colour" in declared and "marker" in declared:
            found[name] = Style(declared["colour"], declared["marker"])
    return found


def _declared(name: str) -> dict[str, str]:
    """Return the style attributes declared by a shipped encoding."""
    if name not in catalogue.names("encoding"):
        return {}
    attributes = literal_attributes("encoding", name)
    return {key: str(attributes[key]) for key in STYLE if key in attributes}


def _digest(label: str) -> int:
    return int(hashlib.sha256(label.encode()).hexdigest(), 16)


def _shade(colour: str, amount: float) -> str:
    """Return a colour moved towards white (amount > 0) or black (amount < 0)."""
    target = 255 if amount > 0 else 0
    channels = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    moved = [round(value + (target - value) * abs(amount)) for value in channels]
    return "#" + "".join(f"{value:02X}" for value in moved)
