"""Answers of a model to validation examples: generated text, and the likeliest of four options."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pe_bench.api import Decoder, Items, Journal, generate, progress
from pe_bench.tasks.scrolls.documents import Record
from pe_bench.tasks.scrolls.multiple_choice import accuracies, likeliest, options_of
from pe_bench.tasks.scrolls.official_scores import documents_of
from pe_bench.tasks.scrolls.questions import Questions
from pe_bench.tasks.scrolls.subsets import SUBSETS

TOKENS_PER_FORWARD = 65_536
BUILTIN_TOKENS_PER_FORWARD = 8192


def answer_subset(
    model: Decoder, subset: str, questions: Questions, seed: int, journal: Journal, *, strict: bool
) -> None:
    """Write the answers to a subset's questions to the journal, except those already in it.

    Args:
        model: model in evaluation mode.
        subset: name of the subset.
        questions: questions of every subset.
        seed: seed of sampled answers.
        journal: journal that keeps the answer to each example by its id.
        strict: whether to decode all answers greedily and to compare likelihoods of options.
    """
    tokens = BUILTIN_TOKENS_PER_FORWARD if questions.builtin else TOKENS_PER_FORWARD
    records = {split: questions.records(subset, split) for split in questions.splits(subset)}
    total = sum(map(len, records.values()))
    with progress(f"{subset} · generate", total, unit="item") as bar:
        for split, asked in records.items():
            size = max(1, tokens // questions.max_tokens(split))
            for first in range(0, len(asked), size):
                some = asked[first : first + size]
                if some[-1].id not in journal.items:
                    made = _answer(model, subset, questions, some, seed + first, strict=strict)
                    journal.add(made)
                bar.update(len(some))


def score_subset(subset: str, questions: Questions, journal: Journal) -> list[Items]:
    """Return the score of each example from the answers in a journal."""
    items: list[Items] = []
    for split in questions.splits(subset):
        records = questions.records(subset, split)
        answers = [journal.items[record.id] for record in records]
        length = questions.axis_length(subset, split)
        items += accuracies(subset, answers, documents_of(records), length)
        items += questions.score(subset, split, [answer["prediction"] for answer in answers])
    return items


def _answer(
    model: Decoder,
    subset: str,
    questions: Questions,
    records: Sequence[Record],
    seed: int,
    *,
    strict: bool,
) -> dict[str, Any]:
    """Return the journal entry of each record."""
    layout = questions.layout
    limit = questions.limits[subset]
    summary = SUBSETS[subset].summary
    sampling = None if strict else SUBSETS[subset].sampling
    if sampling:
        sampling = replace(sampling, seed=seed)
    room = questions.length - limit
    prompts = [layout.prompt(r.input, room, summary, training=False) for r in records]
    generated = generate(
        model,
        prompts,
        max_new_tokens=limit,
        end=layout.tokenizer.eos,
        sampling=sampling,
    )
    answers: dict[str, Any] = {}
    for record, prompt, ids in zip(records, prompts, generated, strict=True):
        answer: dict[str, Any] = {"prediction": layout.tokenizer.decode(ids).strip()}
        options = options_of(record.input) if strict and not questions.builtin else []
        if options:
            outputs = [layout.output(option, limit) for option in options]
            for metric, choice in likeliest(model, prompt, options, outputs).items():
                answer[metric] = options[choice] in record.outputs
        answers[record.id] = answer
    return answers
