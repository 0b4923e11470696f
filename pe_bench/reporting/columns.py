"""Columns of scores in a table: their selection, headings and number format."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pe_bench.reporting import published
from pe_bench.reporting.degradation import DEGRADATION, TITLE
from pe_bench.reporting.markdown import ABSENT
from pe_bench.reporting.paired import Comparison
from pe_bench.reporting.tables import Table, select
from pe_bench.results.intervals import wilson
from pe_bench.results.views import Column


@dataclass(frozen=True)
class NumberColumn:
    """A column of scores.

    Attributes:
        heading: subset, metric, unit and an arrow that points to better values.
        name: the part of the task, such as a subset.
        metric: name of the metric.
        numbers: one row for each encoding that has a number.
        baselines: the mean of each baseline that has a number.
        percent: whether the numbers are percentages.
        signed: whether the numbers are differences, written with their sign.
    """

    heading: str
    name: str
    metric: str
    numbers: pd.DataFrame
    baselines: dict[str, float]
    percent: bool
    signed: bool = False

    @cached_property
    def of(self) -> dict[str, dict[Any, Any]]:
        """The number of each encoding."""
        rows = self.numbers.drop_duplicates("encoding").to_dict("records")
        return {row["encoding"]: row for row in rows}

    @cached_property
    def digits(self) -> int:
        """Decimals of all numbers of the column."""
        return 2 if self.percent or self.largest >= 10 else 3

    def show(self, mean: float) -> str:
        """Format the mean of an encoding or a baseline."""
        if self.signed:
            return f"{round(mean, self.digits) + 0.0:+.{self.digits}f}"  # no -0.00
        return f"{mean:.{self.digits}f}"

    @cached_property
    def largest(self) -> float:
        """The largest finite absolute value of a mean; nan without one."""
        means = self.numbers["mean"].abs()
        return float(means[np.isfinite(means)].max())

    @cached_property
    def is_of_one_seed(self) -> bool:
        """Whether every encoding has a single seed."""
        return bool(self.numbers["seeds"].max() == 1)


def list_columns(table: Table) -> list[NumberColumn]:
    """Return the columns that have numbers, the headline first."""
    subset, metric = table.headline.subset, table.headline.metric
    numbers = _without_lengths(table.numbers(subset, metric))
    baselines = _without_lengths(select(table.baselines, subset, metric))
    columns: list[NumberColumn] = []
    for name, status in ((subset, "ranked"), ("partial", "partial")):
        own = numbers[numbers["status"] == status]
        if status == "ranked" or not own.empty:
            others = baselines[baselines["status"] == status]
            columns.append(_column(table, name, metric, own, others, first=not columns))
    for view in _views(table):
        numbers = _complete(table.numbers(view.subset, view.metric))
        baselines = _complete(select(table.baselines, view.subset, view.metric))
        name = view.title or view.subset
        lengths = sorted(numbers["length"].dropna().unique())
        parts = {name: _without_lengths(numbers)}
        if len(lengths) > 1 and numbers["length"].notna().all():
            parts = {f"{name} at {n:,.0f}": numbers[numbers["length"] == n] for n in lengths}
        for name, part in parts.items():
            same = baselines[baselines["length"].isin(part["length"])]
            columns.append(_column(table, name, view.metric, part, same))
        if view.at_trained_length:
            degradation = table.numbers(view.subset, DEGRADATION)
            if not degradation.empty:
                columns.append(_column(table, TITLE, DEGRADATION, degradation, table.baselines[:0]))
    return columns


def _views(table: Table) -> list[Column]:
    """Return the views of the columns after the headline.

    Published metrics also have a column, even if the task does not declare one: for example exact
    match next to token accuracy. Numbers are published for a whole subset or out of distribution.
    """
    views = table.views(Column)
    shown = {(view.subset, view.metric) for view in views}
    for name, metric in published.measures(table.task_name):
        for subset in (name, f"{name}-out-of-distribution"):
            means = _without_lengths(table.numbers(subset, metric))
            is_mean = not means.empty and means["length"].isna().all()
            if is_mean and (subset, metric) not in shown:
                views.append(Column(subset, metric))
    headline = table.headline
    return [v for v in views if (v.subset, v.metric) != (headline.subset, headline.metric)]


def show_number(column: NumberColumn, encoding: str, seeds: int) -> str:
    """Format a mean over seeds with its standard deviation, or one seed with its interval."""
    number = column.of.get(encoding)
    if number is None:
        return ABSENT
    digits = column.digits
    text = column.show(number["mean"])
    if number["seeds"] > 1:
        text += f" ± {number['sd']:.{digits}f}"
    elif column.is_of_one_seed and pd.notna(number["ci_low"]):
        text += f" ({number['ci_low']:.{digits}f} to {number['ci_high']:.{digits}f})"
    return text if number["seeds"] == seeds else f"{text} ({number['seeds']} of {seeds})"


def show_learned_mean(column: NumberColumn, encoding: str) -> str:
    """Return the mean over the seeds that learned."""
    number = column.of.get(encoding)
    if number is None or not number["learned_seeds"]:
        return ABSENT
    text = f"{number['learned_mean']:.{column.digits}f}"
    return (
        f"{text} ± {number['learned_sd']:.{column.digits}f}"
        if number["learned_seeds"] > 1
        else text
    )


def show_learned(table: Table, headline: NumberColumn, encoding: str) -> str:
    """Format the number of seeds that learned, with the Wilson interval of their fraction.

    A seed with a partial headline does not count, because a part of the task says nothing.
    """
    if not table.is_gated or encoding not in table.ranking.names:
        return ABSENT
    number = headline.of[encoding]
    low, high = wilson(number["learned_seeds"] / number["seeds"], number["seeds"])
    count = count_learned(table, headline, encoding)
    return f"{count} ({100 * low:.0f} to {100 * high:.0f} %)"


def count_learned(table: Table, headline: NumberColumn, encoding: str) -> str:
    """Format the number of seeds that learned, see `show_learned`."""
    if not table.is_gated or encoding not in table.ranking.names:
        return ABSENT
    number = headline.of[encoding]
    return f"{number['learned_seeds']} of {number['seeds']}"


def show_rank(comparison: Comparison, encoding: str) -> str:
    """Return the possible ranks and the compact letter display of an encoding."""
    if encoding not in comparison.ranks:
        return ABSENT
    best, worst = comparison.ranks[encoding]
    ranks = str(best) if best == worst else f"{best} to {worst}"
    letters = comparison.letters[encoding]
    return f"{ranks} ({letters})" if letters else ranks


def shorten(subset: str) -> str:
    """Abbreviate "in-distribution" and "out-of-distribution" to ID and OOD for a heading.

    Only parts of the name are replaced, as in "index-in-distribution".
    """
    return subset.replace("-out-of-distribution", " OOD").replace("-in-distribution", " ID")


def _column(
    table: Table,
    name: str,
    metric: str,
    numbers: pd.DataFrame,
    baselines: pd.DataFrame,
    *,
    first: bool = False,
) -> NumberColumn:
    """Return a column. Its heading names the metric, unless the first column has the same."""
    about = table.metric(metric)
    heading = f"{shorten(name)} ({about.full_label if first else about.label})"
    if name == about.title:
        heading = f"{name} ({about.unit} {about.arrow})"
    if metric == table.headline.metric and not first:
        heading = f"{shorten(name)} {about.arrow}".strip()
    alone = baselines.drop_duplicates("encoding")
    means = dict(zip(alone["encoding"], alone["mean"].astype(float), strict=True))
    signed = metric == DEGRADATION
    return NumberColumn(heading, name, metric, numbers, means, about.is_percent, signed)


def _complete(numbers: pd.DataFrame) -> pd.DataFrame:
    return numbers[numbers["status"] != "partial"]


def _without_lengths(numbers: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over lengths if there is one, otherwise all numbers."""
    means = numbers[numbers["length"].isna()]
    return numbers if means.empty else means
