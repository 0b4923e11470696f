"""Differences between encodings, paired by seed and by item, with intervals and corrected p-values.

All encodings are run with the same seeds (weights, batches) and the same items. The uncertainty of
a difference has two sources, seeds and items, and a hierarchical bootstrap resamples both: seeds
are drawn jointly for the two encodings of a pair, and within each evaluation point items (or
documents) are drawn jointly for all runs.

Resampling few seeds, or the items of few documents, gives intervals that are too narrow: with five
of them the bootstrap has 4/5 of the variance, and its percentiles have no tails. Three corrections
follow:

- The variance from seeds, and from the items of each evaluation point, is the variance of drawing
  n - 1 of n (Rao and Wu 1988). For seeds there is a formula.
- The variance that items cause within single seeds is counted once, not in both parts (Owen 2007).
- Intervals and p-values come from Student's t distribution, with the degrees of freedom of both
  sources combined (Satterthwaite 1946).

Without items, this is the paired t-test. `compare_asked` has the rule for significance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

import numpy as np

from pe_bench.results.intervals import BOOTSTRAP_SEED
from pe_bench.results.items import Floats, Items, RowKey, combined
from pe_bench.stats.significance import (
    FEWEST_SEEDS,
    LEVEL,
    NO_ITEMS,
    ItemError,
    holm,
    sign_flip_p,
    smallest_flip_p,
    student_quantile,
    student_tail,
)

RESAMPLES = 2000
MOST_LETTERS = 100  # more of them cannot be read
EQUAL = 1e-9  # relative size of differences between equal numbers, by rounding
WEIGHTS_AT_ONCE = 4_000_000  # maximum number of weights in memory while items are resampled


@dataclass(frozen=True)
class Difference:
    """The difference between the numbers of two encodings, first minus second.

    Attributes:
        first, second: the encodings.
        value: mean difference over the seeds that both have.
        low, high: 95 % interval of this difference alone; nan with one seed and no items, and if
            all seeds have the same difference, which does not determine its variance.
        seeds: number of seeds that both have.
        p_alone: p-value of this comparison alone, from the same distribution as the interval; nan
            for fewer than five seeds. If all seeds have the same difference, which has no interval,
            it is the p-value of sign flips.
        p_flips: p-value of sign flips of the seeds; nan for fewer than six seeds, which cannot
            reach 5 %.
        p_value: `p_alone`, corrected for the number of comparisons; 1 where `p_alone` is nan.
        significant: whether the difference is significant at 5 % after the correction.
        spread: standard deviation of the difference over seeds; nan for one seed.
        items: error of the value from the choice of items.
    """

    first: str
    second: str
    value: float
    low: float
    high: float
    seeds: int
    p_alone: float = math.nan
    p_flips: float = math.nan
    p_value: float = 1.0
    significant: bool = False
    spread: float = math.nan
    items: ItemError = NO_ITEMS

    @property
    def tested(self) -> bool:
        """Whether there are enough seeds for a test."""
        return not math.isnan(self.p_alone)

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)


@dataclass(frozen=True)
class SeedScores:
    """One number of each run, also computed on resampled items.

    Attributes:
        encodings: E labels of the encodings.
        values: (E, S) number of each encoding and seed; nan: the run is missing.
        resampled: (B, E, S) the same numbers on resampled items, whose variance is that of the
            items; nan for encodings whose items are unknown; None: all are unknown.
        item_degrees: degrees of freedom of the variance of items: at each evaluation point, the
            number of independent items, or documents, minus 1.
        seeds: the S seeds; empty: they are unknown.
        fewest_degrees: the smallest of the numbers in `item_degrees`. If its point has a large part
            of the variance, their sum is too large.
    """

    encodings: Sequence[str]
    values: Floats
    resampled: Floats | None = None
    item_degrees: int = 0
    seeds: Sequence[int] = ()
    fewest_degrees: int = 0


def resample_items(
    runs: Sequence[Sequence[Items]], resamples: int = RESAMPLES
) -> tuple[Floats, int] | None:
    """Return the mean over the evaluation points of each run on resampled items.

    All runs use the same items.

    Args:
        runs: R runs with equal results of `describe_items`, each with its evaluation points in the
            same order.
        resamples: number of resamples, B.

    Returns:
        The means (B, R), nan for a run with a score that is not finite, and their degrees of
        freedom; None: an evaluation point has fewer than two clusters with a score.
    """
    if not runs or not runs[0]:
        return None
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    total = np.zeros((resamples, len(runs)))
    degrees = 0
    for points in zip(*runs, strict=True):
        sums = [point.cluster_sums() for point in points]
        weights = sums[0][1]  # (C,)
        scored = weights > 0
        values = np.stack([above for above, _ in sums], axis=1)  # (C, R, K)
        values[~np.isfinite(values)] = np.nan
        if scored.sum() < 2:
            return None
        degrees += int(scored.sum()) - 1
        total += _resample_point(values[scored], weights[scored], points[0], resamples, rng)
    total[:, ~np.isfinite(total).all(0)] = np.nan
    return total / len(runs[0]), degrees


def describe_items(run: Sequence[Items]) -> tuple[tuple[RowKey, bytes], ...]:
    """Return the keys and the weights of the items of a run; runs with equal ones are paired."""
    return tuple((point.key, point.cluster_sums()[1].tobytes()) for point in run)


def compare(scores: SeedScores, pairs: Sequence[tuple[str, str]]) -> list[Difference]:
    """Return the differences of pairs of encodings, see `compare_asked`."""
    return compare_asked([(scores, first, second) for first, second in pairs])


def compare_asked(
    asked: Sequence[tuple[SeedScores, str, str]], missing: int = 0
) -> list[Difference]:
    """Return requested differences, corrected for the number of comparisons (Holm 1979).

    Args:
        asked: for each difference, the numbers (for example of one task) and two encodings.
        missing: number of comparisons whose runs are missing; they count in the correction.

    A difference is significant if the corrected p-value of a t-test is at most 5 %. Its standard
    error is that of the hierarchical bootstrap, which includes items. From six seeds on,
    uncorrected sign flips of the seeds, which need no normal distribution, must reach 5 % too. Both
    rules are the same for every number of comparisons, so a further comparison never makes a
    p-value smaller. Ask separate questions separately.
    """
    alone = [_difference(*one) for one in asked]
    p_values = [1.0 if math.isnan(each.p_alone) else each.p_alone for each in alone]
    found = []
    corrected = holm([*p_values, *[1.0] * missing])[: len(alone)]
    for difference, p_value in zip(alone, corrected, strict=True):
        significant = p_value <= LEVEL and not difference.p_flips > LEVEL
        found.append(replace(difference, p_value=p_value, significant=significant))
    return found


def compare_all(scores: SeedScores) -> list[Difference]:
    """Return the differences of all pairs, see `compare_asked`."""
    return compare(scores, list(combinations(scores.encodings, 2)))


def rank_intervals(
    encodings: Sequence[str], differences: Sequence[Difference], *, higher_is_better: bool
) -> dict[str, tuple[int, int]]:
    """Return the best and the worst rank that each encoding may have.

    Args:
        encodings: all encodings.
        differences: differences of all pairs.
        higher_is_better: direction of the number.
    """
    better = dict.fromkeys(encodings, 0)  # number of encodings that are significantly better
    worse = dict.fromkeys(encodings, 0)
    for difference in differences:
        if difference.significant:
            first_wins = (difference.value > 0) == higher_is_better
            winner = difference.first if first_wins else difference.second
            loser = difference.second if first_wins else difference.first
            better[loser] += 1
            worse[winner] += 1
    last = len(encodings)
    return {name: (1 + better[name], last - worse[name]) for name in encodings}


def letters(ranking: Sequence[str], differences: Sequence[Difference]) -> dict[str, str]:
    """Return the compact letter display (Piepho 2004): equal letters, no significant difference.

    Args:
        ranking: encodings, the best first; the best one gets an "a".
        differences: differences of all pairs.

    Returns:
        The letters of each encoding. "" for all if no difference is tested, or if there would be
        more than `MOST_LETTERS`, whose number can grow exponentially with that of the encodings.
    """
    if not any(difference.tested for difference in differences):
        return dict.fromkeys(ranking, "")
    import networkx  # takes a quarter of a second

    similar = networkx.complete_graph(ranking)
    for difference in differences:
        if difference.significant:
            similar.remove_edge(difference.first, difference.second)
    groups = list(islice(networkx.find_cliques(similar), MOST_LETTERS + 1))
    if len(groups) > MOST_LETTERS:
        return dict.fromkeys(ranking, "")
    ranks = {name: index for index, name in enumerate(ranking)}
    groups.sort(key=lambda group: sorted(ranks[name] for name in group))
    found = dict.fromkeys(ranking, "")
    for number, group in enumerate(groups):
        letter = chr(ord("a") + number % 26) * (1 + number // 26)
        for name in group:
            found[name] += letter
    return found


def _resample_point(
    values: Floats, weights: Floats, point: Items, resamples: int, rng: np.random.Generator
) -> Floats:
    """Return an evaluation point's number in each run on resampled clusters, (B, R).

    The variance of resampled numbers is too small by the factor (C - 1) / C, so their distances
    from the number of all clusters are scaled.

    Args:
        values: (C, R, K) sums of scores within clusters.
        weights: (C,) weights of the clusters.
        point: the point in any run; it defines how the number is computed.
        resamples: number of resamples, B.
        rng: random number generator.
    """
    count, runs, scores = values.shape
    flat = values.reshape(count, runs * scores)
    found = np.empty((resamples, runs))
    size = max(1, WEIGHTS_AT_ONCE // count)
    for start in range(0, resamples, size):
        rows = min(size, resamples - start)
        drawn = rng.integers(0, count, (rows, count)) + count * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
        means = (times @ flat) / (times @ weights)[:, None]
        found[start : start + rows] = combined(means.reshape(rows, runs, scores), point.combine)
    of_all = combined(values.sum(0) / weights.sum(), point.combine)  # (R,)
    return np.asarray(of_all + math.sqrt(count / (count - 1)) * (found - of_all))


def _difference(scores: SeedScores, first: str, second: str) -> Difference:
    """Return a difference with its interval and its p-values for this comparison alone."""
    one, other = (list(scores.encodings).index(name) for name in (first, second))
    differences = scores.values[one] - scores.values[other]
    both = np.isfinite(differences)  # (S,)
    differences = differences[both]
    seeds = len(differences)
    if not seeds:
        return Difference(first, second, math.nan, math.nan, math.nan, 0)
    value = float(differences.mean())
    from_seeds = float(differences.var(ddof=1)) / seeds if seeds > 1 else 0.0
    rounding = (EQUAL * float(np.abs(scores.values[[one, other]][:, both]).max())) ** 2
    if from_seeds <= rounding:
        from_seeds = 0.0
    spread = math.sqrt(from_seeds * seeds) if seeds > 1 else math.nan
    from_items = 0.0
    again = None
    if scores.resampled is not None:
        again = (scores.resampled[:, one] - scores.resampled[:, other])[:, both]  # (B, S)
    with_items = again is not None and bool(np.isfinite(again).all())
    if again is not None and with_items:
        from_items = float(again.mean(1).var())
        if seeds > 1:
            under_single_seeds = (float(again.var(0).mean()) - from_items) / (seeds - 1)
            from_items = max(0.0, from_items - max(0.0, under_single_seeds))
        if from_items <= rounding:
            from_items = 0.0
    error = math.sqrt(from_seeds + from_items)
    if seeds == 1 and not with_items:
        return Difference(first, second, value, math.nan, math.nan, seeds)
    flips = sign_flip_p(differences)
    if error == 0:
        half = math.nan if value else 0.0  # equal differences do not determine their variance
        p_alone = flips if value else 1.0
    else:
        parts = from_items**2 / max(1, scores.item_degrees)
        parts += from_seeds**2 / (seeds - 1) if seeds > 1 else 0.0
        degrees = (from_seeds + from_items) ** 2 / parts
        half = student_quantile(degrees) * error
        p_alone = student_tail(value / error, degrees)
    return Difference(
        first,
        second,
        value,
        value - half,
        value + half,
        seeds,
        p_alone=p_alone if seeds >= FEWEST_SEEDS else math.nan,
        p_flips=flips if smallest_flip_p(seeds) <= LEVEL else math.nan,
        spread=spread,
        items=ItemError(from_items, max(1, scores.item_degrees)) if from_items else NO_ITEMS,
    )
