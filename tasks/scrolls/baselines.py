"""Baselines: a constant answer and guesses, scored like answers of models."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np

from pe_bench.api import Items, Measurement, average
from pe_bench.tasks.scrolls.documents import Record
from pe_bench.tasks.scrolls.multiple_choice import options_of
from pe_bench.tasks.scrolls.questions import Questions
from pe_bench.tasks.scrolls.subsets import SUBSETS
from pe_bench.tasks.scrolls.text_metrics import Metric, score

RECORDS = 1000  # number of training records that baselines use
CANDIDATES = 50
LONG_CANDIDATES = 8
GUESSES = 10  # number of guesses per question; rows are means over them

MOST_CLASSES = 8
"""Maximum number of distinct answers that are treated as classes; a guess is uniform over them."""


def constant_answer(metric: Metric, train: Sequence[Record], *, candidates: int) -> str:
    """Return the answer with the best score as a constant answer to all training questions.

    Args:
        metric: metric of the score.
        train: training records; the first quarter of them is scored.
        candidates: number of the most frequent answers to try.
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
        options: the answers that each question offers. For a question without options, the guess
            is the answer to another question, or a class if there are few distinct answers.
        train: records of the other questions.
        seed: seed of the draws.
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


def words_of_answers(train: Sequence[Record]) -> list[set[str]]:
    """Return the set of words at each position in answers, for the most frequent answer length."""
    answers = [_words(output) for record in train for output in record.outputs]
    length = Counter(map(len, answers)).most_common(1)[0][0]
    known = []
    for index in range(length):
        known.append({words[index] for words in answers if len(words) > index})
    return known


def find_candidates(text: str, known: Sequence[set[str]]) -> list[str]:
    """Return the possible answers from words of an input, or the question's options if any.

    They consist of consecutive words of the input if these fit, otherwise of any distinct words.

    Args:
        text: the input.
        known: set of words for each position in an answer.
    """
    options = options_of(text)
    if options:
        return options
    length = len(known)
    words = _words(text)
    spans = list(zip(*(words[start:] for start in range(length)), strict=False))
    found = [span for span in spans if _fits(span, known)]
    if not found:
        distinct = list(dict.fromkeys(words))
        choices = []
        for fitting in known:
            choices.append([word for word in distinct if word in fitting])
        found = [drawn for drawn in product(*choices) if len({*drawn}) == length]
    return [" ".join(drawn) for drawn in dict.fromkeys(found)]


def _fits(words: Sequence[str], known: Sequence[set[str]]) -> bool:
    return all(word in fitting for word, fitting in zip(words, known, strict=True))


def measure_baselines(questions: Questions) -> dict[str, list[Measurement]]:
    """Return the rows of a constant answer, of guessing and of candidates, without their summary.

    Only built-in documents have candidates, because answers to real questions are rarely single
    words.
    """
    constant: list[Measurement] = []
    guessing: list[Measurement] = []
    candidate: list[Measurement] = []
    for subset, splits in questions.data.items():
        kind = SUBSETS[subset]
        train = splits["train"][:RECORDS]
        slow = kind.summary and not questions.builtin  # comparing long summaries takes seconds
        known = words_of_answers(train) if questions.builtin else []
        best = constant_answer(
            kind.metric, train, candidates=LONG_CANDIDATES if slow else CANDIDATES
        )
        for split in questions.splits(subset):
            records = questions.records(subset, split)
            constant += _rows(questions.score(subset, split, [best] * len(records)))
            seeds = range(1 if slow else GUESSES)
            options = [options_of(record.input) for record in records]
            drawn = [guesses(options, train, seed) for seed in seeds]
            guessing += average([_rows(questions.score(subset, split, some)) for some in drawn])
            if questions.builtin:
                options = [find_candidates(record.input, known) for record in records]
                drawn = [guesses(options, train, seed) for seed in seeds]
                scored = [_rows(questions.score(subset, split, some)) for some in drawn]
                candidate += average(scored)
    found = {"constant answer": constant, "guessing": guessing}
    return found | {"random candidate": candidate} if candidate else found


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _rows(items: Sequence[Items]) -> list[Measurement]:
    return [each.row() for each in items]
