"""References: a constant answer and guesses, measured as the answers of models are."""

import re
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


def random_candidates(
    records: Sequence[Record], train: Sequence[Record], otherwise: Sequence[str], seed: int
) -> list[str]:
    """Return an answer to each question that is drawn from the words of its input.

    Each word of the answer is one that training has at that place of an answer, and no other word
    again. They are consecutive words of the input where it has such, all equally likely. An answer
    has as many words as most in training. A question that offers answers gets one of these.

    Args:
        records: of the questions.
        train: the other questions.
        otherwise: a guess for each question, its answer where it offers some or where its input has
            no such words.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    given = [_words(output) for record in train for output in record.outputs]
    length = Counter(map(len, given)).most_common(1)[0][0]
    known = [{words[place] for words in given if len(words) > place} for place in range(length)]
    answers = []
    for record, guess in zip(records, otherwise, strict=True):
        if options_of(record.input):
            answers.append(guess)
            continue
        words = _words(record.input)
        spans = [words[start : start + length] for start in range(len(words) - length + 1)]
        candidates = {tuple(span): None for span in spans if _fits(span, known)}
        if not candidates:
            shuffled = list(dict.fromkeys(words[i] for i in rng.permutation(len(words))))
            candidates = {tuple(_pick_each(shuffled, known)): None}
        drawn = [*candidates][int(rng.integers(len(candidates)))]
        answers.append(" ".join(drawn) or guess)
    return answers


def _fits(words: Sequence[str], known: Sequence[set[str]]) -> bool:
    return all(word in place for word, place in zip(words, known, strict=True))


def _pick_each(words: Sequence[str], known: Sequence[set[str]]) -> list[str]:
    """Return the first word that fits each place and is at no earlier one, if there is any."""
    picked: list[str] = []
    for place in known:
        picked += [word for word in words if word in place and word not in picked][:1]
    return picked


def measure_references(questions: Questions) -> dict[str, list[Measurement]]:
    """Return the rows of a constant answer, of guessing and of candidates, without their summary.

    Only built-in documents have candidates: an answer to a real question is seldom a list of words.
    """
    constant: list[Measurement] = []
    guessing: list[Measurement] = []
    candidate: list[Measurement] = []
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
            guessed = []
            drawn = []
            for seed in range(1 if slow else GUESSES):
                answers = guesses(options, train, seed)
                guessed.append(_rows(questions.score(subset, split, answers)))
                if questions.builtin:
                    answers = random_candidates(records, train, answers, seed)
                    drawn.append(_rows(questions.score(subset, split, answers)))
            guessing += average(guessed)
            if drawn:
                candidate += average(drawn)
    found = {"constant answer": constant, "guessing": guessing}
    return found | {"random candidate": candidate} if candidate else found


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _rows(items: Sequence[Items]) -> list[Measurement]:
    return [each.row() for each in items]
