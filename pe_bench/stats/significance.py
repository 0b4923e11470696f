"""Tests of significance: Student's t, permutations of seeds, and Holm's correction."""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtr, stdtrit  # scipy.stats calls these, and imports slowly

from pe_bench.results.intervals import BOOTSTRAP_SEED
from pe_bench.results.items import Floats

LEVEL = 0.05
POWER = 0.8


def smallest_p(seeds: int) -> float:
    """Return the smallest two-sided p-value of permuting as many seeds of each of two encodings."""
    return min(1.0, 2 / math.comb(2 * seeds, seeds))


def seeds_needed(comparisons: int) -> int:
    """Return how many seeds the permutation test needs for a claim at 5 % (Holm's first step)."""
    seeds = 1
    while smallest_p(seeds) * comparisons > LEVEL:
        seeds += 1
    return seeds


def seeds_to_show(effect: float, spread: float, comparisons: int) -> int:
    """Return about how many seeds show a true difference in four of five experiments.

    Args:
        effect: the difference, not 0.
        spread: its standard deviation over seeds.
        comparisons: how many are asked; the strictest level that Holm's correction may ask counts.
    """
    beyond = float(ndtri(1 - LEVEL / (2 * comparisons)))
    by_size = ((beyond + float(ndtri(POWER))) * spread / effect) ** 2
    # Student's t in place of the normal distribution costs beyond^2 / 2 more (Guenther 1981).
    return max(seeds_needed(comparisons), math.ceil(by_size + beyond**2 / 2))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979), in the order given."""
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for step, place in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, (len(p_values) - step) * p_values[place])
        corrected[place] = min(1.0, largest)
    return corrected


def student_tail(t: float, degrees: float) -> float:
    """Return the two-sided p-value of Student's t."""
    return float(2 * stdtr(degrees, -abs(t)))


def student_quantile(degrees: float) -> float:
    """Return the two-sided 5 % critical value of Student's t."""
    return float(stdtrit(degrees, 1 - LEVEL / 2))


def permutation_p(one: Floats, other: Floats) -> float:
    """Return the two-sided p-value of permuting the seeds' numbers between two encodings.

    All divisions are counted up to eight seeds; above, 20,000 random ones.

    Args:
        one: (S,) a number of each seed.
        other: (S,) of the other encoding.
    """
    seeds = len(one)
    if seeds < 2:
        return 1.0
    pooled = np.concatenate([one, other])  # (2 S,)
    observed = abs(one.mean() - other.mean())
    means = pooled[_divisions(seeds)].mean(1)
    gaps = np.abs(2 * (means - pooled.mean()))
    return float((gaps >= observed * (1 - 1e-9)).mean())


@lru_cache(maxsize=8)
def _divisions(seeds: int) -> npt.NDArray[np.int64]:
    """Return which of twice as many numbers go to the first of two encodings, (D, seeds)."""
    if seeds <= 8:
        return np.array(list(combinations(range(2 * seeds), seeds)))
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    chosen = rng.random((20_000, 2 * seeds)).argsort(1)[:, :seeds]
    chosen[0] = np.arange(seeds)  # the observed division is one of them
    return chosen
