"""Plain-language summaries of a comparison of two encodings."""

import math
from collections.abc import Sequence

from pe_bench.reporting.paired import show_p
from pe_bench.reporting.tables import Table
from pe_bench.reporting.task_summary import count_families, describe_limits, on_fixed_scale
from pe_bench.reporting.verdicts import Verdict, Verdicts
from pe_bench.stats.comparison import Difference
from pe_bench.stats.significance import FEWEST_SEEDS, LEVEL, seeds_to_show

MOST_SEEDS = 100  # larger estimates are too uncertain to print
SMALLEST = 0.0005  # smaller mean differences are printed as 0.000
AT_FLOOR = "neither is above the best baseline of any task, so there is no mean difference"
SCALE = "0: at or below the best baseline of each task, 1: at the ceiling"


def describe(found: Verdicts) -> list[str]:
    """Return a sentence for each task, and one over all tasks if there are several.

    A last sentence explains the common scale unless it runs from the best baseline to the best
    possible score.
    """
    names = names_of([verdict.table for verdict in found.tasks])
    lines = [describe_verdict(v, name) for v, name in zip(found.tasks, names, strict=True)]
    if len(found.tasks) > 1:
        lines.append(describe_all(found))
    lines += found.left_out
    tables = [verdict.table for verdict in found.tasks]
    return (
        lines
        if all(map(on_fixed_scale, tables))
        else [*lines, describe_limits(tables, "Scale of the figure")]
    )


def describe_verdict(verdict: Verdict, name: str) -> str:
    """Return the comparison of two encodings on one task, in one sentence.

    Args:
        verdict: the verdict.
        name: name of the task in the sentence.
    """
    difference = verdict.difference
    first, second = difference.first, difference.second
    amount, interval = _amount(verdict), _interval(verdict)
    numbers = _numbers(verdict)
    if difference.significant:
        better, worse = (first, second) if verdict.first_is_better else (second, first)
        asked = verdict.comparisons
        corrected = f", corrected for {asked} comparisons" if asked > 1 else ""
        wide = f"95 % interval: {interval}" if interval else "the same in every seed"
        return (
            f"{name}: {better} is better than {worse}, as {first} has {amount} ({numbers}; "
            f"{wide}; {_seeds(difference.seeds)}; {p_text(difference.p_value)}{corrected})."
        )
    start = f"{name}: {first} and {second} do not differ significantly"
    if not _is_tested(verdict):
        start = f"{name}: {first} and {second} are not tested"
    if difference.value == 0 and not difference.low < difference.high:
        return f"{start}: their numbers are the same ({numbers}; {_seeds(difference.seeds)})."
    found = f"{start}: {first} has {amount} ({numbers})"
    if not difference.has_interval and difference.seeds > 1:
        return f"{found}, in every seed, but {_objection(difference, verdict)}."
    if not difference.has_interval:
        return f"{found}, but one seed is one model each; {_needs(verdict)}."
    if difference.seeds < 2:
        return (
            f"{found}, but one seed is one model each, and for these two models alone the 95 % "
            f"interval is {interval}; {_needs(verdict)}."
        )
    fits = f"but with {_seeds(difference.seeds)} anything from {interval} would fit"
    if difference.low > 0 or difference.high < 0:
        fits = f"and its own 95 % interval is {interval}"
        if _is_tested(verdict):
            fits += f" ({p_text(difference.p_alone)}), but {_objection(difference, verdict)}"
    needs = _needs(verdict)
    return f"{found}, {fits}{f'; {needs}' if needs else ''}."


def describe_all(found: Verdicts) -> str:
    """Return the comparison of two encodings over all tasks, in one sentence."""
    first, second = found.first, found.second
    apart = [verdict for verdict in found.tasks if verdict.difference.significant]
    better = sum(verdict.first_is_better for verdict in apart)
    worse = len(apart) - better
    tested = sum(map(_is_tested, found.tasks))
    parts = []
    if better:
        parts.append(f"is better on {better}")
    if worse:
        parts.append(f"is worse on {worse}")
    if tested > len(apart):
        parts.append(f"does not differ significantly on {tested - len(apart)}")
    count = len(found.tasks)
    if tested < count:
        parts.append(f"is not tested on {count - tested}")
    of_all = f"of {count} {_plural('task', count)}"
    if not tested:
        line = f"Together: {first} and {second} are not tested on any {of_all}"
    elif apart or tested < count:
        line = f"Together: against {second}, {first} {in_words(parts)} {of_all}"
    else:
        line = f"Together: {first} does not differ significantly from {second} on any {of_all}"
    mean = found.mean
    if mean is None:
        return f"{line}."
    if _is_at_floor(mean):
        return f"{line}; {AT_FLOOR}."
    amount, counts = _mean_amount(mean), _mean_test(mean, 1)
    basis = _basis(found)
    return f"{line}; in the mean score over {basis} ({SCALE}), it is {amount}, {counts}."


def describe_mean(mean: Difference, comparisons: int) -> str:
    """Return the comparison of the mean normalised scores of two encodings, in one sentence.

    Args:
        mean: the difference.
        comparisons: number of comparisons that were asked together.
    """
    if _is_at_floor(mean):
        return f"Mean score: {mean.first} and {mean.second}: {AT_FLOOR}."
    amount, counts = _mean_amount(mean), _mean_test(mean, comparisons)
    return f"Mean score ({SCALE}): {mean.first} is {amount} than {mean.second}, {counts}."


def _is_at_floor(mean: Difference) -> bool:
    """Return whether both mean scores are 0, so that their difference says nothing."""
    return mean.value == 0 and mean.low == mean.high == 0


def _mean_amount(mean: Difference) -> str:
    """Return a difference of mean scores with its interval."""
    amount = f"{abs(mean.value):.3f} {'better' if mean.value > 0 else 'worse'}"
    if abs(mean.value) < SMALLEST:
        amount = "neither better nor worse"
    if mean.has_interval:
        amount += f" (95 % interval: {_range(mean.low, mean.high, 3, 'better', 'worse')})"
    return amount


def _mean_test(mean: Difference, comparisons: int) -> str:
    """Return whether a mean difference is significant, in words."""
    if math.isnan(mean.p_alone):
        return "with too few seeds for a test"
    counts = "which is significant" if mean.significant else "which is not significant"
    corrected = f", corrected for {comparisons} comparisons" if comparisons > 1 else ""
    return f"{counts} ({p_text(mean.p_value)}{corrected}, {mean.seeds} seeds)"


def _basis(found: Verdicts) -> str:
    """Return what the mean difference is a mean of."""
    tables = [verdict.table for verdict in found.tasks if on_fixed_scale(verdict.table)]
    families = count_families(tables)
    tasks = "these tasks" if len(tables) == len(found.tasks) else f"{len(tables)} of these tasks"
    if families == len(tables):
        return tasks
    return f"the {families} {'family' if families == 1 else 'families'} of {tasks}"


def p_text(p_value: float) -> str:
    """Return a p-value in words, such as "p = 0.012"."""
    shown = show_p(p_value)
    return f"p {shown[0]} {shown[1:]}" if shown.startswith("<") else f"p = {shown}"


def title(found: Verdicts) -> str:
    """Return the title of the figure of two encodings."""
    apart = [verdict for verdict in found.tasks if verdict.difference.significant]
    better = sum(verdict.first_is_better for verdict in apart)
    worse = len(apart) - better
    count = len(found.tasks)
    first, second = found.first, found.second
    if not apart:
        where = "any task" if count > 1 else _only(found)
        if not any(map(_is_tested, found.tasks)):
            return f"{first} and {second} are not tested on {where}: too few seeds"
        return f"{first} and {second} do not differ significantly on {where}"
    if count == 1:
        return f"{first} is {'better' if better else 'worse'} than {second} on {_only(found)}"
    parts = []
    if better:
        parts.append(f"better than {second} on {better}")
    if worse:
        parts.append(f"worse on {worse}" if better else f"worse than {second} on {worse}")
    line = f"{first} is {' and '.join(parts)} of {count} {_plural('task', count)}"
    untested = count - sum(map(_is_tested, found.tasks))
    rest = count - len(apart) - untested
    if rest:
        line += f", no significant difference on {rest}"
    return f"{line}, not tested on {untested}" if untested else line


def own_unit(verdict: Verdict) -> str:
    """Return the difference with its interval in the task's unit, for a figure."""
    difference = verdict.difference
    digits = verdict.table.ranking.digits
    text = f"{difference.value:+.{digits}f} {verdict.table.ranking.unit}"
    if not difference.has_interval:
        return text
    return f"{text} ({difference.low:+.{digits}f} to {difference.high:+.{digits}f})"


def names_of(tables: Sequence[Table]) -> list[str]:
    """Return the shortest unique names of tables: the task if unique, else the heading."""
    return [name_among(tables, table) for table in tables]


def name_among(tables: Sequence[Table], table: Table) -> str:
    """Return the shortest unique name of one of several tables, see `names_of`."""
    tasks = [other.about.task for other in tables]
    return table.about.task if tasks.count(table.about.task) == 1 else table.heading


def _only(found: Verdicts) -> str:
    return found.tasks[0].table.about.task


def _is_tested(verdict: Verdict) -> bool:
    return verdict.difference.seeds >= FEWEST_SEEDS  # also if all differences are 0


def _needs(verdict: Verdict) -> str:
    """Return the number of seeds that a claim needs, in words; empty if more would not help."""
    difference = verdict.difference
    if not _is_tested(verdict):
        return f"no claim is possible with fewer than {FEWEST_SEEDS} seeds"
    if not difference.spread > 0 or difference.value == 0:
        return ""
    counts = difference.spread, verdict.comparisons, difference.items
    seeds = seeds_to_show(difference.value, *counts)
    if seeds is None:
        return "if the true difference is this large, it takes more items, not only more seeds"
    if seeds <= difference.seeds:
        return ""
    about = f"about {seeds}" if seeds <= MOST_SEEDS else f"more than {MOST_SEEDS}"
    return f"if the true difference is this large, it takes {about} seeds to show it"


def _objection(difference: Difference, verdict: Verdict) -> str:
    """Return why a difference is not significant although its own interval excludes 0."""
    if difference.p_alone > LEVEL:
        return f"{p_text(difference.p_alone)} is the smallest for equal differences of these seeds"
    if difference.p_value > LEVEL:
        return (
            f"{p_text(difference.p_value)} after correction for {verdict.comparisons} comparisons"
        )
    return f"sign flips of the seeds have {p_text(difference.p_flips)}"


def _amount(verdict: Verdict) -> str:
    """Return a difference in words, such as "2.00 points of accuracy more"."""
    value = verdict.difference.value
    table = verdict.table
    more = "more" if value >= 0 else "less"
    metric = table.ranking.metric
    size = f"{abs(value):.{table.ranking.digits}f}"
    if metric.is_percent:
        return f"{size} points {more} {metric.title}"
    unit = f" {metric.unit}" if metric.unit else ""
    return f"{size}{unit} {more} {metric.title}"


def _numbers(verdict: Verdict) -> str:
    digits = verdict.table.ranking.digits
    unit = verdict.table.ranking.metric.unit
    after = f" {unit}" if unit else ""
    better = "" if verdict.table.ranking.higher_is_better else ", lower is better"
    return f"{verdict.first:.{digits}f} against {verdict.second:.{digits}f}{after}{better}"


def _interval(verdict: Verdict) -> str:
    """Return the interval of a difference in words; empty if it has none."""
    difference = verdict.difference
    digits = verdict.table.ranking.digits
    if not difference.has_interval:
        return ""
    return _range(difference.low, difference.high, digits, "more", "less")


def _range(low: float, high: float, digits: int, up: str, down: str) -> str:
    """Return an interval in words. If both ends are on one side, the side is named once."""
    if low >= 0:
        return f"{low:.{digits}f} to {high:.{digits}f} {up}"
    if high <= 0:
        return f"{-high:.{digits}f} to {-low:.{digits}f} {down}"
    return f"{-low:.{digits}f} {down} to {high:.{digits}f} {up}"


def _seeds(count: int) -> str:
    return f"{count} {_plural('seed', count)}"


def in_words(names: Sequence[str]) -> str:
    """Return names as in "a, b and c"."""
    first, last = names[:-1], names[-1]
    return f"{', '.join(first)} and {last}" if first else last


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
