"""Chance and the strongest reference: what the scores of models stand beside."""

from collections.abc import Mapping, Sequence

CHANCE = "guessing"
"""Name of the reference that knows which tokens answers consist of, and nothing else."""


def find_chance(names: Sequence[str]) -> str:
    """Return the name of the reference that stands for chance: guessing, or else the first one.

    Args:
        names: of a task's references, in their order, one at least.
    """
    return CHANCE if CHANCE in names else names[0]


def find_strongest(scores: Mapping[str, float], *, higher_is_better: bool) -> str:
    """Return the name of the best reference, of equal ones the first.

    Args:
        scores: of each reference, one at least.
        higher_is_better: direction of the scores.
    """
    best = max if higher_is_better else min
    return best(scores, key=lambda name: scores[name])
