"""The built-in documents: only the document determines the answer."""

import hashlib
import json
import random
import re
from collections import Counter
from itertools import product

import pytest
from helpers import some_slow

from pe_bench.errors import InputError
from pe_bench.tasks.scrolls.miniature import draw, draw_answer, rows
from pe_bench.tasks.scrolls.prompts import QuestionLastFormat
from pe_bench.tasks.scrolls.styles import STYLES, tokenizer, tokens
from pe_bench.tasks.scrolls.subsets import SPLITS, SUBSETS
from pe_bench.tasks.scrolls.text_metrics import normalize_answer, score

FROZEN = "49e53d356d9d81d35e60fe505d0edad80563d1afe46c0dbf0b4469a73642705c"
SIZES = (56, 128, 256, 512)
QUICK = 128
FACTS = {
    "paper question": r"On (\w+) (\w+)\.",
    "inference": r"Selling (\w+) (\w+)\.",
    "story question": r"Near (\w+) (\w+)\.",
    "multiple choice": r"For (\w+) (\w+)\.",
    "meeting query": r"Paint (\w+) (\w+ \w+)\.",
    "screenplay": r"The \w+ has \w+\.",
    "report": r"The \w+ had \w+\.",
}
MARKED = {
    "screenplay": (r"\[The (\w+) reveals \w+\.\]", r"\[The (\w+) conceals \w+\.\]"),
    "report": (r"The (\w+) needed \w+\.", r"The (\w+) deserved \w+\."),
}
UNKNOWN = {"Unanswerable", "Not mentioned"}
METRICS = {subset.miniature: subset.metric for subset in SUBSETS.values()}


def split_query(style: str, text: str) -> tuple[str, str]:
    """Return query and document."""
    query, _, document = text.rpartition("\n\n")
    assert bool(query) == (style not in MARKED)
    return query, document


def solve(style: str, text: str) -> str:
    """Return the answer by reading the document."""
    query, document = split_query(style, text)
    if style in MARKED:
        found = [re.findall(pattern, document) for pattern in MARKED[style]]
        assert all(len(values) == 1 for values in found)
        return ", ".join(values[0] for values in found)
    facts = re.findall(FACTS[style], document)
    values = dict(facts)
    assert len(values) == len(facts)  # no thing has two
    value = values.get(query.split("\n")[0].split()[-1], "")
    if style == "inference":
        return {"permitted": "Entailment", "forbidden": "Contradiction", "": "Not mentioned"}[value]
    if style == "multiple choice":
        options = re.findall(r"^ \(([A-D])\) (\w+)$", query, re.MULTILINE)
        assert [letter for letter, _ in options] == list("ABCD")
        assert len({option for _, option in options}) == 4
        assert value in {option for _, option in options}
    return value or "Unanswerable"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("style", STYLES)
def test_the_document_answers_at_the_size_asked_for(style: str, split: str, size: int) -> None:
    longest = 0
    words = tokenizer()
    form = QuestionLastFormat(words)
    for record in rows(style, split, 24, size):
        assert list(record) == ["id", "pid", "input", "output"]
        assert solve(style, record["input"]) == record["output"]
        used = len(form.prompt(record["input"], 0, False, False))
        used += len(form.output(record["output"], 99))
        assert len(words.encode(f" {record['output']}")) == len(tokens(f" {record['output']}"))
        assert used <= size
        longest = max(longest, used)
    assert longest > size - 12


@pytest.mark.parametrize("style", STYLES)
def test_a_document_of_trained_length_holds_a_dozen_facts(style: str) -> None:
    counts = []
    for record in rows(style, "validation", 120, QUICK):
        document = split_query(style, record["input"])[1]
        patterns = [FACTS[style], *MARKED.get(style, ())]
        counts.append(sum(len(re.findall(pattern, document)) for pattern in patterns))
    assert max(counts) == 12
    assert sum(counts) / len(counts) > 11.5


@pytest.mark.parametrize("style", some_slow(STYLES, everyday=("inference", "story question")))
def test_no_constant_answer_scores(style: str) -> None:
    """This holds for every given answer and for the most frequent words of all answers."""
    records = rows(style, "validation", 120, QUICK)
    references = [[record["output"]] for record in records]
    counts = Counter(word for [text] in references for word in normalize_answer(text).split())
    frequent = [word for word, _ in counts.most_common(4)]
    answers = {text for [text] in references}
    answers |= {" ".join(frequent[:n]) for n in range(1, 5)}
    metric = METRICS[style]
    best = max(score(metric, [text] * 120, references)[metric] for text in answers)
    assert best <= (100 / 3 + 1e-9 if style == "inference" else 15)


def test_options_and_words_of_the_question_tell_nothing() -> None:
    """The document states every option, and each option is right in a quarter of all questions."""
    letters: Counter[str] = Counter()
    stated = []
    for record in rows("multiple choice", "train", 400, QUICK):
        query, document = record["input"].rsplit("\n\n", 1)
        options = re.findall(r"\((\w)\) (\w+)", query)
        letters.update(letter for letter, option in options if option == record["output"])
        stated.append(sum(f" {option}." in document for _, option in options))
    assert max(letters.values()) < 130
    assert sum(stated) / len(stated) > 3.7


def test_classes_balance() -> None:
    labels = Counter(record["output"] for record in rows("inference", "train", 120, QUICK))
    assert labels == {"Entailment": 40, "Contradiction": 40, "Not mentioned": 40}
    papers = Counter(record["output"] for record in rows("paper question", "train", 120, QUICK))
    assert papers["Unanswerable"] == 10


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_ids_are_unique_and_splits_share_no_document(style: str) -> None:
    documents: set[str] = set()
    ids: set[str] = set()
    for split, seed in product(SPLITS, (0, 1)):
        records = rows(style, split, 200, QUICK, seed=seed)
        ids |= {record["pid"] for record in records}
        documents |= {split_query(style, record["input"])[1] for record in records}
    rng = random.Random("batch-0-0")  # as in training
    documents |= {draw(style, rng, QUICK).text for _ in range(200)}
    assert len(ids) == 800
    assert len(documents) == 1000


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("facts", "words"), [(2, 3), (2, None), (4, None), (12, None)])
def test_each_question_of_a_document_is_about_another_fact(
    style: str, facts: int, words: int | None
) -> None:
    rng = random.Random(5)
    for _ in range(50):
        document = draw(style, rng, QUICK, facts, rng.randrange(24), facts, words)
        for query, answer in document.questions:
            text = f"{query}\n\n{document.text}" if query else document.text
            assert solve(style, text) == answer
        known = [query for query, answer in document.questions if answer not in UNKNOWN]
        assert len({query.split("\n")[0] for query in known}) == len(known)
        if style not in MARKED:
            assert len(re.findall(FACTS[style], document.text)) <= facts


@pytest.mark.parametrize("style", STYLES)
def test_a_drawn_answer_is_one_that_might_be(style: str) -> None:
    rng = random.Random(5)
    drawn = {draw_answer(style, rng) for _ in range(5000)}
    few = {draw_answer(style, rng, words=3) for _ in range(500)}
    answers = {
        word for r in rows(style, "train", 200, QUICK) for word in r["output"].split(", ")
    } - UNKNOWN
    if style == "meeting query":
        assert few < drawn and len(few) == 9
    else:
        assert answers <= drawn
        assert len(few) == (2 if style == "inference" else 3)


def test_answers_lie_at_every_depth() -> None:
    depths: Counter[int] = Counter()
    for record in rows("story question", "train", 300, 320):
        query, document = split_query("story question", record["input"])
        depths[int(4 * document.index(f"{query} ") / len(document))] += 1
    assert min(depths.values()) > 50


def test_longer_documents_have_no_more_facts_but_other_sentences() -> None:
    for size in (256, 512, 2000):
        for record in rows("inference", "validation", 12, size):
            assert len(re.findall(FACTS["inference"], record["input"])) == 12
            assert len(re.findall(r"\w+ signs\.", record["input"])) > size / 6


def test_records_are_frozen() -> None:
    """If records changed, earlier and later measurements would not be comparable."""
    sample = [rows(style, split, 20, 160, seed=3) for style in STYLES for split in SPLITS]
    assert hashlib.sha256(json.dumps(sample).encode()).hexdigest() == FROZEN


@pytest.mark.parametrize("style", STYLES)
def test_a_larger_n_only_appends(style: str) -> None:
    few, many = rows(style, "train", 5, QUICK), rows(style, "train", 9, QUICK)
    assert many[: len(few)] == few
    assert rows(style, "train", 5, QUICK, seed=1)[0]["input"] != few[0]["input"]


@pytest.mark.parametrize(
    ("style", "split", "n", "message"),
    [
        ("poem", "train", 1, "unknown style 'poem'; choose one of: paper question, "),
        ("report", "test", 1, "unknown split 'test'; choose one of: train, validation."),
        ("report", "train", 0, "n=0 asks for no example; give 1 or more."),
    ],
)
def test_bad_input_is_named(style: str, split: str, n: int, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        rows(style, split, n, QUICK)
