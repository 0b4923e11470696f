"""Cost against quality: what is measured as time, beside the ranking of other tasks."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from pe_bench.reporting import charts
from pe_bench.reporting.charts import styled
from pe_bench.reporting.styles import styles
from pe_bench.reporting.tables import Table

PANELS_PER_ROW = 3
LEGEND_WIDTH = 1.8
FEWEST = 2  # encodings that both tables have


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
    figure, axes = charts.make_panels(
        len(others), per_row=PANELS_PER_ROW, size=(5.0, 4.2), margin=(LEGEND_WIDTH, 0.3)
    )
    costs = _means(table)
    chosen = styles(table.encodings)
    handles: dict[str, Any] = {}
    for axis, other in zip(axes, others, strict=True):
        for encoding, quality in _means(other).items():
            if encoding in costs:
                look = chosen[encoding]
                (handles[encoding],) = axis.plot(
                    costs[encoding],
                    quality,
                    linestyle="none",
                    marker=look.marker,
                    markersize=8,
                    color=look.colour,
                )
                axis.annotate(
                    encoding,
                    (costs[encoding], quality),
                    xytext=(6, 4),
                    textcoords="offset points",
                    fontsize=8,
                    color=charts.GREY,
                )
        axis.margins(0.15)
        axis.grid(alpha=0.3)
        axis.set_xlabel(_describe_headline(table))
        axis.set_ylabel(_describe_headline(other))
        charts.set_panel_title(axis, other.heading, width=4.6)
    names = sorted(handles)
    figure.legend(
        [handles[name] for name in names],
        names,
        loc="outside right upper",
        frameon=False,
        title="encoding",
        alignment="left",
    )
    charts.set_title(figure, f"Cost against quality · {table.heading}", beside=LEGEND_WIDTH)
    return figure


def _describe_headline(table: Table) -> str:
    return f"{table.headline.subset}: {table.label(table.headline.metric)}"


def _means(table: Table) -> dict[str, float]:
    """Return the headline of each encoding that a table ranks."""
    scores = table.headline_scores()
    ranked = scores[scores["status"] == "ranked"]
    return dict(zip(ranked["encoding"], ranked["mean"].astype(float), strict=True))
