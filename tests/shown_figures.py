"""Describe figures as text: titles, axes, texts, and the numbers and styles of artists."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import Collection, LineCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.text import Annotation, Text

CAPS = ("_", "|", 0, 1, 2, 3)  # markers at the ends of error bars
MOST = 12  # points of a line that are written; of longer ones the first and the means


def describe_artists(figure: Figure) -> str:
    """Return the contents of a figure, a line for each artist."""
    width, height = figure.get_size_inches()
    lines = [f"size {number(width)} x {number(height)}"]
    for text in (figure._suptitle, figure._supxlabel, figure._supylabel):  # type: ignore[attr-defined]
        if text is not None:
            lines.append(f"text {write(text)}")
    for legend in figure.legends:
        title = legend.get_title().get_text()
        lines.append(f"legend {title!r} in {legend._ncols} columns")  # type: ignore[attr-defined]
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            look = style(handle) if isinstance(handle, Line2D) else colours(handle)
            lines.append(f"  {text.get_text()!r} {look}")
    for axes in figure.axes:
        lines += describe_panel(axes)
    return "\n".join(lines) + "\n"


def describe_panel(axes: Axes) -> list[str]:
    """Return the lines of a panel."""
    if not axes.get_visible():
        return ["panel, hidden"]
    lines = [f"panel {axes.get_title(loc='left')!r}"]
    lines.append(f"  x {describe_axis(axes.xaxis)}")
    lines.append(f"  y {describe_axis(axes.yaxis)}")
    if axes.get_label() == "<colorbar>":
        return lines
    for artist in sorted(axes.get_children(), key=lambda artist: artist.get_zorder()):
        if isinstance(artist, Line2D) and artist.get_marker() in CAPS:
            continue  # the ends of error bars
        if isinstance(artist, Line2D):
            points = pairs(artist.get_xydata())
            lines.append(f"  line {style(artist)}: {points}")
        elif isinstance(artist, QuadMesh | AxesImage):
            low, high = artist.get_clim()
            cells = " | ".join(
                " ".join(map(number, row)) for row in np.ma.asarray(artist.get_array())
            )
            lines.append(f"  map {number(low)} to {number(high)}: {cells}")
        elif isinstance(artist, LineCollection):
            ends = pairs(end for part in artist.get_segments() for end in part)
            lines.append(f"  lines {colours(artist)}: {ends}")
        elif isinstance(artist, Collection):
            corners = "; ".join(pairs(path.vertices) for path in artist.get_paths())
            lines.append(f"  area {colours(artist)}: {corners}")
        elif isinstance(artist, Annotation):
            where = pairs([artist.xy]) + f" + {pairs([artist.get_position()])}"
            lines.append(f"  note {write(artist)} at {where} {artist.get_horizontalalignment()}")
    return lines


def describe_axis(axis: Axis) -> str:
    """Return label, scale, limits and tick labels of an axis."""
    low, high = axis.get_view_interval()
    parts = [repr(axis.label.get_text()), axis.get_scale(), f"{number(low)} to {number(high)}"]
    shown = axis.get_tick_params()
    if shown.get("labelleft", shown.get("labelbottom")):
        places = axis.get_majorticklocs().tolist()
        labels = axis.get_major_formatter().format_ticks(places)
        inside = [
            label
            for place, label in zip(places, labels, strict=True)
            if min(low, high) <= place <= max(low, high)
        ]
        parts.append(f"ticks {inside}")
    return ", ".join(parts)


def style(line: Line2D) -> str:
    """Return colours, marker, width and dashes of a line."""
    parts = [to_hex(line.get_color())]
    if line.get_marker() not in ("None", None):
        face = to_hex(line.get_markerfacecolor())
        parts.append(f"{line.get_marker()} {number(line.get_markersize())} {face}")
    if line.get_linestyle() != "None":
        parts.append(f"{line.get_linestyle()} {number(line.get_linewidth())}")
    dashes = line._unscaled_dash_pattern[1]  # type: ignore[attr-defined]
    if dashes:
        parts.append("-".join(map(number, dashes)))
    return " ".join(parts)


def colours(collection: Any) -> str:
    """Return the colours of a collection in their order, and its widths."""
    edges = collection.get_edgecolor()
    found = dict.fromkeys(to_hex(colour) for colour in (*edges, *collection.get_facecolor()))
    widths = dict.fromkeys(map(number, np.atleast_1d(collection.get_linewidth())))
    return " ".join([*found, *widths])


def write(text: Text) -> str:
    """Return a text with its size."""
    return f"{text.get_text()!r} {number(text.get_fontsize())}"


def pairs(points: Any) -> str:
    """Return points; of many the first two, their number and their means."""
    known = [(float(x), float(y)) for x, y in points]
    shown = known if len(known) <= MOST else known[:2]
    text = " ".join(f"({number(x)} {number(y)})" for x, y in shown)
    if len(known) > MOST:
        x, y = np.nanmean(known, axis=0)
        text += f" ... {len(known)}, mean ({number(x)} {number(y)})"
    return text


def number(value: Any) -> str:
    """Return a number with four digits; masked numbers are nan."""
    if np.ma.is_masked(value):
        return "masked"
    return f"{float(value) + 0.0:.4g}"
