"""Does the order of encodings hold at another size of the model? Kendall's tau and a mark.

Tau compares the orders of the same encodings at two sizes: the fraction of pairs of encodings in
the same order minus the fraction in the opposite order. Its interval comes from means that are
drawn from their error over seeds. In these draws, the difference of two encodings has the
t-distribution of the paired t-test. Resampling three seeds would not do: a difference with the same
sign in all of them would never change its sign. Each size is drawn by itself, because sizes need
not have the same seeds.

The mark of two or more sizes follows this rule:

- **changes**: two encodings are significantly ordered one way at one size and the other way at
  another one (the test of `compare_asked`, corrected for all pairs at all sizes). Or the interval
  of a tau lies below `SAME_ORDER`, and the orders at both sizes are settled: the tau between the
  means of a size and its own drawn means is rarely below `SAME_ORDER`. Without the second
  condition, encodings that are equal would seem to change their order.
- **stable**: none of these, and the interval of every tau lies at or above `SAME_ORDER`.
- **unknown**: everything else.

The test takes five seeds at both sizes. With three seeds, the mark depends on tau alone: it can say
that an order holds or changes as a whole, but not that one pair of encodings has changed places.
Encodings that are close to each other then make the mark unknown.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from pe_bench.results.intervals import BOOTSTRAP_SEED
from pe_bench.results.items import Floats
from pe_bench.stats.comparison import RESAMPLES, Difference, SeedScores, compare_asked
from pe_bench.stats.significance import LEVEL

OrderVerdict = Literal["stable", "changes", "unknown"]

SAME_ORDER = 0.6
"""Tau at which 80 % of the pairs of encodings have the same order."""

FEWEST_ENCODINGS = 3  # two have only two orders
SEEDS_OF_AN_INTERVAL = 3  # the variance of two is too uncertain
TAU_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Agreement:
    """Kendall's tau between the orders of encodings at two sizes.

    Attributes:
        first, second: indices of the two sizes, from 0 for the smallest.
        tau: tau-b of the mean scores; nan if all encodings have the same mean at a size.
        low, high: 95 % interval; nan with fewer than three seeds at a size.
        settled: whether the order at each of the two sizes is settled.
    """

    first: int
    second: int
    tau: float
    low: float
    high: float
    settled: bool


@dataclass(frozen=True)
class Reversal:
    """Two encodings with significant differences in both directions.

    Attributes:
        encodings: the two encodings.
        first, second: differences at the smaller and at the larger size.
        indices: indices of the two sizes.
    """

    encodings: tuple[str, str]
    first: Difference
    second: Difference
    indices: tuple[int, int]


@dataclass(frozen=True)
class Stability:
    """Whether the order of encodings is the same at several sizes.

    Attributes:
        agreements: tau between neighbouring sizes, then between the smallest and the largest.
        reversals: pairs of encodings whose order changes significantly.
        mark: the result of the rule above.
    """

    agreements: tuple[Agreement, ...]
    reversals: tuple[Reversal, ...]
    mark: OrderVerdict


def find_stability(sizes: Sequence[SeedScores]) -> Stability:
    """Return whether the order of encodings is the same at several sizes.

    Args:
        sizes: the numbers at each size, the smallest size first; all have the same encodings in the
            same order.
    """
    values = [complete_seeds(size.values) for size in sizes]  # (E, S) each
    means = [_mean(one) for one in values]  # (E,) each
    drawn = [draw_means(one, index) for index, one in enumerate(values)]  # (B, E) each
    settled = []
    for mean, again in zip(means, drawn, strict=True):
        low, _ = _interval(kendall_tau(mean, again), 1.0)
        settled.append(low >= SAME_ORDER - TAU_TOLERANCE)
    agreements = []
    for first, second in _compared(len(sizes)):
        tau = float(kendall_tau(means[first], means[second]))
        low, high = _interval(kendall_tau(drawn[first], drawn[second]), tau)
        both = settled[first] and settled[second]
        agreements.append(Agreement(first, second, tau, low, high, both))
    reversals = find_reversals(sizes)
    mark = decide(agreements, reversals, len(sizes[0].encodings))
    return Stability(tuple(agreements), tuple(reversals), mark)


def decide(
    agreements: Sequence[Agreement], reversals: Sequence[Reversal], encodings: int
) -> OrderVerdict:
    """Return the mark of an order of encodings, by the rule of this module.

    Args:
        agreements: tau between the sizes.
        reversals: pairs of encodings whose order changes significantly.
        encodings: number of encodings.
    """
    if reversals:
        return "changes"
    if encodings < FEWEST_ENCODINGS:
        return "unknown"
    if any(one.settled and one.high < SAME_ORDER - TAU_TOLERANCE for one in agreements):
        return "changes"
    if all(one.low >= SAME_ORDER - TAU_TOLERANCE for one in agreements):
        return "stable"
    return "unknown"


def find_reversals(sizes: Sequence[SeedScores]) -> list[Reversal]:
    """Return the pairs of encodings whose order differs significantly between two sizes.

    The differences of all pairs at all sizes are corrected together. A pair occurs once, with the
    sizes that are farthest apart.
    """
    pairs = list(combinations(sizes[0].encodings, 2))
    asked = [(size, first, second) for size in sizes for first, second in pairs]
    differences = compare_asked(asked)
    found = []
    for number, pair in enumerate(pairs):
        own = differences[number :: len(pairs)]  # one for each size
        shown = [index for index, one in enumerate(own) if one.significant]
        opposite = [
            (first, second)
            for first, second in combinations(shown, 2)
            if own[first].value * own[second].value < 0
        ]
        if opposite:
            first, second = max(opposite, key=lambda indices: indices[1] - indices[0])
            found.append(Reversal(pair, own[first], own[second], (first, second)))
    return found


def kendall_tau(first: Floats, second: Floats) -> Floats:
    """Return Kendall's tau-b along the last axis, as scipy.stats.kendalltau.

    Args:
        first, second: (..., E) scores of the same encodings. Equal scores are ties.

    Returns:
        (...); nan where all scores of `first` or of `second` are equal.
    """
    one, other = _signs(first), _signs(second)  # (..., P)
    untied = (one**2).sum(-1) * (other**2).sum(-1)
    with np.errstate(invalid="ignore"):
        found: Floats = (one * other).sum(-1) / np.sqrt(untied)
    return found


def complete_seeds(values: Floats) -> Floats:
    """Return the seeds (E, S) of numbers that no encoding lacks."""
    return values[:, np.isfinite(values).all(0)]


def draw_means(values: Floats, stream: int = 0) -> Floats:
    """Return means (B, E) over seeds with errors drawn from their t-distribution.

    The errors of the encodings of a draw come from the same seeds, so what makes a seed easy or
    hard for all encodings does not change their order.

    Args:
        values: (E, S) number of each encoding and seed, none missing.
        stream: number of the random stream, another one for each size.

    Returns:
        The means; nan with fewer than three seeds.
    """
    seeds = values.shape[1]
    if seeds < SEEDS_OF_AN_INTERVAL:
        return np.full((RESAMPLES, len(values)), math.nan)
    rng = np.random.default_rng([BOOTSTRAP_SEED, stream])
    normal = rng.standard_normal((RESAMPLES, seeds))  # (B, S)
    spread = np.sqrt(rng.chisquare(seeds - 1, (RESAMPLES, 1)) / (seeds - 1))  # (B, 1)
    means = values.mean(1)  # (E,)
    deviations = (values.T - means) / math.sqrt(seeds * (seeds - 1))  # (S, E)
    drawn: Floats = means + normal / spread @ deviations  # (B, E)
    return drawn


def _mean(values: Floats) -> Floats:
    """Return the means (E,) of numbers (E, S); nan without a seed."""
    if not values.shape[1]:
        return np.full(len(values), math.nan)
    return np.asarray(values.mean(1))


def _compared(sizes: int) -> list[tuple[int, int]]:
    """Return the pairs of sizes that are compared: neighbours, then the ends."""
    found = [(index, index + 1) for index in range(sizes - 1)]
    return found if sizes == 2 else [*found, (0, sizes - 1)]


def _interval(drawn: Floats, tau: float) -> tuple[float, float]:
    """Return the central 95 % of drawn taus, widened to `tau`; nan where there is none."""
    known = drawn[np.isfinite(drawn)]
    if math.isnan(tau) or not len(known):
        return math.nan, math.nan
    low = float(np.quantile(known, LEVEL / 2, method="lower"))
    high = float(np.quantile(known, 1 - LEVEL / 2, method="higher"))
    return min(low, tau), max(high, tau)


def _signs(scores: Floats) -> Floats:
    """Return the sign of the difference of each pair of encodings, (..., P), from (..., E)."""
    first, second = np.triu_indices(scores.shape[-1], 1)
    found: Floats = np.sign(scores[..., first] - scores[..., second])
    return found
