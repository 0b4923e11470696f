"""Pictures that a task asks for (`pe_bench.task.Figure`), drawn from rows alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")  # files only; a server has no screen

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from pe_bench.reporting.plots import STYLE, hide, layout
from pe_bench.system.files import slug

if TYPE_CHECKING:
    from pe_bench.reporting.tables import Table

COLUMNS = 5
# From light to dark with the length, also in grey; widths differ so that curves which lie upon
# each other can all be seen.
SHADES = ("#56B4E9", "#D55E00", "#000000")
WIDTHS = (4.0, 2.2, 0.9)
FLAT = 0.2


def draw_figures(table: "Table", folder: Path) -> tuple[list[Path], list[Path]]:
    """Draws what a task declares.

    Returns:
        Paths of the pictures of all encodings, and of those of single ones.
    """
    overviews, singles = [], []
    for figure in table.about.get("figures", ()):
        rows = table.scores
        rows = rows[(rows.subset == figure["subset"]) & (rows.metric == figure["metric"])]
        rows = rows[rows["aux"] != ""]  # a mean over them
        if rows.empty:
            continue
        rows = rows.assign(x=rows["aux"].astype(float))
        name = f"{table.name}-{slug(figure['subset'])}"
        path = folder / f"{name}.png"
        encodings = sorted(rows.encoding.unique())
        draw = {"gallery": _gallery, "heatmap": _heatmap}[figure["kind"]]
        with plt.rc_context(STYLE):
            draw(table, figure, rows, encodings, path)
            overviews.append(path)
            for encoding in encodings:
                single = folder / name / f"{slug(encoding)}.png"
                single.parent.mkdir(exist_ok=True)
                draw(table, figure, rows, [encoding], single)
                singles.append(single)
    return overviews, singles


def _gallery(
    table: "Table", figure: dict[str, Any], rows: pd.DataFrame, encodings: list[str], path: Path
) -> None:
    """A panel for each encoding: the metric against `aux`, a curve for each length."""
    lines, columns = layout(len(encodings), COLUMNS)
    size = (2.6 * columns, 2.0 * lines) if len(encodings) > 1 else (5.2, 3.6)
    canvas, axes = plt.subplots(
        lines, columns, figsize=size, layout="constrained", squeeze=False, sharex=True
    )
    lengths = sorted(rows.length.unique())
    for axis, encoding in zip(axes.flat, encodings, strict=False):
        part = rows[rows.encoding == encoding]
        for i, length in enumerate(lengths):
            curve = part[part.length == length].sort_values("x")
            style = {"color": SHADES[i % len(SHADES)], "linewidth": WIDTHS[i % len(WIDTHS)]}
            axis.plot(curve.x, curve["mean"], label=f"{length:,.0f} tokens", **style)
        low, high = axis.get_ylim()
        if high - low < FLAT:  # what is constant shall look so
            axis.set_ylim((low + high - FLAT) / 2, (low + high + FLAT) / 2)
        _decorate(axis, table.about["trained_to"], rows.x.max())
        axis.set_title(encoding, fontsize=10, loc="left")
    hide(axes, len(encodings))
    canvas.supxlabel(table.about["axes"]["aux"], fontsize=10)
    canvas.supylabel(figure["value"], fontsize=10)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower right", ncols=len(labels), frameon=False)
    canvas.suptitle(_title(table, figure, rows, encodings), x=0.01, ha="left", fontsize=11)
    canvas.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(canvas)


def _heatmap(
    table: "Table", figure: dict[str, Any], rows: pd.DataFrame, encodings: list[str], path: Path
) -> None:
    """A map for each encoding, all in one scale: length upwards, `aux` to the right."""
    lines, columns = layout(len(encodings), COLUMNS)
    size = (2.5 * columns + 0.8, 2.5 * lines + 0.6) if len(encodings) > 1 else (5.4, 4.6)
    canvas, axes = plt.subplots(
        lines, columns, figsize=size, layout="constrained", squeeze=False, sharex=True, sharey=True
    )
    xs, ys = sorted(rows.x.unique()), sorted(rows.length.unique())
    for axis, encoding in zip(axes.flat, encodings, strict=False):
        part = rows[rows.encoding == encoding]
        cells = part.pivot_table(index="length", columns="x", values="mean").reindex(ys, columns=xs)
        image = axis.pcolormesh(cells.to_numpy(), cmap="cividis", vmin=0, vmax=100)
        axis.set_title(encoding, fontsize=10, loc="left")
        for ticks, values in ((axis.set_xticks, xs), (axis.set_yticks, ys)):
            step = max(1, len(values) // 5)
            chosen = range(step - 1, len(values), step)
            ticks([i + 0.5 for i in chosen], [f"{values[i]:,g}" for i in chosen])
        axis.tick_params(labelsize=8)
        _trained(axis, figure["trained"], xs, ys)
    hide(axes, len(encodings))
    canvas.supxlabel(table.about["axes"]["aux"], fontsize=10)
    canvas.supylabel(table.about["axes"]["length"], fontsize=10)
    canvas.colorbar(image, ax=axes, label=figure["value"], shrink=min(1.0, 1.2 / lines + 0.2))
    canvas.suptitle(_title(table, figure, rows, encodings), x=0.01, ha="left", fontsize=11)
    canvas.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(canvas)


def _title(table: "Table", figure: dict[str, Any], rows: pd.DataFrame, encodings: list[str]) -> str:
    first = [table.title] if len(encodings) > 1 else [encodings[0], table.title]
    seeds = rows[rows.encoding.isin(encodings)]["seeds"]
    if seeds.max() > 1:
        some = f"{seeds.min()} to " if seeds.min() < seeds.max() else ""
        first.append(f"mean of {some}{seeds.max()} seeds")
    return f"{' · '.join(first)}\n{figure['title']}"


def _trained(
    axis: Axes, trained: tuple[float | None, float | None], xs: list[float], ys: list[float]
) -> None:
    """Draws the border of what was trained."""
    right, top = (
        None if end is None else sum(value <= end for value in values)
        for end, values in zip(trained, (xs, ys), strict=True)
    )
    for colour, width, style in (("white", 3.0, "-"), ("black", 1.4, "--")):  # on any colour
        line: dict[str, Any] = {"color": colour, "linewidth": width, "linestyle": style}
        if right is not None:
            axis.plot([right, right], [0, len(ys) if top is None else top], **line)
        if top is not None:
            axis.plot([0, len(xs) if right is None else right], [top, top], **line)


def _decorate(axis: Axes, train_length: int, last: float) -> None:
    """Distances in octaves from 0 on, the training length marked."""
    axis.set_xscale("symlog", base=2, linthresh=1)
    ticks = [0, 1, *(4.0**i for i in range(1, 20) if 4.0**i <= last)]
    axis.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    axis.minorticks_off()
    axis.tick_params(labelsize=8)
    axis.axvline(train_length, color="0.5", linestyle="--", linewidth=1)
    axis.grid(axis="y", alpha=0.3)
