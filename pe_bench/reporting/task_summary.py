"""The summary over tasks: mean normalised scores, mean ranks, rank correlations of tasks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pe_bench.reporting.families import family_of_task
from pe_bench.reporting.markdown import ABSENT, escape, markdown_table
from pe_bench.reporting.paired import NO_LETTERS, scores_of
from pe_bench.reporting.tables import Table
from pe_bench.results.labels import shorten_labels
from pe_bench.stats import comparison, ranking
from pe_bench.stats.ranking import FEWEST_FAMILIES, Mean, Standing, TaskScores

FEWEST_ENCODINGS = 2
MOST_CANDIDATES = 1000  # limits the time with very many tasks
STANDING_HEADER = ["mean score ↑", "95 % interval", "mean rank ↓", "95 % interval"]


@dataclass(frozen=True)
class TaskSummary:
    """A set of tasks and the encodings that all of them rank.

    Attributes:
        tables: one for each task.
        encodings: encodings that all tables rank, in alphabetical order.
        left_out: sentences about results that are in no mean.
    """

    tables: tuple[Table, ...]
    encodings: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The settings that all tables share."""
        return " · ".join(["All tasks", *shared_settings(self.tables[0])])

    @cached_property
    def tasks(self) -> list[TaskScores]:
        """The numbers of each task."""
        return [task_scores(table, self.encodings) for table in self.tables]

    @property
    def is_enough(self) -> bool:
        """Whether there are enough families of tasks for means over families."""
        return count_families(self.tables) >= FEWEST_FAMILIES

    @cached_property
    def standings(self) -> list[Standing]:
        """The standing of each encoding, the best first."""
        return ranking.find_standings(self.tasks)

    @cached_property
    def letters(self) -> dict[str, str]:
        """Compact letter display: encodings that share a letter do not differ significantly."""
        scores = ranking.average_over(self.tasks)
        pairs = comparison.compare_all(scores)
        return comparison.letters([one.encoding for one in self.standings], pairs)


def has_model_scores(table: Table) -> bool:
    """Return whether a table has scores of trained models, not times or untrained models."""
    steps = (table.about.settings.get("train") or {}).get("steps")
    return (steps != 0 or table.origin != "") and not table.about.measures_time


def shared_settings(table: Table) -> tuple[str, ...]:
    """Return the settings that all tables of a summary share, as its title shows them."""
    about = table.about
    tuned = "tuned" if about.tuning else ""
    origin = f"from {table.origin}" if table.origin else ""
    return tuple(filter(None, [about.preset, about.protocol, tuned, origin]))


def find_summaries(tables: Sequence[Table]) -> list[TaskSummary]:
    """Return a summary for all tables that share settings, if it has several tasks and encodings.

    Tables without a fixed scale are left out, see `on_fixed_scale`.
    If a task has several tables, the one with the most encodings counts, and among these the one
    with the largest model. The encodings and tasks are a complete grid, chosen to have as many
    cells as possible.
    """
    groups: dict[tuple[str, ...], list[Table]] = {}
    for table in filter(has_model_scores, tables):
        groups.setdefault(shared_settings(table), []).append(table)
    found = []
    for group in groups.values():
        if not any(map(on_fixed_scale, group)):
            continue
        summary = _make_summary(group)
        if len(summary.tables) > 1 and len(summary.encodings) >= FEWEST_ENCODINGS:
            found.append(summary)
    return found


def summary_of(tables: Sequence[Table]) -> TaskSummary:
    """Return the summary of all given tables, one for each task, with encodings that all rank."""
    assert len({table.about.task for table in tables}) == len(tables) > 0
    ranked = [frozenset(table.ranking.means) for table in tables]
    common = frozenset.intersection(*ranked)
    ordered = sorted(tables, key=lambda table: table.about.task)
    return TaskSummary(tuple(ordered), tuple(sorted(common)))


def task_scores(table: Table, encodings: Sequence[str]) -> TaskScores:
    """Return the numbers of a task and the limits for normalising them."""
    floor, ceiling = find_limits(table)
    scores = scores_of(table, encodings)
    family = family_of_task(table.task_name)
    return TaskScores(
        table.about.task, scores, table.ranking.higher_is_better, floor, ceiling, family
    )


def find_limits(table: Table) -> tuple[float, float]:
    """Return the scores that become 0 and 1 when normalised, see `describe_limits`.

    They depend on the encodings of the table if it is not `on_fixed_scale`.
    """
    means = table.ranking.means.values()
    best, worst = max(means, default=math.nan), min(means, default=math.nan)
    if not table.ranking.higher_is_better:
        best, worst = worst, best
    ceiling = find_end(table)
    if ceiling is None:
        ceiling = best
    floor = table.ranking.best_baseline
    sign = 1 if table.ranking.higher_is_better else -1
    if floor is None or not sign * floor < sign * ceiling:
        floor = worst
    if ceiling == floor:  # all encodings have the same score
        floor = ceiling - sign
    return floor, ceiling


def find_end(table: Table) -> float | None:
    """Return the best possible value of the headline: 100 %, or 0 if lower is better."""
    if not table.ranking.higher_is_better:
        return 0.0
    return 100.0 if table.ranking.metric.is_percent else None


def describe_limits(tables: Sequence[Table], scale: str = "Normalised") -> str:
    """Explain in one line normalised scores, or another scale from 0 to 1."""
    line = (
        f"{scale}: 0 is the best baseline of a task (guessing, a constant answer, tables of "
        "n-grams), 1 is the best possible score (100 %, or 0 if lower is better)"
    )
    open_end = [table.about.task for table in tables if find_end(table) is None]
    without = [table.about.task for table in tables if not _has_floor(table)]
    if open_end:
        line += f"; for {_list(open_end, tables)}, which have no best score, 1 is the best encoding"
    if without:
        line += f"; for {_list(without, tables)}, without a lower baseline, 0 is the worst encoding"
    return f"{line}."


def on_fixed_scale(table: Table) -> bool:
    """Return whether the limits of normalisation are a baseline and the best possible score.

    Otherwise, another encoding could change a mean over tasks, so the table is in no mean.
    """
    return _has_floor(table) and find_end(table) is not None


def describe_unscaled(tables: Sequence[Table]) -> list[str]:
    """Return a sentence for each table without a fixed scale, which is in no mean over tasks."""
    lines = []
    for table in tables:
        if not on_fixed_scale(table):
            reason = "it has no baseline"
            if find_end(table) is None:
                reason = "it has no best possible score"
            elif table.ranking.best_baseline is not None:
                reason = "its best baseline has the best possible score"
            lines.append(f"{table.about.task} is in no mean over tasks: {reason}.")
    return lines


def describe_summary(summary: TaskSummary) -> str:
    """Return a section of leaderboard.md."""
    heading = f"## {escape(summary.title)}"
    notes = "\n".join(map(escape, describe_notes(summary)))
    if not summary.is_enough:
        return f"{heading}\n\n{notes}"
    header = ["encoding", *STANDING_HEADER, "letters"]
    ranks = {table.about.task: table.ranking.names for table in summary.tables}
    header += [f"rank in {task}" for task in ranks]
    rows = []
    for one in summary.standings:
        row = standing_cells(one, summary.letters[one.encoding])
        rows.append([*row, *(_rank(order, one.encoding, summary) for order in ranks.values())])
    table = markdown_table(header, rows, "l" + "r" * len(header[1:]))
    correlations = markdown_table(
        ["Spearman", *ranks], correlation_rows(summary), "l" + "r" * len(ranks)
    )
    return "\n\n".join([heading, notes, table, describe_correlations(summary), correlations])


def standing_cells(one: Standing, letters: str) -> list[str]:
    """Return encoding, mean score and mean rank with their intervals, and letters."""
    return [
        one.encoding,
        f"{one.score.value:.2f}",
        show_interval(one.score, 2),
        f"{one.rank.value:.1f}",
        show_interval(one.rank, 1),
        letters or ABSENT,
    ]


def show_interval(mean: Mean, digits: int) -> str:
    """Return an interval over families, such as "0.63 to 0.97"."""
    return f"{mean.low:.{digits}f} to {mean.high:.{digits}f}"


def correlation_rows(summary: TaskSummary) -> list[list[str]]:
    """Return a row for each task: the rank correlations with the other tasks."""
    found = ranking.rank_correlations(summary.tasks)
    names = [table.about.task for table in summary.tables]
    rows = []
    for name, line in zip(names, found, strict=True):
        cells = [ABSENT if math.isnan(value) else f"{value:+.2f}" for value in line]
        rows.append([name, *cells])
    return rows


def describe_correlations(summary: TaskSummary) -> str:
    """Explain the rank correlations between tasks and name the significant ones."""
    count = len(summary.encodings)
    needed = ranking.smallest_correlation(count)
    line = (
        f"Do tasks agree? Rank correlations over {count} encodings: +1 is the same order, "
        "-1 the opposite one"
    )
    if needed > 1:
        return f"{line}; with so few encodings, none is significant."
    values = "only +1 and -1" if needed == 1 else f"absolute values from {needed:.2f} on"
    pairs = math.comb(len(summary.tables), 2)
    corrected = f"; the {pairs} values are not corrected for their number" if pairs > 1 else ""
    return f"{line}; alone, {values} are significant{corrected}."


def count_families(tables: Sequence[Table]) -> int:
    """Return the number of families of the tasks of tables."""
    return len({family_of_task(table.task_name) for table in tables})


def too_few(tables: Sequence[Table]) -> str:
    """Return a sentence: there are too few families of tasks for means."""
    count = count_families(tables)
    families = "1 family" if count == 1 else f"{count} families"
    return (
        f"Tasks of {families} are too few for means over tasks, which need {FEWEST_FAMILIES} "
        "families (docs/tasks.md)."
    )


def describe_notes(summary: TaskSummary) -> list[str]:
    """Return the notes on the means, a line each."""
    if not summary.is_enough:
        return [too_few(summary.tables), *summary.left_out]
    families = count_families(summary.tables)
    letters = (
        "Encodings that share a letter do not differ significantly in their mean normalised scores "
        "on these tasks, over seeds and items. Two encodings may differ although their intervals, "
        "which are for other tasks, overlap."
    )
    return [
        f"Means over {families} families of tasks ({len(summary.tables)} tasks); a family counts "
        "as the mean of its tasks. Intervals are over families: they apply to other families of "
        "this kind, and are wide if families are few or disagree.",
        letters if any(summary.letters.values()) else NO_LETTERS,
        f"{describe_limits(summary.tables)} The score of a seed below 0 counts as 0.",
        *summary.left_out,
    ]


def _make_summary(group: Sequence[Table]) -> TaskSummary:
    """Return the summary with the most tasks and encodings that all of these tasks rank."""

    def first(table: Table) -> tuple[int, str, int]:
        """Return the sort key: the most encodings, then the title, then the largest model."""
        return -len(table.ranking.means), table.title, -table.parameters

    tables: dict[str, Table] = {}
    lines = describe_unscaled(group)
    for table in sorted(filter(on_fixed_scale, group), key=first):
        if table.about.task in tables:
            counts = tables[table.about.task]
            is_larger = counts.parameters > table.parameters
            as_many = len(counts.ranking.means) == len(table.ranking.means)
            what = "largest model" if is_larger and as_many else "most encodings"
            lines.append(
                f"{table.about.task}: the table with the {what} counts, not the one with "
                f"settings {table.about.settings_digest}."
            )
        else:
            tables[table.about.task] = table
    ranked = {task: frozenset(table.ranking.means) for task, table in tables.items()}
    common = _largest_in_common(list(ranked.values()))
    kept = [task for task in ranked if common <= ranked[task]]
    for task in ranked:
        if task not in kept:
            lines.append(f"{task} is left out: too few encodings were run on it.")
    others = sorted({name for task in kept for name in tables[task].ranking.names} - common)
    if others:
        shown = ", ".join(shorten_labels(others).values())
        lines.append(f"Not ranked in all of these tasks: {shown}.")
    return TaskSummary(
        tuple(tables[task] for task in sorted(kept)), tuple(sorted(common)), tuple(lines)
    )


def _largest_in_common(ranked: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return the set of encodings that has, with the tasks that rank all of it, the most cells."""

    def cells(encodings: frozenset[str]) -> tuple[int, int, list[str]]:
        """Return the sort key: the number of cells, then of tasks, then the names."""
        tasks = sum(encodings <= one for one in ranked)
        return tasks * len(encodings), tasks, sorted(encodings)

    found: set[frozenset[str]] = set()
    for encodings in ranked:
        shared = {encodings, *(encodings & others for others in found)}
        found |= {one for one in shared if len(one) >= FEWEST_ENCODINGS}
        found = set(sorted(found, key=cells)[-MOST_CANDIDATES:])
    return max(found, key=cells, default=ranked[0])


def _list(tasks: Sequence[str], tables: Sequence[Table]) -> str:
    return "all tasks" if len(tasks) == len(tables) else ", ".join(tasks)


def _has_floor(table: Table) -> bool:
    """Return whether an encoding beats the best baseline, which is then normalised to 0."""
    return table.ranking.best_baseline == find_limits(table)[0]


def _rank(order: list[str], encoding: str, summary: TaskSummary) -> str:
    """Return the rank among the encodings of the summary."""
    among = [name for name in order if name in summary.encodings]
    return str(1 + among.index(encoding))
