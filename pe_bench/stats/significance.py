"""Tests of significance: Student's t, sign flips of seeds, and Holm's correction."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

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
FEWEST_SEEDS = 5
"""With four, skewed scores give false claims too often (simulated in tests/test_comparison.py)."""

MOST_EXACT = 16  # seeds for which all sign flips are tried


def smallest_flip_p(seeds: int) -> float:
    """Return the smallest two-sided p-value of sign flips with a number of seeds."""
    return min(1.0, 2.0 ** (1 - seeds))


FLIPS_NEED = {6: 1.26, 7: 1.06, 8: 1.04, 9: 1.03, 10: 1.02}
"""Factor of the difference that a t-test shows, for which sign flips reach 5 % too."""

MOST_SEARCHED = 1000  # seeds; larger numbers are approximate


@dataclass(frozen=True)
class ItemError:
    """The error of a difference from the choice of items, which more seeds do not reduce.

    Attributes:
        variance: variance of the difference.
        degrees: degrees of freedom of the variance.
    """

    variance: float = 0.0
    degrees: float = math.inf


NO_ITEMS = ItemError()


def seeds_to_show(
    effect: float, spread: float, comparisons: int, items: ItemError = NO_ITEMS
) -> int | None:
    """Return the smallest number of seeds that shows a true difference, see `effect_to_show`.

    Args:
        effect: the difference, not 0.
        spread: standard deviation of the difference over seeds.
        comparisons: number of comparisons.
        items: error from the items.

    Returns:
        The number of seeds; None: no number of seeds shows it with these items.
    """
    beyond = float(ndtri(1 - LEVEL / (2 * comparisons)))
    left = (effect / (beyond + float(ndtri(POWER)))) ** 2 - items.variance  # for the seeds
    if left <= 0:
        return None
    # Student's t instead of the normal distribution needs beyond^2 / 2 more seeds (Guenther 1981).
    about = math.ceil(spread**2 / left + beyond**2 / 2)
    if about > MOST_SEARCHED:
        return about
    for seeds in range(max(FEWEST_SEEDS, about - 3), 2 * MOST_SEARCHED):
        if effect_to_show(seeds, spread, comparisons, items) <= abs(effect):
            return seeds
    return None


def effect_to_show(
    seeds: int, spread: float, comparisons: int = 1, items: ItemError = NO_ITEMS
) -> float:
    """Return the smallest true difference that some seeds show with a power of 80 %.

    The test is that of `compare_asked`: a paired t-test, and sign flips from six seeds on.

    Args:
        seeds: number of seeds; inf is the result for fewer than `FEWEST_SEEDS`.
        spread: standard deviation of the difference over seeds.
        comparisons: number of comparisons; the level is the strictest one of Holm's correction.
        items: error from the items; by default, the result is that for any number of items.
    """
    if seeds < FEWEST_SEEDS:
        return math.inf
    of_seeds = spread**2 / seeds
    error = math.sqrt(of_seeds + items.variance)
    if error == 0:
        return 0.0
    parts = of_seeds**2 / (seeds - 1) + items.variance**2 / items.degrees
    corrected = _shown(error**4 / parts, comparisons) * error
    flips = FLIPS_NEED.get(seeds, 1.0) * _shown(seeds - 1, 1) * math.sqrt(of_seeds)
    return max(flips, corrected)  # sign flips are not corrected


def _shown(degrees: float, comparisons: int) -> float:
    """Return the true t that a t-test shows with a power of 80 %."""
    return float(nctdtrinc(degrees, 1 - POWER, student_quantile(degrees, comparisons)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979), in the given order."""
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for step, index in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, (len(p_values) - step) * p_values[index])
        corrected[index] = min(1.0, largest)
    return corrected


def student_tail(t: float, degrees: float) -> float:
    """Return the two-sided p-value of Student's t."""
    return float(2 * stdtr(degrees, -abs(t)))


def student_quantile(degrees: float, comparisons: int = 1) -> float:
    """Return the two-sided 5 % critical value of Student's t, corrected after Bonferroni."""
    return float(stdtrit(degrees, 1 - LEVEL / comparisons / 2))


def sign_flip_p(differences: Floats) -> float:
    """Return the two-sided p-value of flipping the signs of paired differences.

    The test assumes only that a difference and its negative are equally likely if the encodings
    are equal. It uses all flips for up to 16 seeds, and 20,000 random ones for more seeds.

    Args:
        differences: (S,) difference for each seed.
    """
    if not len(differences):
        return 1.0
    sums = np.abs(_flips(len(differences)) @ differences)  # (F,)
    observed = abs(differences.sum())
    return float((sums >= observed - 1e-9 * np.abs(differences).sum()).mean())


@lru_cache(maxsize=8)
def _flips(seeds: int) -> Floats:
    """Return signs of the differences, (F, seeds); the first flip changes nothing."""
    if seeds <= MOST_EXACT:
        return np.array(list(product([1.0, -1.0], repeat=seeds)))
    signs = np.random.default_rng(BOOTSTRAP_SEED).choice([1.0, -1.0], (20_000, seeds))
    signs[0] = 1
    return signs
