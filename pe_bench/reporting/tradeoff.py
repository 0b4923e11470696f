"""Cost against quality: what is measured as time, beside the ranking of other tasks."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from pe_bench.reporting import panels
from pe_bench.reporting.panels import styled
from pe_bench.reporting.plot_style import draw_options
from pe_bench.reporting.styles import styles
from pe_bench.reporting.tables import Table

PANELS_PER_ROW = 3
LEGEND_WIDTH = 1.8
FEWEST = 2  # encodings that both tables have
MARKER = 8  # points
POINT: dict[str, Any] = {"linestyle": "none", "markersize": MARKER}
CORNERS = ((6, 4), (6, -4), (-6, 4), (-6, -4))  # of a marker, where its name may begin or end


def find_quality(table: Table, tables: Sequence[Table]) -> list[Table]:
    """Return the tables that have a quality for encodings whose time another table has."""
    timed = set(table.ranked())
    others = [other for other in tables if not other.about.measures_time]
    return [other for other in others if len(timed & set(other.ranked())) >= FEWEST]


@styled
def draw_tradeoff(table: Table, others: Sequence[Table]) -> Figure:
    """Return a panel for each table of a quality: its headline against that of a table of times.

    Args:
        table: of times.
        others: of quality, one at least.
    """
    figure, axes = panels.make_panels(
        len(others), per_row=PANELS_PER_ROW, size=(5.0, 4.2), margin=(LEGEND_WIDTH, 0.3)
    )
    costs = _means(table)
    chosen = styles(table.encodings)
    handles: dict[str, Any] = {}
    floors: dict[str, Any] = {}
    places: list[dict[str, tuple[float, float]]] = []
    for axis, other in zip(axes, others, strict=True):
        qualities = _means(other)
        points = {name: (costs[name], qualities[name]) for name in costs if name in qualities}
        for name, point in points.items():
            look = draw_options(other, name, chosen[name]) | POINT
            axis.plot(*point, **look)
            colour = look["color"]  # filled, as another panel may have learned it
            handles[name] = Line2D([], [], **look | {"markerfacecolor": colour})
        floor = other.best_reference()
        if floor is not None:
            floors["best reference"] = axis.axhline(floor, **panels.REFERENCE)
        axis.margins(0.15)
        axis.grid(alpha=0.3)
        axis.set_xlabel(_describe_headline(table))
        axis.set_ylabel(_describe_headline(other))
        panels.set_panel_title(axis, other.heading, width=4.6)
        places.append(points)
    named = {name: handles[name] for name in sorted(handles)} | floors
    figure.legend(
        [*named.values()],
        [*named],
        loc="outside right upper",
        frameon=False,
        title="encoding (hollow: not learned)",
        alignment="left",
    )
    title = "What a training step costs, and what the encoding is good for"
    given = dict.fromkeys(other.describe_given([other.headline.metric]) for other in others)
    panels.set_title(figure, title, table.heading, *given, beside=LEGEND_WIDTH)
    figure.draw_without_rendering()  # then it is known how large everything is
    for axis, points in zip(axes, places, strict=True):
        _write_names(axis, points)
    return figure


def _write_names(axis: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Write each name at that corner of its marker where the fewest other things are."""
    half = MARKER / 2 * axis.figure.dpi / 72
    centres = axis.transData.transform([*points.values()])  # (N, 2) pixels
    taken = [Bbox.from_extents(*(centre - half), *(centre + half)) for centre in centres]
    for name, point in points.items():
        tries = [_write_name(axis, name, point, corner) for corner in CORNERS]
        boxes = [text.get_window_extent() for text in tries]
        overlaps = [box.count_overlaps(taken) for box in boxes]
        best = overlaps.index(min(overlaps))
        taken.append(boxes[best])
        for text in tries[:best] + tries[best + 1 :]:
            text.remove()


def _write_name(
    axis: Axes, name: str, point: tuple[float, float], corner: tuple[int, int]
) -> Annotation:
    text = axis.annotate(
        name,
        point,
        xytext=corner,
        textcoords="offset points",
        ha="left" if corner[0] > 0 else "right",
        va="bottom" if corner[1] > 0 else "top",
        fontsize=8,
        color=panels.GREY,
    )
    text.set_in_layout(False)
    return text


def _describe_headline(table: Table) -> str:
    return f"{table.headline.subset}: {table.label(table.headline.metric)}"


def _means(table: Table) -> dict[str, float]:
    """Return the headline of each encoding that a table ranks."""
    scores = table.headline_scores()
    ranked = scores[scores["status"] == "ranked"]
    return dict(zip(ranked["encoding"], ranked["mean"].astype(float), strict=True))
