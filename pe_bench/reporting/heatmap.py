"""Pictures with a panel for each encoding: heatmaps and galleries."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_bench.reporting import panels
from pe_bench.reporting.panels import styled
from pe_bench.reporting.tables import Table
from pe_bench.results.items import Floats
from pe_bench.results.views import Gallery, Heatmap

PANELS_PER_ROW = 5
SINGLE = (4.6, 4.0)  # inches, of a map alone
MAX_TICKS = 6  # on an axis of a heatmap
# From light to dark with the length, also in grey; widths differ so that curves which coincide
# can all be seen.
SHADES = ("#56B4E9", "#D55E00", "#000000")
WIDTHS = (4.0, 2.2, 0.9)
LEGEND_WIDTH = 1.3  # of a gallery, inches
LEAST_RANGE = 0.2  # a constant looks constant


@styled
def draw_heatmap(table: Table, view: Heatmap, encodings: Sequence[str] | None = None) -> Figure:
    """Return a map for each encoding, all on one scale: length up, the second axis to the right.

    Args:
        table: where the numbers are.
        view: which of them.
        encodings: labels; None: all.
    """
    numbers = cells_of(table, view)
    shown = _present(numbers, encodings)
    size = (2.5, 2.5) if len(shown) > 1 else SINGLE
    figure, axes = panels.make_panels(
        len(shown),
        per_row=PANELS_PER_ROW,
        size=size,
        margin=(0.8, 0.6),
        share_x=True,
        share_y=True,
    )
    xs, ys = _places(numbers)
    percent = table.metric(view.metric).unit == "%"
    low, high = (0, 100) if percent else (numbers["mean"].min(), numbers["mean"].max())
    for axis, encoding in zip(axes, shown, strict=True):
        grid = _grid(numbers, encoding, xs, ys)
        image = axis.pcolormesh(grid, cmap="cividis", vmin=low, vmax=high)
        panels.set_panel_title(axis, table.describe(encoding), width=size[0] - 0.4)
        axis.set_xticks(*_ticks(xs))
        axis.set_yticks(*_ticks(ys))
        axis.tick_params(labelsize=8)
        _outline_trained(axis, view.trained, xs, ys)
    figure.supxlabel(table.axis("second"), fontsize=10)
    figure.supylabel(table.axis("length"), fontsize=10)
    rows = math.ceil(len(shown) / PANELS_PER_ROW)
    shrink = min(1.0, 1.2 / rows + 0.2)
    figure.colorbar(image, ax=axes, label=table.label(view.metric), shrink=shrink)
    panels.set_title(figure, *_titles(table, view, numbers, shown))
    return figure


@styled
def save_heatmaps(table: Table, view: Heatmap, paths: Mapping[str, Path], stamp: str = "") -> None:
    """Write a map of each encoding alone, as `draw_heatmap` makes it.

    Args:
        table, view: as there.
        paths: of the files, by encoding.
        stamp: what they have in them, see `panels.save`.
    """
    longest = max(paths, key=lambda encoding: len(table.describe(encoding)))
    figure = draw_heatmap(table, view, [longest])
    axis = figure.axes[0]
    numbers = cells_of(table, view)
    xs, ys = _places(numbers)
    (image,) = axis.collections

    title = panels.set_title(figure, *_titles(table, view, numbers, [longest]))
    label = panels.set_panel_title(axis, table.describe(longest), width=SINGLE[0] - 0.4)

    def change(encoding: str) -> None:
        image.set_array(_grid(numbers, encoding, xs, ys))
        label.set_text(panels.wrap([table.describe(encoding)], SINGLE[0] - 0.4))
        lines = _titles(table, view, numbers, [encoding])
        title.set_text(panels.wrap(lines, figure.get_figwidth(), panels.TITLE_PER_INCH))

    changing = [image, *axis.lines, *axis.spines.values(), label, title]
    panels.save_each(figure, changing, change, paths, stamp)


@styled
def draw_gallery(table: Table, view: Gallery, encodings: Sequence[str] | None = None) -> Figure:
    """Return a panel for each encoding: the metric over the second axis, a curve for each length.

    Args:
        table: where the numbers are.
        view: which of them.
        encodings: labels; None: all.
    """
    numbers = cells_of(table, view)
    shown = _present(numbers, encodings)
    size = (2.6, 2.0) if len(shown) > 1 else (5.2, 3.2)
    figure, axes = panels.make_panels(
        len(shown),
        per_row=PANELS_PER_ROW,
        size=size,
        margin=(LEGEND_WIDTH, 0.4),
        share_x=True,
    )
    lengths = sorted(numbers["length"].unique())
    for axis, encoding in zip(axes, shown, strict=True):
        part = numbers[numbers["encoding"] == encoding]
        for index, length in enumerate(lengths):
            curve = part[part["length"] == length].sort_values("x")
            axis.plot(
                curve["x"],
                curve["mean"],
                label=f"{length:,.0f} tokens",
                color=SHADES[index % len(SHADES)],
                linewidth=WIDTHS[index % len(WIDTHS)],
            )
        _set_range(axis)
        _set_distances(axis, numbers["x"].max())
        if table.about.max_train_axis is not None:
            axis.axvline(table.about.max_train_axis, color="0.5", linestyle="--", linewidth=1)
        panels.set_panel_title(axis, table.describe(encoding), width=size[0] - 0.4)
    figure.supxlabel(table.axis("second"), fontsize=10)
    figure.supylabel(view.y, fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False)
    title = _describe(table, numbers, shown)
    panels.set_title(figure, title, view.title, beside=LEGEND_WIDTH)
    return figure


def cells_of(table: Table, view: Heatmap | Gallery) -> pd.DataFrame:
    """Return the numbers of a view that have a place on both axes, the second one in `x`."""
    numbers = table.numbers(view.subset, view.metric)
    numbers = numbers[(numbers["second_axis"] != "") & numbers["length"].notna()]
    return numbers.assign(x=numbers["second_axis"].astype(float))


def _places(numbers: pd.DataFrame) -> tuple[list[float], list[float]]:
    """Return the values of the second axis and the lengths."""
    return sorted(numbers["x"].unique()), sorted(numbers["length"].unique())


def _grid(numbers: pd.DataFrame, encoding: str, xs: Sequence[float], ys: Sequence[float]) -> Floats:
    """Return the means of an encoding, (lengths, values of the second axis)."""
    part = numbers[numbers["encoding"] == encoding]
    grid = part.pivot_table(index="length", columns="x", values="mean")
    return np.asarray(grid.reindex([*ys], columns=[*xs]), np.float64)


def _present(numbers: pd.DataFrame, encodings: Sequence[str] | None) -> list[str]:
    present = sorted(numbers["encoding"].unique())
    return present if encodings is None else [name for name in encodings if name in present]


def _ticks(values: Sequence[float]) -> tuple[list[float], list[str]]:
    """Return places and labels of a few evenly spaced ticks, the last value among them."""
    last = len(values) - 1
    least = max(1, math.ceil(last / (MAX_TICKS - 1)))
    even = [step for step in range(least, 2 * least + 1) if last % step == 0]  # has the first too
    chosen = range(last, -1, -(even[0] if even else least))
    return [index + 0.5 for index in chosen], [f"{values[index]:,g}" for index in chosen]


def _outline_trained(
    axis: Axes,
    trained: tuple[float | None, float | None],
    xs: Sequence[float],
    ys: Sequence[float],
) -> None:
    """Draw the border of the trained cells, visible on any colour."""
    right = len(xs) if trained[0] is None else sum(x <= trained[0] for x in xs)
    top = len(ys) if trained[1] is None else sum(y <= trained[1] for y in ys)
    for colour, width, line in (("white", 3.0, "-"), ("black", 1.4, "--")):
        if trained[0] is not None:
            axis.plot([right, right], [0, top], color=colour, linewidth=width, linestyle=line)
        if trained[1] is not None:
            axis.plot([0, right], [top, top], color=colour, linewidth=width, linestyle=line)


def _set_range(axis: Axes) -> None:
    low, high = axis.get_ylim()
    if high - low < LEAST_RANGE:
        middle = (low + high) / 2
        axis.set_ylim(middle - LEAST_RANGE / 2, middle + LEAST_RANGE / 2)


def _set_distances(axis: Axes, last: float) -> None:
    """Set an x axis of distances: 0, then octaves."""
    axis.set_xscale("symlog", base=2, linthresh=1)
    powers = [4.0**exponent for exponent in range(1, 20)]
    ticks = [0.0, 1.0, *(power for power in powers if power <= last)]
    axis.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    axis.set_xlim(left=-0.2)
    axis.minorticks_off()
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", alpha=0.3)


def _say(table: Table, view: Heatmap) -> str:
    """Return in words what is to be seen."""
    axes = [table.axis(name) for name in ("length", "second")]
    what = view.title or f"{table.metric(view.metric).title} by {' and '.join(axes)}"
    if view.trained != (None, None) and "dashed" not in what:
        what += " (dashed: trained)"
    return what[0].upper() + what[1:]


def _titles(
    table: Table, view: Heatmap, numbers: pd.DataFrame, shown: Sequence[str]
) -> tuple[str, str, str]:
    """Return the lines above maps."""
    given = table.describe_given([view.metric])
    return _say(table, view), given, _describe(table, numbers, shown)


def _describe(table: Table, numbers: pd.DataFrame, shown: Sequence[str]) -> str:
    """Return the table's heading, and of how many seeds the means are."""
    parts = [table.heading]
    if len(shown) == 1:
        parts.insert(0, shown[0])
    seeds = numbers[numbers["encoding"].isin(shown)]["seeds"]
    if seeds.max() > 1:
        least = f"{seeds.min()} to " if seeds.min() < seeds.max() else ""
        parts.append(f"mean of {least}{seeds.max()} seeds")
    return " · ".join(parts)
