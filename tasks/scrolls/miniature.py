"""Seven built-in kinds of short documents that stand for those of SCROLLS, without a download.

Each kind has the record layout and the kind of answer of the subset that it stands for (Shaham et
al. 2022, arXiv:2201.03533). A document is a pile of facts of one form, "Near jars barn." No
thing has two facts in a document, so the thing that a question ends in, or a marker where nothing
is asked, identifies one fact; its answer is a value drawn evenly for that fact alone. No answer can
be told without finding its fact. Longer documents have no more facts, but other sentences between
them: what differs is how far away a fact is.
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from pe_bench.api import InputError
from pe_bench.tasks.scrolls.styles import LABELS, NAMES, STYLES, THINGS, Style, list_options

MOST_FACTS = 12  # of a document; longer ones have more other sentences
ASIDES = 0.1  # fraction of the sentences that are no facts
Item = TypeVar("Item")

SPLITS = ("train", "validation")
LEAST_SIZE = 56
PERIOD = 24  # questions after which classes of answers begin again
UNANSWERABLE_EVERY = 12  # paper questions, of which one asks for a thing without a fact


class Question(NamedTuple):
    """A question, empty where the whole document is to be summed up, and its answer."""

    query: str
    answer: str


class Document(NamedTuple):
    """A text and questions about it."""

    text: str
    questions: list[Question]


def draw(
    style: str,
    rng: random.Random,
    size: int,
    questions: int = 1,
    first: int = 0,
    most_facts: int = MOST_FACTS,
    words: int | None = None,
) -> Document:
    """Return a document and questions about different facts of it.

    Args:
        style: one of `STYLES`.
        rng: decides on everything.
        size: most tokens of a document together with a question and its answer.
        questions: how many; fewer where there are no more facts to ask for.
        first: number of the first question; classes of answers take turns from question to
            question.
        most_facts: of the document. `MOST_FACTS` fill a document of `size` with other sentences;
            fewer make a shorter one.
        words: drawn from, of every list the first; None: all. As many as `most_facts` at least.
    """
    form = STYLES[style]
    sizes = form.sizes
    answers = max(1, len(form.marked))
    room = size - 2 - sizes["heading"] - sizes["marked"]  # BOS and EOS
    room -= sizes["query"] + answers * (sizes["answer"] + 1)
    names = _shuffled(rng, THINGS[:words])
    facts: list[dict[str, str]] = []
    lines: list[str] = []
    for marked in form.marked:
        facts.append(_fact(form, rng, names.pop(), len(facts), words))
        lines.append(marked.format(**facts[-1]))
    while len(facts) < most_facts or most_facts == MOST_FACTS:
        is_aside = len(facts) == most_facts or (bool(facts) and rng.random() < ASIDES)
        room -= sizes["aside" if is_aside else "fact"]
        if room < 0:
            break
        fact = _fact(form, rng, names[-1], len(facts), words)
        if is_aside:
            lines.append(form.aside.format(**fact))
            continue
        names.pop()
        facts.append(fact)
        lines.append(form.fact.format(**fact))
    text = f"{form.heading}{form.joiner}{form.joiner.join(_shuffled(rng, lines))}"
    if form.marked:
        answer = ", ".join(form.answer.format(**fact) for fact in facts[: len(form.marked)])
        return Document(text, [Question("", answer)])
    return Document(text, list(_questions(form, rng, facts, names, questions, first)))


def question_size(style: str) -> int:
    """Return the tokens of a question that one token stands after."""
    return STYLES[style].sizes["query"] + 1


def draw_answer(style: str, rng: random.Random, words: int | None = None) -> str:
    """Return an answer that a question of this style might have, from the first `words`."""
    form = STYLES[style]
    fact = _fact(form, rng, "", rng.randrange(2), words)
    return LABELS.get(fact["c"], form.answer.format(**fact))


def _questions(
    form: Style,
    rng: random.Random,
    facts: list[dict[str, str]],
    things: list[str],
    count: int,
    first: int,
) -> Iterator[Question]:
    """Yield questions of all kinds in turn."""
    all_facts = facts
    if form is STYLES["inference"]:
        kinds = [*LABELS, ""]
    else:
        kinds = ["known"] * (UNANSWERABLE_EVERY - 1) + ["" if form.unknown else "known"]
    for number in range(first, first + count):
        kind = kinds[number % len(kinds)]
        if not kind:
            yield Question(form.query.format(b=_pick(rng, things)), form.unknown)
            continue
        fitting = [fact for fact in facts if kind in ("known", fact["c"])]
        if not fitting:
            continue
        fact = _pick(rng, fitting)
        facts = [other for other in facts if other is not fact]
        options = ""
        if "{options}" in form.query:
            stated = _shuffled(rng, [other["c"] for other in all_facts])
            others = dict.fromkeys([*stated, *_shuffled(rng, form.values[0])])
            del others[fact["c"]]
            options = list_options(_shuffled(rng, [fact["c"], *[*others][:3]]))
        answer = LABELS.get(fact["c"]) or form.answer.format(**fact)
        yield Question(form.query.format(**fact, options=options), answer)


def rows(
    style: str, split: str, n: int, size: int, *, seed: int = 0, questions: int = 1
) -> list[dict[str, str]]:
    """Return `n` documents with their questions as records, the same on every platform.

    Args:
        style: one of `STYLES`.
        split: one of `SPLITS`; they share no document.
        n: number of documents; a larger `n` only appends.
        size: most tokens of a document together with a question and its answer.
        seed: which documents.
        questions: about each document.

    Returns:
        Records of `id`, `pid`, `input` and `output`.

    Raises:
        InputError: an argument is out of its range.
    """
    if style not in STYLES:
        raise InputError(f"unknown style {style!r}; choose one of: {', '.join(STYLES)}.")
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r}; choose one of: {', '.join(SPLITS)}.")
    if n < 1:
        raise InputError(f"n={n} asks for no example; give 1 or more.")
    records = []
    for index in range(n):
        name = f"{style.replace(' ', '-')}-{split}-{size}-{seed}-{index}"
        document = draw(style, random.Random(name), size, questions, index * questions)
        for i, (query, answer) in enumerate(document.questions):
            text = f"{query}\n\n{document.text}" if query else document.text
            record = {"id": f"{name}-{i}", "pid": f"{name}-{i}_0", "input": text, "output": answer}
            records.append(record)
    return records


def _fact(
    form: Style, rng: random.Random, thing: str, number: int, words: int | None
) -> dict[str, str]:
    fact = {"a": _pick(rng, NAMES), "b": thing}
    for slot, values in zip("cd", form.values, strict=False):
        fact[slot] = _pick(rng, values[:words])
    if fact["c"] in LABELS:
        fact["c"] = [*LABELS][number % 2]  # so that there is something of either label
    return fact


def _pick(rng: random.Random, items: Sequence[Item]) -> Item:
    return items[int(rng.random() * len(items))]


def _shuffled(rng: random.Random, items: Sequence[Item]) -> list[Item]:
    """Return a shuffled copy, built on the one method that Python promises to keep: `random()`."""
    return sorted(items, key=lambda _: rng.random())
