"""The search for shortcuts: the scores of a task's baselines between chance and ceiling.

A task measures what it claims only if no rule solves it without the question and without positions.
Baselines are such rules: they count training batches, see `pe_bench.sequences.baselines`. The
docstring of a task explains its intended shortcuts:

    Shortcuts:
        n-gram table: short operands are in the table; see the score out of distribution.
        n-gram table of majority: the last bits tell most majorities.
"""

import inspect
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pe_bench.checks.findings import NotApplicable
from pe_bench.results.baselines import find_chance
from pe_bench.results.measurement import Measurement
from pe_bench.results.metrics import find_metric
from pe_bench.results.splits import ID, OOD
from pe_bench.task import Task

HALFWAY = 0.5
SECTION = re.compile(r"^Shortcuts:\n((?:[ ]{4,}.*\n?)+)", re.MULTILINE)
ENTRY = re.compile(r"^[ ]{4}(\S.*?): (.*(?:\n[ ]{5,}.*)*)", re.MULTILINE)


@dataclass(frozen=True)
class ShortcutScore:
    """The score of a shortcut on a scale from 0 (chance) to 1 (the ceiling).

    Attributes:
        subset: subset with a separate score; empty: the task's headline.
        shortcut: name of the baseline.
        inside, outside: score in and out of distribution; nan if not measured.
    """

    subset: str
    shortcut: str
    inside: float
    outside: float

    @property
    def most(self) -> float:
        """The larger one of `inside` and `outside`."""
        return max((n for n in (self.inside, self.outside) if not math.isnan(n)), default=math.nan)

    @property
    def name(self) -> str:
        """Name in docstrings: the kind of shortcut, and the subset if it has a separate score."""
        kind = re.sub(r"^\S+gram table$", "n-gram table", self.shortcut)
        return f"{kind} of {self.subset}" if self.subset else kind


def search(task: Task) -> list[ShortcutScore]:
    """Return the score of each shortcut, for each subset with a separate score or the headline.

    The ceiling is 100 for a metric in per cent and 0 for a loss, although no model reaches that.
    Chance is guessing, or the table without context for a loss.

    Raises:
        NotApplicable: the task has no baselines or no ceiling.
    """
    if task.measures_time:
        raise NotApplicable("it measures time")
    baselines = task.baselines()
    if not baselines:
        raise NotApplicable("it has no baselines, because it does not train on its questions")
    metric = find_metric(task.headline.metric, task.metrics)
    if not metric.is_percent and metric.higher_is_better is not False:
        raise NotApplicable(f"the best value of {task.headline.metric} is not known")
    ceiling = 100.0 if metric.is_percent else 0.0
    values = {name: _values(rows, task.headline.metric) for name, rows in baselines.items()}
    chance = values.pop(find_chance([*baselines]))
    found = []
    for subset, (inside, outside) in _ends(task, chance).items():
        for name, own in values.items():
            reached = [_normalise(own, chance, end, ceiling) for end in (inside, outside)]
            found.append(ShortcutScore(subset, name, *reached))
    return found


def strongest(scores: Sequence[ShortcutScore]) -> list[ShortcutScore]:
    """Return the shortcut with the highest score for each subset; for ties the first one."""
    found: dict[str, ShortcutScore] = {}
    for score in scores:
        if score.subset not in found or score.most > found[score.subset].most:
            found[score.subset] = score
    return [*found.values()]


def explained(cls: type[Task]) -> dict[str, str]:
    """Return the shortcuts that the docstring of a task explains, with the reasons."""
    section = SECTION.search(inspect.getdoc(cls) or "")
    if section is None:
        return {}
    return {name: " ".join(why.split()) for name, why in ENTRY.findall(section[1])}


def find_problem(
    scores: Iterable[ShortcutScore], reasons: Collection[str], *, default: bool
) -> str | None:
    """Return the problem of a task with these shortcuts in one sentence, or None.

    Args:
        scores: scores of all shortcuts.
        reasons: names of the shortcuts that the task explains.
        default: whether the task has the options that its docstring describes. Then every
            explained shortcut must exist.
    """
    halfway: dict[str, ShortcutScore] = {}  # the highest score, by the name in a docstring
    for score in sorted(scores, key=lambda score: score.most, reverse=True):
        if score.most >= HALFWAY:
            halfway.setdefault(score.name, score)
    bare = [f"{name} ({describe(score)})" for name, score in halfway.items() if name not in reasons]
    if bare:
        return (
            f"shortcuts come at least halfway from chance to the ceiling: {', '.join(bare)}; "
            "change the task, or explain under Shortcuts in its docstring why this is intended"
        )
    for name in reasons:
        if default and name not in halfway:
            return (
                f"the docstring explains the shortcut '{name}', which does not come halfway from "
                "chance to the ceiling: leave it out"
            )
    return None


def describe(score: ShortcutScore) -> str:
    """Return the score of a shortcut in words: "12 % in distribution, 3 % out of it"."""
    parts = []
    if not math.isnan(score.inside):
        parts.append(f"{100 * score.inside:.0f} % in distribution")
    if not math.isnan(score.outside):
        parts.append(f"{100 * score.outside:.0f} %{' out of it' if parts else ''}")
    return ", ".join(parts)


def _ends(task: Task, means: Mapping[str, float]) -> dict[str, tuple[str, str]]:
    """Return the names of the means in and out of distribution of each subset.

    Without separate means of subsets, they are the headline and its counterpart.
    """
    apart = [name for name in task.subsets if f"{name}-{OOD}" in means]
    if apart:
        return {name: (f"{name}-{ID}", f"{name}-{OOD}") for name in apart}
    headline = task.headline.subset
    return {"": (ID if headline == OOD else "", headline)}


def _values(rows: Sequence[Measurement], metric: str) -> dict[str, float]:
    """Return the means of a metric, by subset."""
    means = [row for row in rows if row.length is None and not row.second_axis]
    return {row.subset: row.value for row in means if row.metric == metric}


def _normalise(
    values: Mapping[str, float], chance: Mapping[str, float], name: str, ceiling: float
) -> float:
    """Return the position of a mean between chance (0) and ceiling (1); nan without a mean."""
    if name not in values or math.isclose(chance[name], ceiling):
        return math.nan
    return (values[name] - chance[name]) / (ceiling - chance[name])
