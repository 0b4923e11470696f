"""Columns of a leaderboard: their selection, headings and number format."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pe_bench.reporting import published
from pe_bench.reporting.degradation import DAMAGE, TITLE
from pe_bench.reporting.markdown import ABSENT
from pe_bench.reporting.paired import Comparison
from pe_bench.reporting.tables import Table
from pe_bench.results.intervals import wilson
from pe_bench.results.views import Column


@dataclass(frozen=True)
class NumberColumn:
    """A column of the leaderboard.

    Attributes:
        heading: subset, metric, unit and an arrow that points to better values.
        name: the part of the task, such as a subset.
        metric: name of the metric.
        numbers: one row for each encoding that has a number.
        percent: whether the numbers are percentages.
        signed: whether the numbers are differences, written with their sign.
    """

    heading: str
    name: str
    metric: str
    numbers: pd.DataFrame
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
    headline = table.headline
    numbers = _without_lengths(table.numbers(headline.subset, headline.metric))
    ranked = numbers[numbers["status"] == "ranked"]
    columns = [_column(table, headline.subset, headline.metric, ranked, first=True)]
    partial = numbers[numbers["status"] == "partial"]
    if not partial.empty:
        columns.append(_column(table, "partial", headline.metric, partial))
    for view in _views(table):
        numbers = table.numbers(view.subset, view.metric)
        numbers = numbers[numbers["status"] != "partial"]
        name = view.title or view.subset
        lengths = sorted(numbers["length"].dropna().unique())
        if len(lengths) > 1 and numbers["length"].notna().all():
            for length in lengths:
                part = numbers[numbers["length"] == length]
                columns.append(_column(table, f"{name} at {length:,.0f}", view.metric, part))
        else:
            columns.append(_column(table, name, view.metric, _without_lengths(numbers)))
        if view.at_trained_length:
            damage = table.numbers(view.subset, DAMAGE)
            if not damage.empty:
                columns.append(_column(table, TITLE, DAMAGE, damage))
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
    text = f"{number['mean']:.{digits}f}"
    if column.signed:
        text = f"{round(number['mean'], digits) + 0.0:+.{digits}f}"  # no -0.00
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
    learned, seeds = number["learned_seeds"], number["seeds"]
    low, high = wilson(learned / seeds, seeds)
    return f"{learned} of {seeds} ({100 * low:.0f} to {100 * high:.0f} %)"


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
    table: Table, name: str, metric: str, numbers: pd.DataFrame, *, first: bool = False
) -> NumberColumn:
    """Return a column. Its heading names the metric, unless the first column has the same."""
    about = table.metric(metric)
    heading = f"{shorten(name)} ({about.full_label if first else about.label})"
    if name == about.title:
        heading = f"{name} ({about.unit} {about.arrow})"
    if metric == table.headline.metric and not first:
        heading = f"{shorten(name)} {about.arrow}".strip()
    return NumberColumn(heading, name, metric, numbers, about.is_percent, signed=metric == DAMAGE)


def _without_lengths(numbers: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over lengths if there is one, otherwise all numbers."""
    means = numbers[numbers["length"].isna()]
    return numbers if means.empty else means
