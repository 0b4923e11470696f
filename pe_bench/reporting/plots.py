"""Plots of a table: each metric against length, the training length marked."""

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")  # files only; a server has no screen

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.legend import Legend

if TYPE_CHECKING:
    from pe_bench.reporting.tables import Table

# Okabe and Ito's colours, which colour-blind people can tell apart, with wine in place of their
# yellow, which nobody sees on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
COLUMNS = 4  # panels side by side
STYLE: Any = {  # the key type is a Literal of hundreds of names
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a $ in a name is a $
}
NAMES = {"f1": "F1", "em": "exact match", "rgm": "ROUGE geometric mean"}
PERCENT = {"exact_match", "accuracy", "token_accuracy", *NAMES}


def plot_table(table: "Table", folder: Path) -> Path | None:
    """Draws one picture of a table's shown metrics.

    Returns:
        Its path, or None where no number has a length.
    """
    shown = _shown(table)
    scores = table.scores
    wanted = pd.Series(list(zip(scores.subset, scores.metric, strict=True))).isin(shown.items())
    scores = scores[wanted.to_numpy() & scores.length.notna().to_numpy()]
    if scores.empty:
        return None
    curves = scores.groupby("subset").length.nunique().max() > 1
    path = folder / f"{table.name}.png"
    with plt.rc_context(STYLE):
        figure = _curves(table, scores) if curves else _parts(table, scores)
        title = figure.suptitle(table.title, x=0.02, ha="left", fontsize=12)
        # Panels keep their size; the picture grows with what is written around them.
        around = [title, *figure.findobj(Legend)]
        figure.savefig(path, dpi=150, bbox_inches="tight", bbox_extra_artists=around)
        plt.close(figure)
    return path


def _curves(table: "Table", scores: pd.DataFrame) -> Any:
    """A panel for each subset, a curve for each encoding."""
    subsets = [s for s in _shown(table) if (scores.subset == s).any()]
    lines, columns = layout(len(subsets), COLUMNS)
    figure, axes = plt.subplots(
        lines,
        columns,
        figsize=(5.2 * columns, 4.2 * lines),
        layout="constrained",
        squeeze=False,
    )
    hide(axes, len(subsets))
    for axis, subset in zip(axes.flat, subsets, strict=False):
        part = scores[scores.subset == subset]
        for i, encoding in enumerate(_encodings(table)):
            line = part[part.encoding == encoding].sort_values("length")
            axis.errorbar(line.length, line["mean"], _spread(line), label=encoding, **_style(i))
        axis.set_xscale("log", base=2)
        lengths = _apart(sorted(part.length.unique()))
        axis.set_xticks(lengths, [f"{length:,.0f}" for length in lengths])
        axis.minorticks_off()
        axis.set_xlabel(table.about["axes"]["length"])
        percent = _shown(table)[subset] in PERCENT
        axis.set_ylabel(_metric_name(table, subset) + (", %" if percent else ""))
        if percent:  # what an error bar says past the end of the scale is not so
            low, high = axis.get_ylim()
            axis.set_ylim(max(low, -3), min(high, 103))
        axis.set_title(subset, fontsize=10, loc="left", pad=14)  # above what _mark writes
        axis.grid(axis="y", alpha=0.3)
        for length, label in _trained_lengths(table).items():
            _mark(axis, length, label)
    _legend(axes[0][-1], _encodings(table), scores)
    return figure


def layout(panels: int, most: int) -> tuple[int, int]:
    """Lines and columns, at most so many, as even as can be."""
    lines = math.ceil(panels / most)
    return lines, math.ceil(panels / lines)


def hide(axes: Any, used: int) -> None:
    """Takes away panels that nothing is in; the lowest of each column carries the numbers."""
    for axis in axes.flat[used:]:
        axis.set_visible(False)
    for column in axes.T:
        [axis for axis in column if axis.get_visible()][-1].tick_params(labelbottom=True)


def _apart(lengths: list[float]) -> list[float]:
    """Those whose labels do not run into each other, the last one always."""
    least = max(1.05, (lengths[-1] / lengths[0]) ** (1 / 14))
    kept: list[float] = []
    for length in reversed(lengths):
        if not kept or kept[-1] / length >= least:
            kept.append(length)
    return kept[::-1]


def _parts(table: "Table", scores: pd.DataFrame) -> Any:
    """Subsets side by side, shortest inputs first: their lengths may be close or far apart."""
    lengths = scores.groupby("subset").length.median().sort_values()
    encodings = _encodings(table)
    figure, axis = plt.subplots(figsize=(1.5 + 1.25 * len(lengths), 4.4), layout="constrained")
    step = 0.7 / max(1, len(encodings))
    for i, encoding in enumerate(encodings):
        part = scores[scores.encoding == encoding].set_index("subset").reindex(lengths.index)
        dodged = [x + (i - (len(encodings) - 1) / 2) * step for x in range(len(lengths))]
        style = _style(i) | {"linestyle": "none"}
        axis.errorbar(dodged, part["mean"], _spread(part), label=encoding, **style)
    labels = [
        f"{subset}\n{length:,.0f}\n{textwrap.fill(_metric_name(table, str(subset)), 14)}"
        for subset, length in lengths.items()
    ]
    axis.set_xticks(range(len(lengths)), labels)
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlabel(f"subset, {table.about['axes']['length']}, metric")
    axis.set_ylabel("score, %")
    axis.set_ylim(bottom=-0.02 * axis.get_ylim()[1])  # a score of zero is a whole marker
    axis.set_xlim(-0.6, len(lengths) - 0.4)
    axis.grid(axis="y", alpha=0.3)
    places: dict[float, list[str]] = {}
    for trained, label in _trained_lengths(table).items():
        places.setdefault(float((lengths <= trained).sum()) - 0.5, []).append(label)
    for place, words in places.items():
        inwards = "left" if place < 0 else "right" if place > len(lengths) - 1 else "center"
        _mark(axis, place, ", ".join(words), inwards)
    _legend(axis, encodings, scores)
    return figure


def _shown(table: "Table") -> dict[str, str]:
    """Metric of each subset that belongs into the plot."""
    return {**table.about["shown"], **table.about.get("curves", {})}


def _trained_lengths(table: "Table") -> dict[int, str]:
    """Length -> what to write beside its line."""
    first, second = table.about["trained_to"], table.about.get("fine_tune_length")
    if second is None:
        return {first: f"trained to {first:,}"}
    return {first: f"pre-trained to {first:,}", second: f"fine-tuned to {second:,}"}


def _mark(axis: Axes, at: float, label: str, align: str = "center") -> None:
    axis.axvline(at, color="0.4", linestyle="--", linewidth=1)
    axis.annotate(
        label,
        (at, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2),  # above the panel: inside it would lie on the curves
        textcoords="offset points",
        ha=align,
        va="bottom",
        fontsize=8,
        color="0.35",
    )


def _encodings(table: "Table") -> list[str]:
    return sorted({run["encoding"] for run in table.runs})


def _spread(rows: pd.DataFrame) -> pd.Series:
    return rows["sd"].where(rows["seeds"] > 1, rows["stderr"])


def _style(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 5,
        "linewidth": 1.5,
        "elinewidth": 1,
        "capsize": 2,
    }


def _metric_name(table: "Table", subset: str) -> str:
    metric = _shown(table)[subset]
    return NAMES.get(metric, metric.replace("_", " "))


def _legend(axis: Axes, encodings: list[str], scores: pd.DataFrame) -> None:
    """Right of a panel, which does not shrink for it. An underscore in front hides no encoding."""
    bars = "sd over seeds" if scores["seeds"].max() > 1 else "standard error"
    legend = axis.legend(
        axis.containers,
        encodings,
        loc="upper left",
        bbox_to_anchor=(1.02, 1.0),
        borderaxespad=0,
        frameon=False,
        title=f"encoding, ± {bars}",
        alignment="left",
    )
    legend.set_in_layout(False)
