"""Which pictures a table has, and their files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from pe_bench.reporting.charts import save
from pe_bench.reporting.curves import draw_curves, draw_scores
from pe_bench.reporting.maps import draw_gallery, draw_heatmap
from pe_bench.reporting.paired import DEFAULT_REFERENCE
from pe_bench.reporting.tables import Table
from pe_bench.reporting.tradeoff import draw_tradeoff, find_quality
from pe_bench.results.views import Column, Curve, Gallery, Heatmap
from pe_bench.system.files import slug


@dataclass(frozen=True)
class Pictures:
    """Files of a table's pictures.

    Attributes:
        overviews: of all encodings.
        singles: of one encoding each, by overview and label.
    """

    overviews: list[Path]
    singles: dict[Path, dict[str, Path]]

    def all_singles(self) -> list[Path]:
        """Return the pictures of single encodings, in the order of the overviews."""
        return [path for paths in self.singles.values() for path in paths.values()]


def draw(
    table: Table, tables: Sequence[Table] = (), reference: str = DEFAULT_REFERENCE
) -> dict[str, Figure]:
    """Return the pictures of a table that show all encodings.

    Args:
        table: the table.
        tables: all of a results folder, whose qualities stand against the times of this one.
        reference: encoding whose times are drawn bold.

    Returns:
        By name: "" for the metrics over length, "quality" for cost against quality, else the
        subset of a heatmap or gallery.
    """
    figures = {}
    if table.views(Curve):
        figures[""] = draw_curves(table, reference)
    elif _have_lengths(table):
        figures[""] = draw_scores(table)
    for view in _maps(table):
        figures[view.subset] = draw_map(table, view)
    if table.about.measures_time:
        others = find_quality(table, tables)
        if others:
            figures["quality"] = draw_tradeoff(table, others)
    return figures


def draw_map(
    table: Table, view: Heatmap | Gallery, encodings: Sequence[str] | None = None
) -> Figure:
    """Return the picture of a heatmap or gallery, of some encodings or of all."""
    if isinstance(view, Heatmap):
        return draw_heatmap(table, view, encodings)
    return draw_gallery(table, view, encodings)


def save_pictures(
    table: Table,
    folder: Path,
    tables: Sequence[Table] = (),
    reference: str = DEFAULT_REFERENCE,
) -> Pictures:
    """Draw all pictures of a table, those of single encodings in folders of their own.

    Args:
        table, tables, reference: as in `draw`.
        folder: to write to.
    """
    paths = {}
    for name, figure in draw(table, tables, reference).items():
        stem = f"{table.name}-{slug(name)}" if name else table.name
        paths[name] = save(figure, folder / f"{stem}.png")
    singles: dict[Path, dict[str, Path]] = {}
    for view in _maps(table):
        overview = paths[view.subset]
        singles[overview] = {}
        for encoding in sorted(table.numbers(view.subset, view.metric)["encoding"].unique()):
            figure = draw_map(table, view, [encoding])
            path = overview.with_suffix("") / f"{slug(encoding)}.png"
            singles[overview][encoding] = save(figure, path)
    return Pictures(list(paths.values()), singles)


def _maps(table: Table) -> list[Heatmap | Gallery]:
    return [*table.views(Heatmap), *table.views(Gallery)]


def _have_lengths(table: Table) -> bool:
    numbers = [table.numbers(view.subset, view.metric) for view in table.views(Column)]
    return any(part["length"].notna().any() for part in numbers)
