"""Encodings over several tasks: mean scores, mean ranks, rank correlations.

A score is scaled by two numbers of its task, so that it has no unit and higher is better: 0 is the
floor, a score that needs no model, such as the best baseline, and 1 is the ceiling. In means,
scores below the floor count as 0. Otherwise a task without a worst score, such as perplexity, could
dominate the mean. Ranks ignore the floor.

Tasks of one family, such as arithmetic, have similar orders of encodings, so they are not
independent samples. A mean is therefore taken over families, each the mean of its tasks. Its
interval is Student's over families and says what to expect of other families of this kind.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pe_bench.results.items import Floats
from pe_bench.stats.comparison import SeedScores
from pe_bench.stats.significance import student_quantile

FEWEST_FAMILIES = 3  # two are too few for a spread

EXACT_CORRELATIONS = {
    **{5: 1.0, 6: 31 / 35, 7: 11 / 14, 8: 31 / 42, 9: 7 / 10, 10: 107 / 165, 11: 34 / 55},
    **{12: 84 / 143, 13: 51 / 91, 14: 7 / 13, 15: 73 / 140, 16: 171 / 340},
}
"""Smallest significant rank correlation by the number of encodings, from all orders of them."""


@dataclass(frozen=True)
class TaskScores:
    """The numbers of a task.

    Attributes:
        task: name of the task.
        scores: numbers of all encodings.
        higher_is_better: direction of the numbers.
        floor, ceiling: the numbers that are normalised to 0 and 1.
        family: family of the task; tasks of one family count as one.
    """

    task: str
    scores: SeedScores
    higher_is_better: bool
    floor: float
    ceiling: float
    family: str

    def normalise(self, *, cut: bool = True) -> SeedScores:
        """Return normalised scores: 0 at the floor, 1 at the ceiling.

        Args:
            cut: whether a score below the floor counts as 0; otherwise it is negative.
        """
        values = self._scaled(self.scores.values)
        again = self.scores.resampled
        resampled = None if again is None else self._scaled(again)
        if cut:
            values = _cut(values)
            resampled = None if resampled is None else _cut(resampled)
        return replace(self.scores, values=values, resampled=resampled)

    def _scaled(self, values: Floats) -> Floats:
        return (values - self.floor) / (self.ceiling - self.floor)


@dataclass(frozen=True)
class Mean:
    """A mean over families with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Standing:
    """The result of an encoding over all tasks.

    Attributes:
        encoding: label of the encoding.
        rank: mean rank, 1 is the best.
        score: mean of the normalised scores.
    """

    encoding: str
    rank: Mean
    score: Mean


def average_over(tasks: Sequence[TaskScores], *, cut: bool = True) -> SeedScores:
    """Return the means over families of the normalised scores, for each seed that all tasks have.

    A task without item scores adds no variance of items.

    Args:
        tasks: at least one task; all have the same encodings in the same order.
        cut: whether the score of a seed below the floor counts as 0.
    """
    parts = [task.normalise(cut=cut) for task in tasks]
    seeds = sorted(set(parts[0].seeds).intersection(*[part.seeds for part in parts[1:]]))
    columns_of_parts = []
    for part in parts:
        own = list(part.seeds)
        columns_of_parts.append([own.index(seed) for seed in seeds])
    weights = _weights(tasks)
    values = np.zeros((len(parts[0].encodings), len(seeds)))
    for part, columns, weight in zip(parts, columns_of_parts, weights, strict=True):
        values += weight * part.values[:, columns]
    drawn = [part.resampled for part in parts if part.resampled is not None]
    if not drawn:
        return SeedScores(parts[0].encodings, values, seeds=seeds)
    resampled = np.zeros((len(drawn[0]), *values.shape))
    for part, columns, weight in zip(parts, columns_of_parts, weights, strict=True):
        again = part.values[None] if part.resampled is None else part.resampled
        resampled += weight * again[:, :, columns]
    degrees = sum(part.item_degrees for part in parts)
    fewest = min(part.fewest_degrees for part in parts if part.resampled is not None)
    return SeedScores(parts[0].encodings, values, resampled, degrees, seeds, fewest)


def find_standings(tasks: Sequence[TaskScores]) -> list[Standing]:
    """Return the standing of each encoding, the highest mean score first.

    Args:
        tasks: tasks of at least `FEWEST_FAMILIES` families; all have the same encodings in the same
            order, and each encoding has at least one seed in each task.
    """
    scores = _family_means(tasks, _mean_scores(tasks))
    ranks = _family_means(tasks, _ranks(_mean_scores(tasks, cut=False)))
    found = []
    for index, encoding in enumerate(tasks[0].scores.encodings):
        rank = _mean_of(ranks[:, index], 1.0, float(len(tasks[0].scores.encodings)))
        score = _mean_of(scores[:, index], 0.0, 1.0)
        found.append(Standing(encoding, rank, score))
    return sorted(found, key=lambda one: (-one.score.value, one.rank.value))


def differences_over_families(
    tasks: Sequence[TaskScores], reference: str, *, comparisons: int = 1, cut: bool = True
) -> dict[str, Mean]:
    """Return the mean difference of each other encoding's normalised score to a reference.

    The differences are paired by family.

    Args:
        tasks: tasks with the same encodings in the same order.
        reference: label of the reference.
        comparisons: number of comparisons that the intervals are corrected for (Bonferroni).
        cut: whether the score of a seed below the floor counts as 0.
    """
    scores = _family_means(tasks, _mean_scores(tasks, cut=cut))  # (F, E)
    largest = 1.0 if cut else math.inf
    encodings = list(tasks[0].scores.encodings)
    beside = scores[:, encodings.index(reference)]
    found = {}
    for index, encoding in enumerate(encodings):
        if encoding != reference:
            found[encoding] = _mean_of(scores[:, index] - beside, -largest, largest, comparisons)
    return found


def rank_correlations(tasks: Sequence[TaskScores]) -> Floats:
    """Return Spearman's correlation over encodings for each pair of tasks, (T, T).

    It is nan if all encodings have the same mean in a task.
    """
    means = _mean_scores(tasks, cut=False)
    centred = _ranks(means) - (means.shape[1] + 1) / 2
    products = centred @ centred.T
    sizes = np.sqrt(np.diag(products))
    with np.errstate(invalid="ignore"):
        found: Floats = products / np.outer(sizes, sizes)
    return found


def smallest_correlation(encodings: int) -> float:
    """Return the smallest rank correlation significant at 5 %, without ties; inf: there is none.

    It is exact for up to 16 encodings, and approximate for more.
    """
    if encodings < min(EXACT_CORRELATIONS):  # too few orders for a p-value of 5 %
        return math.inf
    if encodings in EXACT_CORRELATIONS:
        return EXACT_CORRELATIONS[encodings]
    degrees = encodings - 2
    quantile = student_quantile(degrees)
    return quantile / math.sqrt(degrees + quantile**2)


def _weights(tasks: Sequence[TaskScores]) -> list[float]:
    """Return the weight of each task in a mean over families; their sum is 1."""
    sizes = Counter(task.family for task in tasks)
    return [1 / (len(sizes) * sizes[task.family]) for task in tasks]


def _mean_scores(tasks: Sequence[TaskScores], *, cut: bool = True) -> Floats:
    """Return the mean normalised score of each task and encoding, (T, E)."""
    means = []
    for task in tasks:
        means.append(_mean_over_seeds(task.normalise(cut=cut).values))
    return np.array(means)


def _family_means(tasks: Sequence[TaskScores], values: Floats) -> Floats:
    """Return the means (F, E) within families of numbers (T, E)."""
    families = np.array([task.family for task in tasks])
    return np.array([values[families == family].mean(0) for family in dict.fromkeys(families)])


def _mean_of(values: Floats, least: float, most: float, comparisons: int = 1) -> Mean:
    """Return the mean of families with Student's interval, within the possible values."""
    value = float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    half = student_quantile(len(values) - 1, comparisons) * error
    return Mean(value, max(min(least, value), value - half), min(max(most, value), value + half))


def _cut(values: Floats) -> Floats:
    """Return normalised scores, with 0 for scores below the floor; nan stays nan."""
    return np.maximum(values, 0)


def _mean_over_seeds(values: Floats) -> Floats:
    """Return means (..., E) of numbers (..., E, S); nan is a missing number."""
    known = np.isfinite(values)
    counts = known.sum(-1)
    sums = np.where(known, values, 0).sum(-1)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), math.nan))


def _ranks(means: Floats) -> Floats:
    """Return ranks along the last axis, 1 for the highest; equal numbers have the mean rank."""
    higher = (means[..., None, :] > means[..., :, None]).sum(-1)
    equal = (means[..., None, :] == means[..., :, None]).sum(-1)
    return np.asarray(higher + (equal + 1) / 2)
