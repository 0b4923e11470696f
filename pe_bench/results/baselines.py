"""Chance and the strongest baseline, for comparison with the scores of models."""

from collections.abc import Mapping, Sequence

CHANCE = "guessing"
"""Name of the baseline that draws uniformly from the tokens that occur in answers."""


def find_chance(names: Sequence[str]) -> str:
    """Return the name of the baseline that represents chance: guessing, or else the first one.

    Args:
        names: names of the baselines of a task, in order; at least one.
    """
    return CHANCE if CHANCE in names else names[0]


def find_strongest(scores: Mapping[str, float], *, higher_is_better: bool) -> str:
    """Return the name of the best baseline, the first one if several are equal.

    Args:
        scores: score of each baseline; at least one.
        higher_is_better: direction of the scores.
    """
    best = max if higher_is_better else min
    return best(scores, key=lambda name: scores[name])
