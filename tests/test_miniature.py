"""The built-in miniature: every answer is in its document, and the records never change."""

import hashlib
import itertools
import json
import re
from collections import Counter

import pytest
from helpers import some_slow

from pe_bench.errors import InputError
from pe_bench.tasks.scrolls.miniature import LENGTHS, SPLITS, STYLES, rows

FROZEN = "104dabe83966f864ccaf3f7992ada952c527f8bb30980b703cba09a9adb3129e"


def match(pattern: str, text: str) -> tuple[str, ...]:
    """The groups of the one place where the pattern occurs."""
    found = list(re.finditer(pattern, text))
    assert len(found) == 1, (pattern, text)
    return found[0].groups()


def solve_paper(query: str, document: str) -> set[str]:
    if yes_no := re.fullmatch(r"Does the (\w+) model use (\w+) on (\w+) data\?", query):
        name, used, data = yes_no.groups()
        stated = match(rf"The {name} model uses (\w+) on {data} data\.", document)
        return {"Yes" if stated == (used,) else "No"}
    name, data = match(r"^What does the (\w+) model use on (\w+) data\?$", query)
    if not re.search(rf"The {name} model uses \w+ on {data} data", document):
        return {"Unanswerable"}
    return set(match(rf"The {name} model uses (\w+) on {data} data\.", document))


def solve_inference(query: str, document: str) -> set[str]:
    name, thing = match(r"^(\w+) shall disclose the (\w+)\.$", query)
    clauses = re.findall(rf"\b{name} shall( not)? disclose the {thing}\.", document)
    assert len(clauses) < 2
    return {{"": "Entailment", " not": "Contradiction"}[clauses[0]] if clauses else "Not mentioned"}


def solve_story(query: str, document: str) -> set[str]:
    name, thing = match(r"^Where did (\w+) hide the (\w+)\?$", query)
    (place,) = match(rf"\b{name} hid the {thing} in (the \w+)\.", document)
    return {place, f"in {place}"}


def solve_choice(query: str, document: str) -> set[str]:
    name, thing = match(r"^To whom did (\w+) sell the (\w+)\?$", query)
    options, document = document.split("\n\n", 1)
    lines = re.findall(r"^ \(([A-D])\) (the \w+)$", options, re.MULTILINE)
    assert [letter for letter, _ in lines] == list("ABCD")
    assert len({option for _, option in lines}) == 4
    answer = set(match(rf"\b{name} sold the {thing} to (the \w+)\.", document))
    assert answer <= {option for _, option in lines}
    return answer


def solve_meeting(query: str, document: str) -> set[str]:
    assert all(re.match(r"\w+: ", line) for line in document.split("\n"))
    name, thing = match(r"^Summarize what (\w+) decided on the (\w+)\.$", query)
    (colour,) = match(rf"\n{name}: I choose (\w+) for the {thing}\.", document)
    return {f"{name} chose {colour} for the {thing}."}


def solve_summary(_: str, document: str) -> set[str]:
    marked = re.findall(r"^\[(.*)\]$|We found that (.*?\.)", document, re.MULTILINE)
    assert len(marked) == 2
    return {" ".join(screenplay or report for screenplay, report in marked)}


SOLVERS = {
    "paper question": solve_paper,
    "inference": solve_inference,
    "story question": solve_story,
    "multiple choice": solve_choice,
    "meeting query": solve_meeting,
    "screenplay": solve_summary,
    "report": solve_summary,
}


def references(records: list[dict[str, str]]) -> list[tuple[str, list[str]]]:
    """Input and references of each example, in order."""
    groups = itertools.groupby(records, key=lambda record: (record["id"], record["input"]))
    return [(text, [record["output"] for record in group]) for (_, text), group in groups]


def separate(style: str, text: str) -> tuple[str, str]:
    """Query and document."""
    query, document = ("", text) if SOLVERS[style] is solve_summary else text.split("\n\n", 1)
    return query, document


@pytest.mark.parametrize("length", [*LENGTHS, 301, 480, 2048])
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("style", STYLES)
def test_the_document_answers_at_the_length_asked_for(style: str, split: str, length: int) -> None:
    for text, outputs in references(rows(style, split, 36, length=length)):
        assert SOLVERS[style](*separate(style, text)) == set(outputs)
        assert len(outputs) == (2 if style == "story question" else 1)
        assert all(
            0 < len(output) <= (110 if SOLVERS[style] is solve_summary else 40)
            for output in outputs
        )
        assert len(text) == pytest.approx(length, rel=0.15)
        assert text.isascii()


@pytest.mark.parametrize("style", some_slow(STYLES, everyday=("inference", "report")))
def test_ids_are_unique_and_documents_differ(style: str) -> None:
    seen: set[str] = set()
    for split, seed in itertools.product(SPLITS, (0, 1)):
        records = rows(style, split, 500, seed=seed, length=300)
        assert list(records[0]) == ["id", "pid", "input", "output"]
        assert len({record["pid"] for record in records}) == len(records)
        assert len({record["id"] for record in records}) == len(references(records)) == 500
        documents = {separate(style, text)[1] for text, _ in references(records)}
        assert len(documents) == 500
        assert not documents & seen
        seen |= documents


def test_classes_balance() -> None:
    labels = Counter(record["output"] for record in rows("inference", "train", 300))
    assert labels == {"Entailment": 100, "Contradiction": 100, "Not mentioned": 100}
    papers = Counter(record["output"] for record in rows("paper question", "validation", 300))
    assert papers["Yes"] == papers["No"] == papers["Unanswerable"] == 50
    letters = Counter(
        match(rf"\((\w)\) {record['output']}\n", record["input"])
        for record in rows("multiple choice", "train", 400)
    )
    assert len(letters) == 4
    assert min(letters.values()) > 70


def test_answers_lie_at_every_depth() -> None:
    depths = []
    for text, (_, place) in references(rows("story question", "train", 300)):
        name, thing = match(r"Where did (\w+) hide the (\w+)\?", text)
        depths.append(text.index(f"{name} hid the {thing} in {place}") / len(text))
    assert min(Counter(min(int(depth * 4), 3) for depth in depths).values()) > 40


def test_records_are_frozen() -> None:
    """Other records would make earlier measurements incomparable with later ones."""
    sample = [rows(style, split, 20, seed=3, length=600) for style in STYLES for split in SPLITS]
    assert hashlib.sha256(json.dumps(sample).encode()).hexdigest() == FROZEN


@pytest.mark.parametrize("style", STYLES)
def test_a_larger_n_only_appends(style: str) -> None:
    few, many = rows(style, "train", 5), rows(style, "train", 9)
    assert many[: len(few)] == few
    assert rows(style, "train", 5, seed=1)[0]["input"] != few[0]["input"]


@pytest.mark.parametrize(
    ("style", "split", "n", "length", "message"),
    [
        ("poem", "train", 1, 480, "unknown style 'poem'; choose one of: paper question, "),
        ("report", "test", 1, 480, "unknown split 'test'; choose one of: train, validation."),
        ("report", "train", 0, 480, "n=0 asks for no example; give 1 or more."),
        ("report", "train", 1, 299, "length=299 is not in 300 to 4000 characters."),
        ("report", "train", 1, 4001, "length=4001 is not in 300 to 4000 characters."),
    ],
)
def test_bad_input_is_named(style: str, split: str, n: int, length: int, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        rows(style, split, n, length=length)
