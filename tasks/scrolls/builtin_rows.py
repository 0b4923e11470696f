"""Training rows of the built-in documents, for a model that learns retrieval from scratch."""

import random

from pe_bench.api import IGNORE, Batch, pad_rows
from pe_bench.tasks.scrolls import miniature
from pe_bench.tasks.scrolls.prompts import QuestionLastFormat
from pe_bench.tasks.scrolls.subsets import SUBSETS

FIRST_FRACTION = 0.25
"""Fraction of the steps with two facts per document, all documents from one subset.

Retrieval needs two layers that are useless without each other, so the loss stays constant until
both work. A model learns this sooner if there is little else to learn. Then it learns more words,
and then other kinds of documents. Without one of these stages, some seeds never learn.
"""
FEW_FRACTION = 0.15
"""Fraction of the steps with few words. randpe needs most of them to learn retrieval."""
FIRST_SUBSET, FIRST_FACTS, FIRST_WORDS = "narrative_qa", 2, 5
FACTS = (2, 2, 4, 2, 2, 12)
"""Number of facts per document in the later steps, in turn."""
SUBSET_TURNS = (
    *("qasper", "contract_nli", "narrative_qa", "qmsum"),
    *("qasper", "contract_nli", "narrative_qa", "qmsum", "summ_screen_fd", "gov_report", "qmsum"),
)
"""Subsets of the rows of the later steps, in turn. Subsets with questions occur more often."""
OPTIONS_SUBSET, OPTIONS_EVERY = "quality", 5
"""Subset with options, and its period: every fifth of the later steps has only such rows.

They are three times as long as others, so other rows of a batch would be padded to their length.
Five and the number of `FACTS` have no common divisor, so these rows have documents of all sizes.
"""


def draw_batch(
    layout: QuestionLastFormat, tokens: int, length: int, seed: int, step: int, done: float
) -> Batch:
    """Return rows of a document and questions about its facts.

    Only the last question is followed by its answer. Each other question is followed by a random
    possible answer. With right answers in the row, the model would learn to copy them.

    Args:
        layout: format of a row.
        tokens: approximate number of tokens of a batch.
        length: maximum number of tokens of a document with a question.
        seed: seed of the run.
        step: training step.
        done: fraction of the steps already done, see `FIRST_FRACTION` and `FEW_FRACTION`.

    Returns:
        Tokens and targets of shape (B, T).
    """
    rng = random.Random(f"batch-{seed}-{step}")
    turns: tuple[str, ...] = (FIRST_SUBSET,)
    facts = FIRST_FACTS
    words = FIRST_WORDS if done < FEW_FRACTION else None
    if done >= FIRST_FRACTION:
        turns = SUBSET_TURNS if step % OPTIONS_EVERY else (OPTIONS_SUBSET,)
        facts = FACTS[step % len(FACTS)]
    inputs: list[list[int]] = []
    targets: list[list[int]] = []
    used = 0
    while used < tokens:
        subset = SUBSETS[turns[(step + len(inputs)) % len(turns)]]
        ids, wanted = _row(layout, subset.miniature, length, rng, facts, words)
        inputs.append(ids)
        targets.append(wanted)
        used += len(ids)
    return Batch(pad_rows(inputs, layout.tokenizer.pad), pad_rows(targets, IGNORE))


def _row(
    layout: QuestionLastFormat,
    style: str,
    length: int,
    rng: random.Random,
    facts: int,
    words: int | None,
) -> tuple[list[int], list[int]]:
    """Return the ids of a row and its targets: the expected next id or IGNORE."""
    question_size = miniature.question_size(style)
    asked = max(1, min(facts, length // 2 // question_size))
    room = length - (asked - 1) * question_size
    number = rng.randrange(miniature.PERIOD)
    document = miniature.draw(style, rng, room, asked, number, facts, words)
    ids = layout.document(document.text)
    targets = [IGNORE] * len(ids)
    *others, last = document.questions
    for query, answer in others:
        question = layout.question(query)
        wanted, *_ = layout.output(answer, length)
        shown, *_ = layout.output(miniature.draw_answer(style, rng, words), length)
        ids += [*question, shown]
        targets += [*[IGNORE] * (len(question) - 1), wanted, IGNORE]
    question = layout.question(last.query)
    output = layout.output(last.answer, length)
    ids += [*question, *output[:-1]]
    targets += [IGNORE] * len(question)
    targets[-1:] = output  # the question's last token is followed by the answer
    return ids, targets
