"""Training curriculum for retrieval from the prompt, for models trained from scratch."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from pe_bench.config import IGNORE
from pe_bench.sequences.rows import PAD, Turn, pad_rows
from pe_bench.task import Batch

Word = TypeVar("Word")

FIRST_FRACTION = 0.4
"""Fraction of the steps with two facts in a prompt, all prompts from one subset.

Retrieval needs two layers that are useless without each other, so the loss stays constant until
both work. A model learns this sooner if there is little else to learn. The first stage therefore
uses few words and adds the others gradually.
"""

FEW_FRACTION = 0.1
"""Fraction of the steps with few words."""

ALL_FRACTION = 0.3
"""Fraction of the steps after which all words are in use."""

FIRST_FACTS = 2
FEW_WORDS = 3


class Stage(NamedTuple):
    """A stage of the curriculum: the content of the prompts in a training step.

    Attributes:
        facts: number of facts in each prompt; None: as many as fit, at least two.
        words: fraction of the words in use.
    """

    facts: int | None = None
    words: float = 1.0

    def in_use(self, words: Sequence[Word], least: int = 0) -> Sequence[Word]:
        """Return the words in use, at least FEW_WORDS and at least `least`."""
        return words[: max(FEW_WORDS, least, round(self.words * len(words)))]


def stage_at(done: float) -> Stage:
    """Return the stage after the fraction `done` of the steps."""
    if done >= FIRST_FRACTION:
        return Stage()
    grown = (done - FEW_FRACTION) / (ALL_FRACTION - FEW_FRACTION)
    return Stage(FIRST_FACTS, min(max(grown, 0.0), 1.0))


def make_rows(samples: Sequence[Sequence[Turn]], rng: np.random.Generator) -> Batch:
    """Return prompts with several questions each as a batch.

    Only the last question is followed by its answer. Each other question is followed by the answer
    to a random question of the batch, and its loss is on the first token of the right answer. With
    right answers in the row, the model would learn to copy them.

    Args:
        samples: for each row a context, then questions with their answers.
        rng: source of randomness.

    Returns:
        Tokens and targets (B, T), padded on the right.
    """
    answers: dict[int, list[Sequence[int]]] = defaultdict(list)  # by number of tokens
    for _, *turns in samples:
        for turn in turns:
            answers[len(turn.answer)].append(turn.answer)
    rows: list[list[int]] = []
    targets: list[list[int]] = []
    for context, *others, last in samples:
        ids = [*context.prompt]
        wanted = [IGNORE] * len(ids)
        for prompt, answer in others:
            as_long = answers[len(answer)]
            shown = as_long[rng.integers(len(as_long))]
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
