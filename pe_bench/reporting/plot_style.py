"""What curves and scores share: which to draw, looks, error bars, references, the legend."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pe_bench.reporting.styles import Style
from pe_bench.reporting.tables import Table, select
from pe_bench.results.views import Column, Curve

BARS = {"elinewidth": 1, "capsize": 2}  # looks of error bars
PERCENT_RANGE = (-3.0, 103.0)  # of an axis: a marker at 0 or 100 is whole
LEAST_RANGE = 40.0  # of an axis of percentages
LEGEND_ROWS = 20
INCHES_PER_CHARACTER = 0.08  # of a legend


def list_curves(table: Table) -> list[Curve]:
    """Return the curves to draw; of metrics that agree in all numbers of a subset only the first.

    Where an item has one answer, the share of its answers and that of exact matches are equal.
    """
    first: dict[tuple[str, str, str], str] = {}
    found = []
    for view in table.views(Curve):
        scores = table.numbers(view.subset, view.metric).sort_values(["encoding", "length"])
        numbers = scores[["encoding", "length", "mean", "sd"]].to_csv(index=False)
        key = (view.subset, table.metric(view.metric).unit, numbers)
        if first.setdefault(key, view.metric) == view.metric:
            found.append(view)
    return found


def best_reference(table: Table, view: Curve | Column) -> dict[str, pd.DataFrame]:
    """Return the best reference by its name, with its scores by ascending length."""
    if table.references is None:
        return {}
    scores = select(table.references, view.subset, view.metric).sort_values("length")
    if isinstance(view, Curve):
        scores = scores[scores["length"].notna()]
    means = scores.groupby("encoding", sort=False)["mean"].mean()
    if means.empty:
        return {}
    best = means.idxmax() if table.metric(view.metric).higher_is_better else means.idxmin()
    return {str(best): scores[scores["encoding"] == best]}


def is_percent(table: Table, view: Curve | Column) -> bool:
    """Return whether a view shows percentages."""
    return table.metric(view.metric).unit == "%"


def error_bars(table: Table, numbers: pd.DataFrame, *, percent: bool) -> pd.DataFrame:
    """Return the lengths of error bars down and up (2, N), within 0 and 100 for percentages.

    They are standard deviations over seeds, or, where no encoding has two, 95 % intervals over
    items, quartiles over repetitions where times are measured: one meaning in a picture.
    """
    if table.has_seeds:
        down = numbers["sd"]
        up = numbers["sd"]
        if percent:
            down = down.clip(upper=numbers["mean"].clip(lower=0))
            up = up.clip(upper=(100 - numbers["mean"]).clip(lower=0))
    else:
        down = numbers["mean"] - numbers["ci_low"]
        up = numbers["ci_high"] - numbers["mean"]
    return pd.DataFrame([down, up])


def draw_options(table: Table, encoding: str, style: Style) -> dict[str, Any]:
    """Return the options of a curve: hollow and dashed if what was trained was not learned."""
    learned = table.learned(encoding) > 0
    return {
        "color": style.colour,
        "marker": style.marker,
        "markersize": 5,
        "markerfacecolor": style.colour if learned else "white",
        "linestyle": "-" if learned else (0, (4, 2)),
        "linewidth": 1.5,
    }


def trained_lengths(table: Table) -> dict[float, str]:
    """Return the lengths of training, each with the label of its line."""
    about = table.about
    if about.measures_time:  # nothing is trained
        return {}
    if about.adaptation is not None:
        return _adapted_lengths(table)
    if about.fine_tune_length is not None and about.train_length is not None:
        return {
            about.train_length: f"pre-trained to {about.train_length:,}",
            about.fine_tune_length: f"fine-tuned to {about.fine_tune_length:,}",
        }
    if about.max_train_axis is not None:
        return {about.max_train_axis: f"trained to {about.max_train_axis:,g}"}
    return {}


def _adapted_lengths(table: Table) -> dict[float, str]:
    """Return the length of the model that all go on from, and those in which some are trained."""
    about = table.about
    first = about.max_train_axis or about.train_length or 0
    lengths = {float(first): f"trained to {first:,g}"}
    for record in table.records:
        config = (record.adaptation or {}).get("config", {})
        if config.get("steps") and config.get("length"):
            lengths.setdefault(float(config["length"]), f"some to {config['length']:,}")
    return lengths


def short_labels(table: Table, encodings: Iterable[str]) -> list[str]:
    """Return the labels of encodings, without what the picture's heading says of all of them."""
    origin = (table.about.adaptation or {}).get("from")
    prefix = f"{origin} -> " if origin else ""
    return [table.describe(encoding).removeprefix(prefix) for encoding in encodings]


def legend_width(table: Table) -> float:
    """Return the room of a legend, inches."""
    labels = short_labels(table, table.encodings)
    columns = math.ceil(len(labels) / LEGEND_ROWS)
    title = INCHES_PER_CHARACTER * len(f"encoding, {describe_bars(table)}")
    return max(title, columns * (0.6 + INCHES_PER_CHARACTER * max(map(len, labels))))


def describe_bars(table: Table) -> str:
    """Return what error bars are."""
    if table.has_seeds:
        return "± sd over seeds"
    if table.about.measures_time:
        return "± quartiles"
    return "± 95 % interval over items"


def add_legend(
    figure: Figure, table: Table, handles: Mapping[str, Any], references: Mapping[str, Line2D]
) -> None:
    """Name the encodings on the right of all panels, and the references that are dotted there."""
    lines = list(handles.values())
    labels = short_labels(table, handles)
    if references:
        lines.append(next(iter(references.values())))
        labels.append("best reference:\n" + ",\n".join(references))
    figure.legend(
        lines,
        labels,
        loc="outside right upper",
        ncols=math.ceil(len(handles) / LEGEND_ROWS),
        frameon=False,
        title=f"encoding, {describe_bars(table)}",
        alignment="left",
    )
