"""The figures of a table and their files."""

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

import matplotlib
import PIL
from matplotlib.figure import Figure

from pe_bench.reporting.cost_charts import find_quality
from pe_bench.reporting.curves import draw_curves
from pe_bench.reporting.dot_plot import draw_scores
from pe_bench.reporting.heatmap import draw_gallery, draw_heatmap, save_heatmaps
from pe_bench.reporting.paired import DEFAULT_REFERENCE
from pe_bench.reporting.panels import FORMATS, is_stamped, save
from pe_bench.reporting.styles import styles_of
from pe_bench.reporting.tables import Table
from pe_bench.reporting.tradeoff import draw_tradeoff
from pe_bench.reporting.training_figures import draw_training
from pe_bench.results.views import Column, Curve, Gallery, Heatmap
from pe_bench.system.files import slug

Redraw = Literal["changes", "everything", "nothing"]


@dataclass(frozen=True)
class FigureFiles:
    """The files of a table's figures.

    Attributes:
        overviews: figures of all encodings.
        singles: figures of one encoding each, by overview and label.
        vector: the overviews as SVG and PDF, in an export.
    """

    overviews: list[Path]
    singles: dict[Path, dict[str, Path]]
    vector: list[Path]

    def all_files(self) -> list[Path]:
        """All files; the figures of single encodings come last."""
        singles = [path for paths in self.singles.values() for path in paths.values()]
        return [*self.overviews, *self.vector, *singles]


def draw(
    table: Table, tables: Sequence[Table] = (), reference: str = DEFAULT_REFERENCE
) -> dict[str, Figure]:
    """Return the figures of a table that show all encodings.

    Args:
        table: the table.
        tables: all tables of a results folder; a table of times is plotted against their quality.
        reference: encoding whose times are drawn bold.

    Returns:
        The figures by name: "" for the metrics over length, "quality" for cost against quality,
        "training" for learning curves, and those of `Table.maps`.
    """
    return {name: make() for name, make in _plan(table, tables, reference).items()}


def draw_map(
    table: Table, view: Heatmap | Gallery, encodings: Sequence[str] | None = None
) -> Figure:
    """Return the figure of a heatmap or gallery, of some encodings or of all."""
    if isinstance(view, Heatmap):
        return draw_heatmap(table, view, encodings)
    return draw_gallery(table, view, encodings)


def save_figures(
    table: Table,
    folder: Path,
    tables: Sequence[Table] = (),
    reference: str = DEFAULT_REFERENCE,
    *,
    redraw: Redraw = "changes",
) -> FigureFiles:
    """Draw and save the figures of a table; figures of single encodings in separate folders.

    Args:
        table, tables, reference: as in `draw`.
        folder: folder to write to.
        redraw: "changes" keeps files that would look the same: each file contains a digest of its
            numbers and of the drawing code. "everything" writes files without this digest, and
            also vector files. Their bytes depend only on their contents, so they can be committed.

    Returns:
        The files that now exist.
    """
    shown = [table, *(find_quality(table, tables) if table.about.measures_time else ())]
    stamp = stamp_of(shown, reference) if redraw == "changes" else ""
    overviews = []
    vector: list[Path] = []
    singles: dict[Path, dict[str, Path]] = {}
    for name, make in _plan(table, tables, reference).items():
        path, *others = save_overview(make, _figure_path(table, folder, name), stamp, redraw)
        overviews += [path] if path.exists() else []
        vector += others
    for name, view in table.maps().items():
        overview = _figure_path(table, folder, name)
        folder_of_singles = overview.with_suffix("")
        encodings = sorted(table.numbers(view.subset, view.metric)["encoding"].unique())
        files_of = {one: folder_of_singles / f"{slug(one)}.png" for one in encodings}
        due = {name: path for name, path in files_of.items() if _is_due([path], stamp, redraw)}
        if due and isinstance(view, Heatmap):
            save_heatmaps(table, view, due, stamp)
        elif due:
            for name, path in due.items():
                save(draw_map(table, view, [name]), [path], stamp)
        singles[overview] = {name: path for name, path in files_of.items() if path.exists()}
    return FigureFiles(overviews, singles, vector)


def save_overview(make: Callable[[], Figure], path: Path, stamp: str, redraw: Redraw) -> list[Path]:
    """Draw and save a figure if its files are due.

    Args:
        make: function that draws the figure.
        path: path of its PNG file.
        stamp: return value of `stamp_of`; "" for no stamp.
        redraw: as in `save_figures`.

    Returns:
        The path, and those of the vector files if everything is redrawn.
    """
    formats = FORMATS if redraw == "everything" else FORMATS[:1]  # PDF takes most of the time
    files = [path.with_name(f"{path.stem}.{kind}") for kind in formats]
    if _is_due(files, stamp, redraw):
        save(make(), files, stamp)
        for kind in FORMATS[len(formats) :]:  # earlier versions made them, now out of date
            path.with_name(f"{path.stem}.{kind}").unlink(missing_ok=True)
    return files


def _is_due(files: Sequence[Path], stamp: str, redraw: Redraw) -> bool:
    if redraw == "changes":
        return not all(is_stamped(path, stamp) for path in files)
    return redraw == "everything"


def is_among(table: Table, ran: Collection[Path]) -> bool:
    """Return whether a table contains one of the runs with the folders `ran`."""
    return any(record.folder in ran for record in table.records)


def stamp_of(shown: Sequence[Table], reference: str = "") -> str:
    """Return a digest of everything that determines the look of the figures of some tables."""
    digest = hashlib.sha256(_code().encode())
    digest.update(reference.encode())
    for one in shown:
        members = [(record.encoding, record.seed, record.adaptation) for record in one.records]
        about = [one.heading, members, styles_of(one.records), one.about.to_json()]
        digest.update(json.dumps(about, default=str).encode())
        digest.update(one.means.to_csv().encode())
        digest.update(repr(one.learning_curves).encode())
    return f"pe-bench {digest.hexdigest()}"


@cache
def _code() -> str:
    """Return a digest of the drawing code: three packages, matplotlib and Pillow."""
    digest = hashlib.sha256(f"{matplotlib.__version__} {PIL.__version__}".encode())
    package = Path(__file__).parents[1]
    for folder in ("reporting", "results", "stats"):
        for path in sorted((package / folder).glob("*.*")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _plan(table: Table, tables: Sequence[Table], reference: str) -> dict[str, Callable[[], Figure]]:
    """Return a function that draws the figure for each name of `draw`."""
    found: dict[str, Callable[[], Figure]] = {}
    if table.views(Curve):
        found[""] = partial(draw_curves, table, reference)
    elif _have_lengths(table):
        found[""] = partial(draw_scores, table)
    for name, view in table.maps().items():
        found[name] = partial(draw_map, table, view)
    if table.about.measures_time:
        others = find_quality(table, tables)
        if others:
            found["quality"] = partial(draw_tradeoff, table, others)
    if any(curve for curves in table.learning_curves for curve in curves.values()):
        found["training"] = partial(draw_training, table)
    return found


def _figure_path(table: Table, folder: Path, name: str) -> Path:
    """Return the file of a figure that shows all encodings."""
    stem = slug(f"{table.name}-{name}") if name else table.name
    return folder / f"{stem}.png"


def _have_lengths(table: Table) -> bool:
    numbers = [table.numbers(view.subset, view.metric) for view in table.views(Column)]
    return any(part["length"].notna().any() for part in numbers)
