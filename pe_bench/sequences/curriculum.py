"""Rows of training for a model that learns from nothing to look up what a prompt says."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from pe_bench.config import IGNORE
from pe_bench.sequences.rows import PAD, Turn, pad_rows
from pe_bench.task import Batch

Word = TypeVar("Word")

FIRST_SHARE = 0.4
"""Share of the steps with two facts in a prompt, all of one subset.

Until a model has found out how to look up, which takes two layers that are of no use without each
other, its loss stays where it is. It finds out sooner where there is little else to learn: at first
there are few words, to which the others come little by little.
"""

FEW_SHARE = 0.1
"""Share of the steps with few words."""

ALL_SHARE = 0.3
"""Share of the steps after which all words are in use."""

FIRST_FACTS = 2
FEW_WORDS = 3


class Lesson(NamedTuple):
    """What the prompts of a step of training are about.

    Attributes:
        facts: number of facts in each; None: two or more, as many as fit.
        words: share of the words in use, where facts are few.
    """

    facts: int | None = None
    words: float = 1.0

    def in_use(self, words: Sequence[Word], least: int = 0) -> Sequence[Word]:
        """Return the words in use, no fewer than FEW_WORDS and `least`."""
        return words[: max(FEW_WORDS, least, round(self.words * len(words)))]


def lesson_at(done: float) -> Lesson:
    """Return the lesson after this share of the steps."""
    if done >= FIRST_SHARE:
        return Lesson()
    grown = (done - FEW_SHARE) / (ALL_SHARE - FEW_SHARE)
    return Lesson(FIRST_FACTS, min(max(grown, 0.0), 1.0))


def make_rows(samples: Sequence[Sequence[Turn]], rng: np.random.Generator) -> Batch:
    """Return prompts with several questions each as a batch.

    Only the last question is followed by its answer. The others are followed by the answer to
    another question of the batch, and the loss is on the first token that should be there: a row
    that shows its answers teaches to look there.

    Args:
        samples: a context, then questions with their answers.
        rng: source of everything that is random.

    Returns:
        Tokens and targets (B, T), padded on the right.
    """
    answers: dict[int, list[Sequence[int]]] = defaultdict(list)  # by their length
    for _, *turns in samples:
        for turn in turns:
            answers[len(turn.answer)].append(turn.answer)
    rows: list[list[int]] = []
    targets: list[list[int]] = []
    for context, *others, last in samples:
        ids = [*context.prompt]
        wanted = [IGNORE] * len(ids)
        for prompt, answer in others:
            alike = answers[len(answer)]
            shown = alike[rng.integers(len(alike))]
            ids += [*prompt, *shown]
            wanted += [IGNORE] * len(prompt)
            wanted[-1] = answer[0]  # the question's last token is followed by the answer
            wanted += [IGNORE] * len(shown)
        ids += [*last.prompt, *last.answer[:-1]]
        wanted += [IGNORE] * (len(last.prompt) - 1)
        wanted += last.answer
        rows.append(ids)
        targets.append(wanted)
    return Batch(pad_rows(rows, PAD), pad_rows(targets, IGNORE))
