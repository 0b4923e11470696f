"""References: a constant answer and guesses, measured as the answers of models are."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from pe_bench.api import Items, Measurement
from pe_bench.results.statistics import average
from pe_bench.tasks.scrolls.documents import Record
from pe_bench.tasks.scrolls.multiple_choice import options_of
from pe_bench.tasks.scrolls.questions import Questions
from pe_bench.tasks.scrolls.subsets import SUBSETS
from pe_bench.tasks.scrolls.text_metrics import Metric, score

RECORDS = 1000  # of training, that references know
CANDIDATES = 50
LONG_CANDIDATES = 8
GUESSES = 10  # rows are means over these

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


def measure_references(questions: Questions) -> dict[str, list[Measurement]]:
    """Return the rows of a constant answer and of guessing, without their summary."""
    constant: list[Measurement] = []
    guessing: list[Measurement] = []
    for subset, splits in questions.data.items():
        kind = SUBSETS[subset]
        train = splits["train"][:RECORDS]
        slow = kind.summary and not questions.builtin  # comparing long summaries takes seconds
        best = constant_answer(
            kind.metric, train, candidates=LONG_CANDIDATES if slow else CANDIDATES
        )
        for split in questions.splits(subset):
            records = questions.records(subset, split)
            constant += _rows(questions.score(subset, split, [best] * len(records)))
            options = [options_of(record.input) for record in records]
            drawn = []
            for seed in range(1 if slow else GUESSES):
                answers = guesses(options, train, seed)
                drawn.append(_rows(questions.score(subset, split, answers)))
            guessing += average(drawn)
    return {"constant answer": constant, "guessing": guessing}


def _rows(items: Sequence[Items]) -> list[Measurement]:
    return [each.row() for each in items]
