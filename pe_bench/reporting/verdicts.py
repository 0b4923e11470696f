"""The comparison of two encodings on each task and over all tasks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pe_bench.errors import InputError, suggest
from pe_bench.reporting.same_data import describe_other_data
from pe_bench.reporting.selection import tables_of_tasks
from pe_bench.reporting.tables import Table
from pe_bench.reporting.task_summary import (
    describe_unscaled,
    find_limits,
    has_model_scores,
    on_fixed_scale,
    task_scores,
)
from pe_bench.stats.comparison import Difference, SeedScores, compare, compare_asked
from pe_bench.stats.ranking import TaskScores, average_over


@dataclass(frozen=True)
class Verdict:
    """The comparison of two encodings in one table.

    Attributes:
        table: the table.
        difference: difference of their headlines, first minus second.
        first, second: mean headlines over the seeds that both encodings have.
        comparisons: number of comparisons made together, for the correction.
    """

    table: Table
    difference: Difference
    first: float
    second: float
    comparisons: int

    @property
    def first_is_better(self) -> bool:
        """Whether the first is better, significantly or not."""
        return (self.difference.value > 0) == self.table.ranking.higher_is_better


@dataclass(frozen=True)
class Verdicts:
    """The comparison of two encodings in all tables.

    Attributes:
        first, second: the encodings.
        tasks: a verdict for each table that ranks both.
        mean: the mean difference of their normalised scores, where higher is better; None if there
            is none, see `mean_of`.
        left_out: sentences about tables in which they cannot be compared, or that are not in the
            mean.
    """

    first: str
    second: str
    tasks: list[Verdict]
    mean: Difference | None
    left_out: tuple[str, ...] = ()


def tables_to_compare(tables: Sequence[Table], tasks: Sequence[str] | None = None) -> list[Table]:
    """Return the tables of quality of some tasks, or of all tasks.

    Raises:
        InputError: there are no results, or no results of a given task.
    """
    found = [table for table in tables if has_model_scores(table)]
    if not found:
        raise InputError("there are no results of trained encodings: use pe-bench run first")
    return tables_of_tasks(found, tasks) if tasks else found


def compare_pair(tables: Sequence[Table], first: str, second: str) -> Verdicts:
    """Return the comparison of two encodings in all tables together.

    Args:
        tables: tables of quality, see `tables_to_compare`.
        first, second: labels of the encodings.

    Raises:
        InputError: they cannot be compared.
    """
    _check_encodings(tables, first, second)
    shared, tasks, left_out = find_shared(tables, first, second)
    if not shared:
        if any({first, second} <= {*table.encodings} for table in tables):
            raise InputError(f"{first} and {second} cannot be compared: {' '.join(left_out)}")
        reasons = f" ({' '.join(left_out)})" if left_out else ""
        raise InputError(
            f"{first} and {second} were never run on the same task with the same settings"
            f"{reasons}: run both with one command"
        )
    found = compare_asked([(task.scores, first, second) for task in tasks])
    verdicts = []
    for table, task, difference in zip(shared, tasks, found, strict=True):
        verdicts.append(Verdict(table, difference, *both_means(task.scores), len(tasks)))
    if len(shared) > 1:
        left_out += describe_unscaled(shared)
    mean = mean_of(shared, tasks)
    over_all = None
    if mean is not None:
        (over_all,) = compare(mean, [(first, second)])  # one question, not corrected with its parts
    return Verdicts(first, second, verdicts, over_all, tuple(left_out))


def find_shared(
    tables: Sequence[Table], first: str, second: str
) -> tuple[list[Table], list[TaskScores], list[str]]:
    """Return the tables in which two encodings have a seed in common, and their numbers there.

    Returns:
        The tables, the numbers of the two encodings in each, a sentence for each other table that
        has one of them, and warnings about runs on other data.
    """
    pair = [first, second]
    shared = []
    tasks = []
    left_out = []
    for table in tables:
        missing = [name for name in pair if name not in table.ranking.names]
        if missing:
            if len(missing) == 1 or {*pair} <= {*table.encodings}:
                reasons = [f"no score of {_describe_missing(table, name)}" for name in missing]
                left_out.append(f"{table.heading}: {' '.join(reasons)}")
            continue
        task = task_scores(table, pair)
        if math.isfinite(both_means(task.scores)[0]):
            shared.append(table)
            tasks.append(task)
            runs = [record for record in table.records if record.encoding in pair]
            left_out += [f"{table.heading}: {line}" for line in describe_other_data(runs)]
            continue
        seeds = []
        for name in pair:
            own = {record.seed for record in table.records if record.encoding == name}
            seeds.append(", ".join(map(str, sorted(own))))
        left_out.append(
            f"{table.heading}: no seed in common ({first}: {seeds[0]}; {second}: {seeds[1]})."
        )
    return shared, tasks, left_out


def _describe_missing(table: Table, name: str) -> str:
    if name in table.encodings:
        return f"{name}, because a part of its measurements is missing or not a finite number."
    return f"{name}."


def mean_of(tables: Sequence[Table], tasks: Sequence[TaskScores]) -> SeedScores | None:
    """Return the mean normalised scores of two encodings over the tables with a fixed scale.

    Args:
        tables: the tables.
        tasks: the numbers of each table.

    Returns:
        The means; None if there are fewer than two such tables, a task has several tables, or the
        encodings have no seed in common in all of them.
    """
    kept = [task for table, task in zip(tables, tasks, strict=True) if on_fixed_scale(table)]
    names = {task.task for task in kept}
    if not 1 < len(names) == len(kept):
        return None
    mean = average_over(kept)
    return mean if len(mean.seeds) and math.isfinite(both_means(mean)[0]) else None


def scaled(verdict: Verdict) -> tuple[float, float, float]:
    """Return a difference and its interval as fractions of the distance from floor to ceiling.

    Positive values mean that the first encoding is better.
    """
    floor, ceiling = find_limits(verdict.table)
    difference = verdict.difference
    numbers = (difference.value, difference.low, difference.high)
    value, one, other = (number / (ceiling - floor) for number in numbers)
    return value, min(one, other), max(one, other)


def _check_encodings(tables: Sequence[Table], first: str, second: str) -> None:
    """Raise InputError for an encoding that is named twice or has no results."""
    if first == second:
        raise InputError(f"{first} is given twice: name two encodings")
    known = sorted({name for table in tables for name in table.encodings})
    for name in (first, second):
        if name not in known:
            tasks = ", ".join(dict.fromkeys(table.about.task for table in tables))
            raise InputError(
                f"there are no results of '{name}' on {tasks}{suggest(name, known)}: there are "
                f"{', '.join(known)}"
            )


def both_means(scores: SeedScores) -> tuple[float, float]:
    """Return the means of two encodings over their common seeds; nan without any."""
    pairs = [(a, b) for a, b in scores.values.T if math.isfinite(a) and math.isfinite(b)]
    if not pairs:
        return math.nan, math.nan
    first = sum(a for a, _ in pairs) / len(pairs)
    second = sum(b for _, b in pairs) / len(pairs)
    return first, second
