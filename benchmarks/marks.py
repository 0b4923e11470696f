"""Simulate how often the mark of several sizes is right, for the table in docs/results.md.

    python benchmarks/marks.py

Five encodings have true means at three sizes. Between encodings, the means have a standard
deviation of 1; between seeds, scores have one of 1 / ratio, of which a quarter of the variance is
common to all encodings. Skewed scores fail now and then, and encodings differ in their spread. With
failures, the best encoding has a score that is 3 lower in a fifth of the seeds.
"""

import argparse
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pe_bench.reporting.markdown import markdown_table
from pe_bench.stats.comparison import SeedScores
from pe_bench.stats.sizes import find_stability, kendall_tau

Floats = npt.NDArray[np.float64]
NAMES = ("a", "b", "c", "d", "e")
SIZES = 3
TRUTHS = ("the same order", "another order", "two neighbours exchanged", "all equal")
MARKS = ("stable", "changes", "unknown")
SEEDS = (3, 5, 8)
RATIOS = (2, 4, 7)
NOISE = ("normal", "skewed", "failures")
FAILURES, LOSS = 0.2, 3.0
COMMON = 0.25  # of the variance between seeds
OTHER = 0.5  # upper limit of tau where the order is another one


def main() -> None:
    """Print the share of each mark in per cent, a row for each truth and kind of noise."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--draws", type=int, default=500, help="simulations of each cell")
    draws = parser.parse_args().draws
    rows = []
    for truth in TRUTHS:
        for ratio in RATIOS:
            for noise in NOISE:
                row = [truth, str(ratio), noise]
                for seeds in SEEDS:
                    counts = simulate(truth, ratio, seeds, draws, noise)
                    row.append(" / ".join(f"{100 * counts[mark] / draws:.1f}" for mark in MARKS))
                rows.append(row)
    columns = [f"{seeds} seeds: {' / '.join(MARKS)}, %" for seeds in SEEDS]
    print(markdown_table(["true orders", "ratio", "noise", *columns], rows, "lrlrrr"))


def simulate(truth: str, ratio: float, seeds: int, draws: int, noise: str) -> Counter[str]:
    """Return how often each mark is given."""
    rng = np.random.default_rng([TRUTHS.index(truth), ratio, seeds, NOISE.index(noise)])
    counts: Counter[str] = Counter()
    for _ in range(draws):
        sizes = []
        for means in draw_means(truth, rng):
            own = draw_noise(seeds, rng, skewed=noise == "skewed")
            values = means[:, None] + own / ratio  # (E, S)
            if noise == "failures":
                failed = rng.random(seeds) < FAILURES
                values[means.argmax()] -= LOSS * (failed - FAILURES)  # the true mean stays
            sizes.append(SeedScores(NAMES, values))
        counts[find_stability(sizes).mark] += 1
    return counts


def draw_means(truth: str, rng: np.random.Generator) -> Sequence[Floats]:
    """Return the true means of the encodings at each size, (E,) each."""
    means = rng.normal(size=len(NAMES))
    if truth == "all equal":
        return [np.zeros(len(NAMES))] * SIZES
    last = means.copy()
    if truth == "another order":
        while kendall_tau(means, last) >= OTHER:
            last = rng.normal(size=len(NAMES))
    if truth == "two neighbours exchanged":
        order = np.argsort(means)
        place = rng.integers(len(NAMES) - 1)
        pair = order[place : place + 2]
        last[pair] = means[pair[::-1]]
    return [means, means, last]


def draw_noise(seeds: int, rng: np.random.Generator, *, skewed: bool) -> Floats:
    """Return deviations of the scores from their true means, (E, S), with a variance of about 1."""
    shape = (len(NAMES), seeds)
    own = 1 - rng.exponential(size=shape) if skewed else rng.normal(size=shape)
    noise = COMMON**0.5 * rng.normal(size=seeds) + (1 - COMMON) ** 0.5 * own
    if skewed:
        spreads = np.exp(0.7 * rng.normal(size=len(NAMES)))
        noise *= (spreads / np.sqrt((spreads**2).mean()))[:, None]
    return noise


if __name__ == "__main__":
    main()
