"""Tests of significance: Student's t, permutations of seeds, and Holm's correction."""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

# scipy.stats calls these functions, but its import is slow.
from scipy.special import (
    nctdtrinc,
    ndtri,
    stdtr,
    stdtrit,
)

from pe_bench.results.intervals import BOOTSTRAP_SEED
from pe_bench.results.items import Floats

LEVEL = 0.05
POWER = 0.8


def smallest_p(seeds: int) -> float:
    """Return the smallest two-sided p-value of the permutation test with a number of seeds."""
    return min(1.0, 2 / math.comb(2 * seeds, seeds))


def seeds_needed(comparisons: int) -> int:
    """Return the number of seeds that the permutation test needs at 5 % in Holm's first step."""
    seeds = 1
    while smallest_p(seeds) * comparisons > LEVEL:
        seeds += 1
    return seeds


def seeds_to_show(effect: float, spread: float, comparisons: int) -> int:
    """Return the approximate number of seeds that show a true difference with a power of 80 %.

    Args:
        effect: the difference, not 0.
        spread: standard deviation of the difference over seeds.
        comparisons: number of comparisons; the level is the strictest one of Holm's correction.
    """
    beyond = float(ndtri(1 - LEVEL / (2 * comparisons)))
    by_size = ((beyond + float(ndtri(POWER))) * spread / effect) ** 2
    # Student's t instead of the normal distribution needs beyond^2 / 2 more seeds (Guenther 1981).
    return max(seeds_needed(comparisons), math.ceil(by_size + beyond**2 / 2))


def effect_to_show(seeds: int, spread: float) -> float | None:
    """Return the smallest true difference that a paired t-test shows with a power of 80 %.

    Args:
        seeds: number of seeds.
        spread: standard deviation of the difference over seeds.

    Returns:
        The difference; None if a single comparison can never be significant with so few seeds.
    """
    if seeds < seeds_needed(1):
        return None
    critical = student_quantile(seeds - 1)
    noncentrality = float(nctdtrinc(seeds - 1, 1 - POWER, critical))
    return noncentrality * spread / math.sqrt(seeds)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979), in the given order."""
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
    """Return the two-sided p-value of permuting the numbers of seeds between two encodings.

    The test uses all divisions for up to eight seeds, and 20,000 random divisions for more seeds.

    Args:
        one: (S,) number of the first encoding for each seed.
        other: (S,) number of the second encoding for each seed.
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
    """Return the indices of the numbers that each division gives to the first encoding, (D, seeds).

    There are 2 * seeds numbers in total.
    """
    if seeds <= 8:
        return np.array(list(combinations(range(2 * seeds), seeds)))
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    chosen = rng.random((20_000, 2 * seeds)).argsort(1)[:, :seeds]
    chosen[0] = np.arange(seeds)  # the observed division is one of them
    return chosen
