"""Plots of a table: each metric against length, the training length marked."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")  # files only; a server has no screen

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

if TYPE_CHECKING:
    from pe_bench.report import Table

# Okabe and Ito's colours, which colour-blind people can tell apart; black and yellow, hard to
# see on white or as thin lines, come last.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
NAMES = {"f1": "F1", "em": "exact match", "rgm": "ROUGE geometric mean"}


def plot_table(table: "Table", folder: Path) -> Path | None:
    """Draws one picture of a table's shown metrics.

    Returns:
        Its path, or None where no number has a length.
    """
    shown = table.about["shown"]
    scores = table.scores
    wanted = pd.Series(list(zip(scores.subset, scores.metric, strict=True))).isin(shown.items())
    scores = scores[wanted.to_numpy() & scores.length.notna().to_numpy()]
    if scores.empty:
        return None
    curves = scores.groupby("subset").length.nunique().max() > 1
    path = folder / f"{table.name}.png"
    with plt.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = _curves(table, scores) if curves else _parts(table, scores)
        figure.suptitle(table.title, x=0.02, ha="left", fontsize=12)
        figure.savefig(path, dpi=150)
        plt.close(figure)
    return path


def _curves(table: "Table", scores: pd.DataFrame) -> Any:
    """A panel for each subset, a curve for each encoding."""
    subsets = [s for s in table.about["shown"] if (scores.subset == s).any()]
    figure, axes = plt.subplots(
        1,
        len(subsets),
        figsize=(1.8 + 4.6 * len(subsets), 4.2),
        layout="constrained",
        squeeze=False,
    )
    for axis, subset in zip(axes[0], subsets, strict=True):
        part = scores[scores.subset == subset]
        for i, encoding in enumerate(_encodings(table)):
            line = part[part.encoding == encoding].sort_values("length")
            axis.errorbar(line.length, line["mean"], _spread(line), label=encoding, **_style(i))
        axis.set_xscale("log", base=2)
        lengths = sorted(part.length.unique())
        axis.set_xticks(lengths, [f"{length:,.0f}" for length in lengths])
        axis.minorticks_off()
        axis.set_xlabel(table.about["axes"]["length"])
        axis.set_ylabel(_metric_name(table, subset))
        axis.set_title(subset, fontsize=10)
        axis.grid(axis="y", alpha=0.3)
        _mark_training_length(axis, table.about["train_length"])
    _legend(figure, axes[0][0])
    return figure


def _parts(table: "Table", scores: pd.DataFrame) -> Any:
    """Subsets side by side, shortest inputs first: their lengths may be close or far apart."""
    lengths = scores.groupby("subset").length.median().sort_values()
    encodings = _encodings(table)
    figure, axis = plt.subplots(figsize=(3.2 + 1.25 * len(lengths), 4.4), layout="constrained")
    step = 0.7 / max(1, len(encodings))
    for i, encoding in enumerate(encodings):
        part = scores[scores.encoding == encoding].set_index("subset").reindex(lengths.index)
        places = [x + (i - (len(encodings) - 1) / 2) * step for x in range(len(lengths))]
        style = _style(i) | {"linestyle": "none"}
        axis.errorbar(places, part["mean"], _spread(part), label=encoding, **style)
    labels = [
        f"{subset}\n{_metric_name(table, str(subset))}\n{length:,.0f}"
        for subset, length in lengths.items()
    ]
    axis.set_xticks(range(len(lengths)), [label.replace(" ", "\n", 1) for label in labels])
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlabel(f"subset, its metric, {table.about['axes']['length']}")
    axis.set_ylabel("score, %")
    axis.set_ylim(bottom=0)
    axis.set_xlim(-0.6, len(lengths) - 0.4)
    axis.grid(axis="y", alpha=0.3)
    train_length = table.about["train_length"]
    _mark_training_length(axis, train_length, float((lengths <= train_length).sum()) - 0.5)
    _legend(figure, axis)
    return figure


def _mark_training_length(axis: Axes, length: int, place: float | None = None) -> None:
    at = length if place is None else place
    axis.axvline(at, color="0.4", linestyle="--", linewidth=1)
    axis.annotate(
        f"trained to {length:,}",
        (at, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(3, -2),
        textcoords="offset points",
        ha="left",
        va="top",
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
    metric: str = table.about["shown"][subset]
    return NAMES.get(metric, metric.replace("_", " "))


def _legend(figure: Any, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, title="encoding")
