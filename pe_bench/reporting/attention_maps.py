"""Figures of attention weights: a map for every layer and head."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from pe_bench.errors import InputError
from pe_bench.reporting import panels
from pe_bench.reporting.panels import styled

NAMED = 40
"""Maximum number of tokens whose names are on the axes."""

PANELS = 128
"""Maximum number of maps in one figure."""

SIZE = 2.2  # smallest width of a map, inches
SINGLE = 4.2  # the same for a figure with one map
TOKEN = 0.11  # width of a token with a name, inches
LEAST = 1e-3  # weight below which all have the darkest colour
TICKS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1)


@dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of one row of tokens.

    Attributes:
        weights: attention weights (H, T, T) by layer, queries before keys.
        names: names of the tokens, (T,).
        train_length: number of tokens of the longest training rows.
        titles: lines above the figure.
    """

    weights: dict[int, npt.NDArray[np.floating]]
    names: Sequence[str]
    train_length: int
    titles: Sequence[str]


@styled
def draw_attention(maps: AttentionMaps, heads: Sequence[int]) -> Figure:
    """Return a figure with a row of maps for each layer and a column for each head.

    Queries are rows from the top, keys are columns. Later keys stay white. All maps have the same
    logarithmic colour scale, from LEAST to 1. Dashed lines separate the positions of training rows
    from later ones, for queries and for keys.

    Args:
        maps: the weights.
        heads: the heads to draw.

    Raises:
        InputError: there would be more than PANELS maps.
    """
    count = len(maps.weights) * len(heads)
    if count > PANELS:
        raise InputError(
            f"{len(maps.weights)} layers of {len(heads)} heads are {count} maps, more than "
            f"{PANELS}: choose some with --layers or --heads"
        )
    length = len(maps.names)
    named = length <= NAMED
    side = SIZE if count > 1 else SINGLE
    if named:
        side = max(side, TOKEN * length)
    figure, axes = panels.make_panels(
        count,
        per_row=len(heads),
        size=(side, side + 0.3),
        margin=(1.4, 0.8),
        share_x=True,
        share_y=True,
    )
    later = np.triu(np.ones((length, length), dtype=np.bool_), 1)  # (T, T)
    norm = LogNorm(LEAST, 1, clip=True)
    pairs = [(layer, head) for layer in maps.weights for head in heads]
    for axis, (layer, head) in zip(axes, pairs, strict=True):
        shown = np.ma.masked_where(later, maps.weights[layer][head])  # (T, T)
        image = axis.imshow(shown, cmap="viridis", norm=norm, aspect="equal")
        panels.set_panel_title(axis, f"layer {layer}, head {head}", width=side)
        axis.tick_params(labelsize=6 if named else 8)
        if named:
            axis.set_xticks(range(length), maps.names, rotation=90)
            axis.set_yticks(range(length), maps.names)
        _mark_trained(axis, maps.train_length, length)
    figure.supxlabel("key", fontsize=10)
    bar = figure.colorbar(image, ax=axes, label="attention weight", ticks=TICKS, aspect=30)
    bar.ax.minorticks_off()
    bar.ax.set_yticklabels([f"\N{LESS-THAN OR EQUAL TO} {LEAST:g}", *(f"{t:g}" for t in TICKS[1:])])
    title = panels.set_title(figure, *maps.titles)
    panels.label_rows(figure, "query", title)
    return figure


def describe_train_length(train_length: int, length: int) -> str:
    """Return a sentence about the length of training, for the titles of maps of `length` tokens."""
    if train_length >= length:
        return f"trained with up to {train_length:,} tokens, so with all of these positions"
    return f"dashed: trained with up to {train_length:,} tokens"


def _mark_trained(axis: Axes, train_length: int, length: int) -> None:
    """Draw lines before the first query and the first key beyond the training length."""
    if train_length >= length:
        return
    edge = train_length - 0.5
    for colour, width, line in (("white", 1.8, "-"), ("black", 0.9, "--")):
        axis.plot([-0.5, edge], [edge, edge], color=colour, linewidth=width, linestyle=line)
        axis.plot([edge, edge], [edge, length - 0.5], color=colour, linewidth=width, linestyle=line)
    axis.set_xlim(-0.5, length - 0.5)
    axis.set_ylim(length - 0.5, -0.5)
