"""Encodings over several tasks: mean ranks, mean normalised scores, rank correlations.

A score is normalised by two numbers of its task, so that it has no unit and higher is better: 0 is
the floor, a score that needs no model, such as the best baseline, and 1 is the ceiling. In means,
scores below the floor count as 0. Otherwise a task without a worst score, such as perplexity,
could dominate the mean. Ranks ignore the floor.

Tasks and seeds are random samples. The bootstrap draws n - 1 of n tasks and n - 1 of n seeds (Rao
and Wu 1988), which gives an unbiased variance for small samples. Intervals come from Student's t
distribution over tasks, since percentiles of a small sample have no tails.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pe_bench.results.intervals import BOOTSTRAP_SEED
from pe_bench.results.items import Floats
from pe_bench.stats.comparison import Scores
from pe_bench.stats.significance import student_quantile

FEWEST_TASKS = 3  # two tasks are too few for a spread and for a mean of rank correlations
RESAMPLES = 4000


@dataclass(frozen=True)
class TaskScores:
    """The numbers of a task.

    Attributes:
        task: name of the task.
        scores: numbers of all encodings.
        higher_is_better: direction of the numbers.
        floor, ceiling: the numbers that are normalised to 0 and 1.
    """

    task: str
    scores: Scores
    higher_is_better: bool
    floor: float
    ceiling: float

    def normalise(self) -> Scores:
        """Return normalised scores: 0 at the floor and below it, 1 at the ceiling."""
        again = self.scores.resampled
        return Scores(
            self.scores.encodings,
            _cut(self._scaled(self.scores.values)),
            None if again is None else _cut(self._scaled(again)),
            self.scores.clusters,
            self.scores.seeds,
        )

    def directed(self) -> Floats:
        """Return the scores (E, S) on the same scale, negative below the floor, for ranks."""
        return self._scaled(self.scores.values)

    def _scaled(self, values: Floats) -> Floats:
        return (values - self.floor) / (self.ceiling - self.floor)


@dataclass(frozen=True)
class Standing:
    """The result of an encoding over all tasks, with 95 % intervals over tasks and seeds.

    Attributes:
        encoding: label of the encoding.
        rank: mean rank over the tasks, 1 is the best.
        rank_low, rank_high: ends of the rank's interval.
        score: mean of the normalised scores.
        score_low, score_high: ends of the score's interval.
    """

    encoding: str
    rank: float
    rank_low: float
    rank_high: float
    score: float
    score_low: float
    score_high: float


def average_over(tasks: Sequence[TaskScores]) -> Scores:
    """Return the means over tasks of the normalised scores, for each seed that all tasks have.

    Args:
        tasks: at least one task; all have the same encodings in the same order.
    """
    parts = [task.normalise() for task in tasks]
    seeds = sorted(set(parts[0].seeds).intersection(*[part.seeds for part in parts[1:]]))
    places = [[list(part.seeds).index(seed) for seed in seeds] for part in parts]
    pairs = list(zip(parts, places, strict=True))
    values = np.mean([part.values[:, place] for part, place in pairs], axis=0)
    resampled = None
    drawn = [part.resampled[:, :, at] for part, at in pairs if part.resampled is not None]
    if len(drawn) == len(parts):
        resampled = np.mean(drawn, axis=0)
    clusters = sum(part.clusters for part in parts)
    return Scores(parts[0].encodings, values, resampled, clusters, seeds)


def find_standings(tasks: Sequence[TaskScores]) -> list[Standing]:
    """Return the standing of each encoding, the best mean rank first.

    Args:
        tasks: at least `FEWEST_TASKS` tasks; all have the same encodings in the same order, and
            each encoding has at least one seed in each task.
    """
    means = np.array([_mean_over_seeds(task.normalise().values) for task in tasks])  # (T, E)
    ranks = _ranks(np.array([_mean_over_seeds(task.directed()) for task in tasks]))
    drawn_scores, drawn_ranks = _draw(tasks)
    encodings = tasks[0].scores.encodings
    found = []
    for place, encoding in enumerate(encodings):
        rank = float(ranks[:, place].mean())
        score = float(means[:, place].mean())
        wide = student_quantile(len(tasks) - 1) * drawn_ranks[:, place].std()
        half = student_quantile(len(tasks) - 1) * drawn_scores[:, place].std()
        low, high = max(1.0, rank - wide), min(float(len(encodings)), rank + wide)
        least = max(0.0, score - half)
        most = max(score, min(1.0, score + half))  # no score is above the ceiling
        found.append(Standing(encoding, rank, low, high, score, least, most))
    return sorted(found, key=lambda one: (one.rank, -one.score))


def rank_correlations(tasks: Sequence[TaskScores]) -> Floats:
    """Return Spearman's correlation over encodings for each pair of tasks, (T, T).

    It is nan if all encodings have the same mean in a task.
    """
    means = np.array([_mean_over_seeds(task.directed()) for task in tasks])
    centred = _ranks(means) - (means.shape[1] + 1) / 2
    products = centred @ centred.T
    sizes = np.sqrt(np.diag(products))
    with np.errstate(invalid="ignore"):
        found: Floats = products / np.outer(sizes, sizes)
    return found


def smallest_correlation(encodings: int) -> float:
    """Return the approximate smallest rank correlation significant at 5 %; inf: there is none."""
    degrees = encodings - 2
    if degrees < 2:  # three encodings have six orders, so the smallest p-value is above 5 %
        return math.inf
    quantile = student_quantile(degrees)
    return quantile / math.sqrt(degrees + quantile**2)


def _draw(tasks: Sequence[TaskScores]) -> tuple[Floats, Floats]:
    """Return mean scores and mean ranks on resampled tasks and seeds, each (B, E)."""
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    shape = (RESAMPLES, len(tasks[0].scores.encodings))
    scores = np.zeros(shape)
    ranks = np.zeros(shape)
    values = [task.directed() for task in tasks]
    slots = len(tasks) - 1
    for _ in range(slots):
        chosen = rng.integers(0, len(tasks), RESAMPLES)
        for task, own in enumerate(values):
            rows = np.flatnonzero(chosen == task)
            count = own.shape[1]
            drawn = rng.integers(0, count, (len(rows), max(1, count - 1)))
            again = own[:, drawn].transpose(1, 0, 2)  # (rows, E, seeds)
            scores[rows] += _mean_over_seeds(_cut(again), _mean_over_seeds(_cut(own)))
            ranks[rows] += _ranks(_mean_over_seeds(again, _mean_over_seeds(own)))
    return scores / slots, ranks / slots


def _cut(values: Floats) -> Floats:
    """Return normalised scores, with 0 for scores below the floor; nan stays nan."""
    return np.maximum(values, 0)


def _mean_over_seeds(values: Floats, otherwise: Floats | float = math.nan) -> Floats:
    """Return means (..., E) of numbers (..., E, S), ignoring missing numbers.

    Args:
        values: the numbers; nan: missing.
        otherwise: result if all numbers are missing.
    """
    known = np.isfinite(values)
    counts = known.sum(-1)
    sums = np.where(known, values, 0).sum(-1)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), otherwise))


def _ranks(means: Floats) -> Floats:
    """Return ranks along the last axis, 1 for the highest; equal numbers have the mean rank."""
    higher = (means[..., None, :] > means[..., :, None]).sum(-1)
    equal = (means[..., None, :] == means[..., :, None]).sum(-1)
    return np.asarray(higher + (equal + 1) / 2)
