"""Seven built-in kinds of short documents that replace SCROLLS, without a download.

Each kind has the record layout and the kind of answer of the subset that it replaces (Shaham et
al. 2022, arXiv:2201.03533). A document is a list of facts of one form, such as "Near jars barn."
No thing has two facts in a document, so the last word of a question identifies one fact. Documents
without a question have a marker instead. The answer is a value drawn uniformly and independently
for each fact, so no answer can be found without finding its fact. Longer documents do not have more
facts, but other sentences between them: only the distance of a fact differs.
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from pe_bench.api import InputError
from pe_bench.tasks.scrolls.styles import LABELS, NAMES, STYLES, THINGS, Style, list_options
from pe_bench.tasks.scrolls.subsets import SPLITS

MOST_FACTS = 12  # maximum number of facts; longer documents have more other sentences
ASIDES = 0.1  # fraction of sentences that are not facts
Item = TypeVar("Item")

LEAST_SIZE = 56
PERIOD = 24  # number of questions after which classes of answers repeat
UNANSWERABLE_EVERY = 12  # one of this many paper questions asks for a thing without a fact


class Question(NamedTuple):
    """A question and its answer. The question is empty for a summary of the whole document."""

    query: str
    answer: str


class Document(NamedTuple):
    """A text with questions about it."""

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
        rng: source of randomness.
        size: maximum number of tokens of a document with a question and its answer.
        questions: number of questions; fewer if there are not enough facts.
        first: index of the first question; classes of answers alternate between questions.
        most_facts: maximum number of facts. With `MOST_FACTS`, other sentences fill the document up
            to `size`; with fewer facts, the document is shorter.
        words: number of leading words of every list to draw from, at least `most_facts`; None: all.
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
    """Return the number of tokens of a question and the one token after it."""
    return STYLES[style].sizes["query"] + 1


def draw_answer(style: str, rng: random.Random, words: int | None = None) -> str:
    """Return a random possible answer of this style, from the first `words` of every list."""
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
    """Yield questions, cycling through their kinds."""
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
        split: one of `SPLITS`, which have no documents in common.
        n: number of documents; a larger `n` only appends.
        size: maximum number of tokens of a document with a question and its answer.
        seed: seed of the documents.
        questions: number of questions about each document.

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
        fact["c"] = [*LABELS][number % 2]  # alternate, so that both labels occur
    return fact


def _pick(rng: random.Random, items: Sequence[Item]) -> Item:
    return items[int(rng.random() * len(items))]


def _shuffled(rng: random.Random, items: Sequence[Item]) -> list[Item]:
    """Return a shuffled copy that depends only on `random()`, which Python keeps reproducible."""
    return sorted(items, key=lambda _: rng.random())
