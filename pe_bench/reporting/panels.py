"""Panels, titles, legends and marks shared by all figures. Needs no screen and no pyplot."""

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from pe_bench.errors import InputError
from pe_bench.reporting.chart_model import TrainedLength
from pe_bench.system.files import write_atomic

STYLE: Any = {  # the key type is a Literal of hundreds of names
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # print a $ in a name literally
    "pdf.fonttype": 42,  # TrueType: text that can be searched and edited
    "svg.fonttype": "none",  # text, not outlines
    "svg.hashsalt": "pe-bench",  # makes the ids within a file reproducible
}
FORMATS = ("png", "svg", "pdf")
DPI = 150
PADDING = 0.1  # around a figure, inches
UNDATED: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
STAMPS = {"png": "Comment", "svg": "Description", "pdf": "Keywords"}  # metadata field of the stamp
ENDS = {"png": b"IEND\xaeB`\x82", "svg": b"</svg>\n", "pdf": b"%%EOF\n"}
CHARACTERS_PER_INCH = 13  # characters of a panel's title per inch, slightly fewer than fit
BREAKS = re.compile(r"(\s+|(?<=[-,:;]))")  # places where a name may be broken
TITLE_PER_INCH = 11.8  # characters of a figure's title per inch
REFERENCE: dict[str, Any] = {"color": "0.6", "linestyle": ":", "linewidth": 1.2, "zorder": 0}
"""Line style of baselines: guessing, a constant answer, a table of n-grams."""

GREY = "0.35"
PALETTE = 256  # number of colours of a PNG file

styled = rc_context(STYLE)
"""Decorator for functions that draw."""


def make_panels(
    count: int,
    *,
    per_row: int,
    size: tuple[float, float],
    margin: tuple[float, float] = (0.0, 0.0),
    share_x: bool = False,
    share_y: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels in rows as even as possible.

    Args:
        count: number of panels.
        per_row: most panels in a row.
        size: width and height of a panel, inches.
        margin: extra width and height for legends and titles, inches.
        share_x, share_y: whether all panels have the same limits and ticks. Tick labels are then
                    only at the edge. The panels set them separately, because the time of
                    matplotlib's shared axes grows with the square of their number.
    """
    rows = math.ceil(count / per_row)
    columns = math.ceil(count / rows)
    width = size[0] * columns + margin[0]
    height = size[1] * rows + margin[1]
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axis in grid.flat[count:]:
        axis.set_visible(False)
    for index, axis in enumerate(grid.flat[:count]):
        if share_x and index + columns < count:  # there is a panel below
            axis.tick_params(labelbottom=False)
        if share_y and index % columns:
            axis.tick_params(labelleft=False)
    return figure, list(grid.flat[:count])


def set_title(figure: Figure, *lines: str, beside: float = 0.0) -> Text:
    """Write lines above all panels, and return them.

    Args:
        figure: the figure.
        lines: the lines.
        beside: width reserved for a legend, inches.
    """
    room = figure.get_figwidth() - beside
    per_inch = TITLE_PER_INCH
    title = figure.suptitle(wrap(lines, room, per_inch), x=0.01, ha="left", fontsize=11)
    while title.get_window_extent().x1 > room * figure.dpi and per_inch > TITLE_PER_INCH / 2:
        per_inch *= 0.95  # its characters are wider than usual
        title.set_text(wrap(lines, room, per_inch))
    return title


def label_rows(figure: Figure, label: str, title: Text) -> None:
    """Write the label of all y axes at the left, centred in the height below the title."""
    top = title.get_window_extent().y0 / figure.bbox.height  # as a fraction of the figure
    room = top * figure.get_figheight()
    figure.supylabel(wrap([label], room), y=top / 2, fontsize=10)


def wrap(lines: Iterable[str], width: float, per_inch: float = CHARACTERS_PER_INCH) -> str:
    """Wrap lines to a width in inches and drop empty lines.

    Names are broken between their options, or at hyphens, only if they are longer than a line.
    """
    most = int(width * per_inch)
    wrapped = []
    for line in filter(None, lines):
        wrapper = textwrap.TextWrapper(most, break_on_hyphens=False)
        if any(len(word) > most for word in line.split()):
            wrapper.wordsep_simple_re = BREAKS
        wrapped.append(wrapper.fill(line))
    return "\n".join(wrapped)


def set_panel_title(
    axis: Axes, title: str, *, width: float | None = None, marked: bool = False
) -> Text:
    """Write a title above a panel and return it.

    Args:
        axis: the panel.
        title: text of the title.
        width: width in inches at which the title is wrapped; None for no wrapping.
        marked: whether labels of `mark_trained` are below the title.
    """
    if width is not None:
        title = wrap([title], width)
    return axis.set_title(title, fontsize=10, loc="left", pad=16 if marked else 6)


def mark_trained(axis: Axes, mark: TrainedLength) -> None:
    """Draw a dashed line at a training length, with its label above the panel."""
    axis.axvline(mark.x, color="0.4", linestyle="--", linewidth=1, zorder=0)
    write_mark(axis, mark)


def write_mark(axis: Axes, mark: TrainedLength) -> None:
    """Write the label of a mark above the panel."""
    align: Any = mark.align
    axis.annotate(
        mark.label,
        (mark.x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=({"left": -3, "center": 0, "right": 3}[mark.align], 2),
        textcoords="offset points",
        ha=align,
        va="bottom",
        fontsize=8,
        color=GREY,
    )


def draw_baseline(axis: Axes, points: Sequence[tuple[float, float]]) -> Line2D:
    """Draw the scores of a baseline as a dotted grey line, for the legend to name."""
    xs = [x for x, _ in points]
    ys = [y for _, y in points]
    (line,) = axis.plot(xs, ys, **REFERENCE)
    return line


def set_lengths(axis: Axes, ticks: Sequence[float], *, log: bool) -> None:
    """Set an x axis of lengths, logarithmic with base 2 if `log`."""
    if log:
        axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{length:,.0f}" for length in ticks])
    axis.minorticks_off()


def save(
    figure: Figure,
    paths: Sequence[Path],
    stamp: str = "",
    *,
    crop: bool = True,
    dpi: int = DPI,
) -> None:
    """Write a figure in the formats given by the paths' endings. Create the folder if needed.

    The same figure gives the same bytes: no file contains a date.

    Args:
        figure: the figure. It is laid out once, then its layout is fixed.
        paths: paths of the files.
        stamp: text stored in the metadata of each file, see `is_stamped`.
        crop: whether to cut off empty margins; otherwise the files have the figure's size.
        dpi: resolution of PNG files, dots per inch.

    Raises:
        InputError: an ending is not .png, .svg or .pdf.
        SavingError: a file could not be saved.
    """
    for path in paths:
        if _kind(path) not in FORMATS:
            raise InputError(f"{path}: a figure's name ends in .png, .svg or .pdf")
    with rc_context(STYLE):  # some texts are made when a figure is drawn
        box = _lay_out(figure, crop=crop, dpi=dpi)
        for path in paths:
            kind = _kind(path)
            if kind == "png":
                canvas = FigureCanvasAgg(figure)
                canvas.draw()
                write_atomic(path, _encode(canvas, box, stamp))
            else:
                content = io.BytesIO()
                known = UNDATED[kind] | {STAMPS[kind]: stamp or None}
                figure.savefig(content, format=kind, bbox_inches=box, metadata=known)
                write_atomic(path, content.getvalue())


def save_each(
    figure: Figure,
    changing: Sequence[Artist],
    change: Callable[[str], object],
    paths: Mapping[str, Path],
    stamp: str = "",
) -> None:
    """Write PNG files that differ in a few artists. Everything else is drawn once.

    Args:
        figure: the figure, with the artists at their maximum size.
        changing: artists that differ between files, and artists drawn over them.
        change: function that updates the artists for the file of a name.
        paths: paths of the files, by name.
        stamp: as in `save`.

    Raises:
        SavingError: a file could not be saved.
    """
    with rc_context(STYLE):
        box = _lay_out(figure)
        for artist in changing:
            artist.set_animated(True)  # excluded from the common background
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        background = canvas.copy_from_bbox(figure.bbox)
        in_order = sorted(changing, key=lambda artist: artist.get_zorder())
        for name, path in paths.items():
            change(name)
            canvas.restore_region(background)
            for artist in in_order:
                artist.draw(canvas.get_renderer())
            write_atomic(path, _encode(canvas, box, stamp))


def _lay_out(figure: Figure, *, crop: bool = True, dpi: int = DPI) -> Bbox:
    """Fix the layout of a figure and return the bounding box of its contents, inches.

    Without `crop`, return the bounding box of the figure.
    """
    figure.set_dpi(dpi)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine(None)  # "none" would draw once more for each file
    if not crop:
        return figure.bbox_inches
    filled = figure.get_tightbbox().padded(PADDING)
    return Bbox.intersection(filled, figure.bbox_inches) or figure.bbox_inches


def is_stamped(path: Path, stamp: str) -> bool:
    """Return whether a file is a complete figure that was saved with this stamp."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return stamp.encode() in content and content.endswith(ENDS[_kind(path)])


def _kind(path: Path) -> str:
    return path.suffix.removeprefix(".").lower()


def _encode(canvas: FigureCanvasAgg, box: Bbox, stamp: str) -> bytes:
    """Return a PNG file with 256 colours. It looks the same with a third of the bytes.

    Args:
        canvas: canvas with the drawn figure.
        box: part of the canvas to keep, inches.
        stamp: as in `save`.
    """
    known = PngInfo()
    known.add_text(STAMPS["png"], stamp)
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    dpi = canvas.figure.dpi
    left, bottom, right, top = (round(end * dpi) for end in box.extents)
    # The canvas has whole pixels. A partial pixel at the top or on the right would be black.
    image = image.crop(
        (left, max(0, image.height - top), min(right, image.width), image.height - bottom)
    )
    # The median cut keeps the colours of the encodings exactly; other methods change them.
    few = image.quantize(PALETTE, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    content = io.BytesIO()
    few.save(content, format="png", dpi=(dpi, dpi), pnginfo=known if stamp else None)
    return content.getvalue()
