"""Figures for papers: some tasks and encodings, at the width of a column, with captions."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from pe_bench.errors import InputError
from pe_bench.reporting.cost_charts import find_quality
from pe_bench.reporting.curve_charts import make_scores
from pe_bench.reporting.display_names import display_names
from pe_bench.reporting.panels import FORMATS, save
from pe_bench.reporting.paper_captions import describe_figure
from pe_bench.reporting.paper_curves import draw_paper_costs, draw_paper_curves, draw_paper_scores
from pe_bench.reporting.paper_maps import draw_paper_gallery, draw_paper_map
from pe_bench.reporting.tables import Table
from pe_bench.results.views import Curve, Heatmap
from pe_bench.system.files import slug, write_atomic

DPI = 300
MOST = 12  # maximum number of encodings in a figure


def save_paper_figures(
    tables: Sequence[Table],
    folder: Path,
    width: float,
    *,
    encodings: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
) -> list[Path]:
    """Draw the figures of some tables and save each as PNG, SVG and PDF, with a caption.

    The files have exactly the given width. All texts have at least 7 points.

    Args:
        tables: the tables, as returned by `selection.select_tables`.
        folder: folder to write to.
        width: width of the figures, inches.
        encodings: labels in the order of the legend; empty: the best first.
        names: display names that replace others, by label.

    Returns:
            The PDF files. A table without figures adds none.

    Raises:
        InputError: a table has too many encodings for a figure, or no table has a figure.
        SavingError: a file could not be saved.
    """
    for table in tables:
        if len(table.encodings) > MOST:
            raise InputError(
                f"{table.heading} has {len(table.encodings)} encodings, but a figure shows at most "
                f"{MOST}: choose them with --encoding"
            )
    written = []
    for table in tables:
        shown = display_names(table.records, names)
        order = [name for name in encodings if name in shown] or table.ranking.order
        for name, (caption, draw) in plan_figures(table, tables).items():
            stem = slug(f"{table.name}-{name}") if name else table.name
            files = {kind: folder / f"{stem}.{kind}" for kind in FORMATS}
            save(draw(width, shown, order), [*files.values()], crop=False, dpi=DPI)
            write_atomic(folder / f"{stem}.txt", f"{describe_figure(table, caption)}\n")
            written.append(files["pdf"])
    if not written:
        raise InputError(f"{tables[0].heading} has no figures: choose other tasks")
    return written


Draw = Callable[[float, Mapping[str, str], Sequence[str]], Figure]


def plan_figures(table: Table, tables: Sequence[Table]) -> dict[str, tuple[str, Draw]]:
    """Return a title and a function that draws, for the name of each figure."""
    found: dict[str, tuple[str, Draw]] = {}
    if table.views(Curve):
        found[""] = ("scores by length", partial(draw_paper_curves, table))
    elif make_scores(table) is not None:
        found[""] = ("scores of the parts", partial(draw_paper_scores, table))
    for name, view in table.maps().items():
        if isinstance(view, Heatmap):
            found[name] = (view.title or name, partial(draw_paper_map, table, view))
        else:
            found[name] = (view.title or name, partial(draw_paper_gallery, table, view))
    others = find_quality(table, tables) if table.about.measures_time else []
    if others:
        title = "quality against the time of a training step"
        found["quality"] = (title, partial(draw_paper_costs, table, others))
    return found
