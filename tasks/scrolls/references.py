"""Answers of references: a constant one, and guesses."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from pe_bench.tasks.scrolls.documents import Record
from pe_bench.tasks.scrolls.text_metrics import Metric, score

MOST_CLASSES = 8
"""Answers of so few kinds are classes, between which a guess chooses evenly."""


def constant_answer(metric: Metric, train: Sequence[Record], *, candidates: int) -> str:
    """Return the answer that scores best where every question of training gets it.

    Args:
        metric: the score.
        train: records of training; the first quarter of them is scored.
        candidates: how many of the most frequent answers are tried.
    """
    counts = Counter(output for record in train for output in record.outputs)
    scored = [record.outputs for record in train[: max(candidates, len(train) // 4)]]
    best = ""
    highest = -1.0
    for answer, _ in counts.most_common(candidates):
        value = score(metric, [answer] * len(scored), scored)[metric]
        if value > highest:
            best, highest = answer, value
    return best


def guesses(options: Sequence[Sequence[str]], train: Sequence[Record], seed: int) -> list[str]:
    """Return a random answer to each question.

    Args:
        options: the answers that each question offers; empty: it offers none, and the guess is the
            answer to another question, or a class where there are few.
        train: the other questions.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    given = [output for record in train for output in record.outputs]
    classes = list(dict.fromkeys(given))
    pool = classes if len(classes) <= MOST_CLASSES else given
    answers = []
    for choices in options:
        drawn_from = choices or pool
        answers.append(drawn_from[int(rng.integers(len(drawn_from)))])
    return answers
