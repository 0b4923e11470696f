"""Training rows of the built-in documents, for a model that learns to look up from nothing."""

import random

from pe_bench.api import IGNORE, Batch, pad_rows
from pe_bench.tasks.scrolls import miniature
from pe_bench.tasks.scrolls.prompts import QuestionLastFormat
from pe_bench.tasks.scrolls.subsets import SUBSETS

FIRST_SHARE = 0.25
"""Fraction of the steps with two facts each, all of one subset.

Until a model has found out how to look up, which takes two layers that are of no use without each
other, its loss stays where it is. It finds out sooner where there is little else to learn; then it
learns more words, and then other kinds of documents. Without one of these stages some seeds stay.
"""
FEW_SHARE = 0.15
"""Fraction of the steps with few words: randpe takes most of them to find out."""
FIRST_SUBSET, FIRST_FACTS, FIRST_WORDS = "narrative_qa", 2, 5
FACTS = (2, 2, 4, 2, 2, 12)
"""Facts of the documents of the later steps, in turn."""
SUBSET_TURNS = (
    *("qasper", "contract_nli", "narrative_qa", "qmsum"),
    *("qasper", "contract_nli", "narrative_qa", "qmsum", "summ_screen_fd", "gov_report", "qmsum"),
)
"""Subsets of the rows of the later steps, in turn: those with questions more often."""
OPTIONS_SUBSET, OPTIONS_EVERY = "quality", 5
"""Rows of questions with options, which every fifth of the later steps has and no other.

They are three times as long as others, which would all be padded to their length. Five has no
divisor in common with the number of `FACTS`, so these rows have documents of all sizes too.
"""


def draw_batch(
    layout: QuestionLastFormat, tokens: int, length: int, seed: int, step: int, done: float
) -> Batch:
    """Return rows of a document and questions about its facts.

    Only the last question is followed by its answer. The others are followed by a word that their
    answer might have been: a row that shows what it has answered teaches to look there.

    Args:
        layout: of a row.
        tokens: of all rows together, about the same at every step.
        length: tokens of the longest documents with a question.
        seed: of the run.
        step: of training.
        done: fraction of the steps that came before, see `FIRST_SHARE` and `FEW_SHARE`.

    Returns:
        Tokens and targets of shape (B, T).
    """
    rng = random.Random(f"batch-{seed}-{step}")
    turns: tuple[str, ...] = (FIRST_SUBSET,)
    facts = FIRST_FACTS
    words = FIRST_WORDS if done < FEW_SHARE else None
    if done >= FIRST_SHARE:
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
    """Return the ids of a row and, at the place of each, the id to be written next or IGNORE."""
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
