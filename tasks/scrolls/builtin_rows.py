"""Training rows of built-in documents."""

import random

from pe_bench.api import Turn
from pe_bench.tasks.scrolls import miniature
from pe_bench.tasks.scrolls.prompts import QuestionLastFormat
from pe_bench.tasks.scrolls.subsets import SUBSETS

TRAIN_SHARES = (0.5, 0.5, 0.75, 1.0)
"""Length of the rows of a step, in turn: retrieval is learned sooner from short documents."""
TRAIN_SUBSETS = (
    *("qasper", "contract_nli", "narrative_qa", "qmsum", "quality"),
    *("qasper", "contract_nli", "narrative_qa", "qmsum", "summ_screen_fd", "gov_report"),
)
"""Subsets of the rows of a batch, in turn: those with many short questions come twice."""


def draw_rows(
    layout: QuestionLastFormat, tokens: int, length: int, seed: int, step: int
) -> list[list[Turn]]:
    """Return rows of all subsets, of short documents in most steps.

    Args:
        layout: of a row.
        tokens: of all rows together, about the same at every step.
        length: tokens of the longest documents.
        seed: of the run.
        step: of training.
    """
    rng = random.Random(f"batch-{seed}-{step}")
    size = max(miniature.LEAST_SIZE, int(TRAIN_SHARES[step % len(TRAIN_SHARES)] * length))
    count = max(1, tokens // size)
    samples = []
    for i in range(count):
        name = TRAIN_SUBSETS[(step * count + i) % len(TRAIN_SUBSETS)]
        number = rng.randrange(miniature.PERIOD)
        document = miniature.draw(SUBSETS[name].miniature, rng, size, first=number)
        turns = [Turn(layout.document(document.text))]
        for query, answer in document.questions:
            prompt = layout.question(query)
            turns.append(Turn(prompt, layout.output(answer, length)))
        samples.append(turns)
    return samples
