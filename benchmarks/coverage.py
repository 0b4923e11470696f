"""Simulate where intervals miss the true value, for the limits that docs/results.md states.

    python benchmarks/coverage.py

- Failures: two encodings have equal true means. One has 98 %, or 20 % in the seeds in which it
  does not learn; the scores of the other one have a standard deviation of 3 points.
- Tau: five encodings have the same true means at two sizes, with a standard deviation of 1 between
  encodings and of 1 / ratio between seeds.
- Families: the scores of five families are drawn from a skewed distribution.
"""

import argparse

import numpy as np

from pe_bench.reporting.markdown import markdown_table
from pe_bench.stats.comparison import SeedScores, compare
from pe_bench.stats.ranking import TaskScores, find_standings
from pe_bench.stats.sizes import find_stability

SEEDS = (3, 5, 8)
FAILURES = (0.1, 0.2, 0.3)
LEARNED, FAILED = 98.0, 20.0  # %
RATIOS = (0.5, 1, 2, 4)
NAMES = ("a", "b", "c", "d", "e")
FAMILIES = 5
SHAPES = ((0.3, 0.9), (0.5, 1.5), (1.0, 1.0))  # of beta distributions; the last one is uniform


def main() -> None:
    """Print how often each interval contains the true value, in per cent."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--draws", type=int, default=1000, help="simulations of each cell")
    draws = parser.parse_args().draws
    columns = [f"{seeds} seeds, %" for seeds in SEEDS]
    rows = []
    for chance in FAILURES:
        rows.append([f"{chance:g}", *(_per_cent(failures(chance, n, draws)) for n in SEEDS)])
    print(markdown_table(["failures", *columns], rows, "r" * (1 + len(SEEDS))), end="\n\n")
    rows = []
    for ratio in RATIOS:
        rows.append([f"{ratio:g}", *(_per_cent(tau(ratio, n, draws)) for n in SEEDS)])
    print(markdown_table(["ratio", *columns], rows, "r" * (1 + len(SEEDS))), end="\n\n")
    rows = []
    for shape in SHAPES:
        rows.append([f"beta{shape}", _per_cent(families(shape, draws))])
    print(markdown_table(["families", "%"], rows, "lr"))


def failures(chance: float, seeds: int, draws: int) -> float:
    """Return how often the interval of a difference contains 0, its true value.

    Args:
        chance: probability that the first encoding does not learn in a seed.
        seeds: number of seeds.
        draws: number of simulations.
    """
    rng = np.random.default_rng([seeds, round(100 * chance)])
    mean = (1 - chance) * LEARNED + chance * FAILED
    found = 0
    for _ in range(draws):
        first = np.where(rng.random(seeds) < chance, FAILED, LEARNED) + rng.normal(size=seeds)
        second = mean + 3 * rng.normal(size=seeds)
        (one,) = compare(SeedScores(NAMES[:2], np.array([first, second])), [("a", "b")])
        found += one.low <= 0 <= one.high
    return found / draws


def tau(ratio: float, seeds: int, draws: int) -> float:
    """Return how often the interval of Kendall's tau contains 1, its true value."""
    rng = np.random.default_rng([seeds, round(10 * ratio)])
    found = 0
    for _ in range(draws):
        means = rng.normal(size=(len(NAMES), 1))
        sizes = []
        for _ in range(2):
            sizes.append(SeedScores(NAMES, means + rng.normal(size=(len(NAMES), seeds)) / ratio))
        (agreement,) = find_stability(sizes).agreements
        found += agreement.high >= 1 - 1e-9
    return found / draws


def families(shape: tuple[float, float], draws: int) -> float:
    """Return how often the interval over families contains the mean of a beta distribution."""
    rng = np.random.default_rng(round(10 * shape[0]))
    mean = shape[0] / sum(shape)
    found = 0
    for _ in range(draws):
        tasks = []
        for number, score in enumerate(rng.beta(*shape, size=FAMILIES)):
            scores = SeedScores(NAMES[:1], np.array([[score]]))
            tasks.append(TaskScores(f"task {number}", scores, True, 0.0, 1.0, f"family {number}"))
        (standing,) = find_standings(tasks)
        found += standing.score.low <= mean <= standing.score.high
    return found / draws


def _per_cent(fraction: float) -> str:
    return f"{100 * fraction:.0f}"


if __name__ == "__main__":
    main()
