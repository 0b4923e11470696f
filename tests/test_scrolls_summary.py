"""The SCROLLS score, baselines and held-out examples, of rows and records made by hand."""

from typing import Any

import pytest

from pe_bench.api import ID, OOD
from pe_bench.errors import InputError
from pe_bench.results.measurement import Measurement
from pe_bench.tasks.scrolls.baselines import constant_answer, guesses
from pe_bench.tasks.scrolls.documents import Record
from pe_bench.tasks.scrolls.fine_tuning import FineTuning
from pe_bench.tasks.scrolls.subsets import SUBSETS
from pe_bench.tasks.scrolls.summary import summarize, summarize_lengths


def rows_of(subset: str, inside: float, outside: float) -> list[Measurement]:
    """Return the rows of a subset at 32 and 64 tokens, with one that is not in the score."""
    metric = SUBSETS[subset].metric
    values = {32: inside, 64: outside}
    rows = [Measurement(subset, metric, value, 5, 1.0, n) for n, value in values.items()]
    return [*rows, Measurement(subset, "prompt_tokens", 999.0, 5, length=32)]


@pytest.mark.parametrize(("gate", "status"), [(70.0, "ranked"), (70.1, "not_learned")])
def test_scores_of_lengths(gate: float, status: str) -> None:
    rows = []
    for index, subset in enumerate(SUBSETS):
        rows += rows_of(subset, 40.0 + 10 * index, 30.0 + 10 * index)
    found = summarize_lengths(rows, (32, 64), gate)
    by_name = {(row.subset, row.length): row for row in found}
    assert len(by_name) == len(found) == 4 + len(SUBSETS)
    assert by_name["all", 32].value == by_name[ID, None].value == 70
    assert by_name["all", 64].value == by_name[OOD, None].value == 60
    assert by_name[f"qasper-{OOD}", None].value == 30
    assert by_name[f"qasper-{OOD}", None].metric == SUBSETS["qasper"].metric
    assert by_name[OOD, None].metric == "score" and by_name[OOD, None].n == 35
    assert (by_name[OOD, None].status, by_name[ID, None].status) == (status, "ranked")
    few = summarize_lengths(rows_of("qasper", 80, 60), (32, 64), 70)
    assert {row.status for row in few if row.metric == "score"} == {"partial"}
    assert summarize_lengths([], (32, 64), 70) == []


def test_the_score_has_all_subsets() -> None:
    rows = [Measurement(name, SUBSETS[name].metric, 10.0 * n, 5) for n, name in enumerate(SUBSETS)]
    (whole,) = summarize([*rows, Measurement("qasper", "rouge1", 99.0, 5)])
    assert (whole.subset, whole.metric, whole.value, whole.n) == ("all", "score", 30, 7)
    (part,) = summarize(rows[1:])
    assert (whole.status, part.status) == ("ranked", "partial") and part.n == 6
    assert summarize([]) == []


def records(*outputs: str) -> list[Record]:
    return [Record(str(n), "input", (output,)) for n, output in enumerate(outputs)]


def test_a_constant_answer_is_the_best_of_the_frequent_ones() -> None:
    train = records("a", "a", "b c", "b d", "b e")
    assert constant_answer("em", train, candidates=5) == "a"
    assert constant_answer("f1", train, candidates=5) == "b c"  # half of three answers
    assert constant_answer("f1", train, candidates=1) == "a"


def test_guesses_are_drawn_from_options_classes_or_answers() -> None:
    few = records(*("yes",) * 90, "no")
    drawn = guesses([()] * 300, few, 0)
    assert 0.4 < drawn.count("yes") / 300 < 0.6  # classes are equally likely
    many = records(*("yes",) * 90, *map(str, range(10)))
    drawn = guesses([()] * 300, many, 0)
    assert 0.8 < drawn.count("yes") / 300 < 1
    assert {*guesses([("x", "y")] * 30, few, 0)} == {"x", "y"}
    assert guesses([()] * 30, many, 0) != guesses([()] * 30, many, 1)


def fine_tuning(documents: str, hold_out: bool = True) -> FineTuning:
    """Return the batches of one example for each letter, which is its document."""
    train = [Record(str(n), letter, ("yes",)) for n, letter in enumerate(documents)]
    data: Any = {"qasper": {"train": train}}
    layout: Any = None
    return FineTuning(data, layout, {}, length=9, batch_size=1, hold_out=hold_out)


@pytest.mark.parametrize(
    ("documents", "border"),
    [("ab", 1), ("abbb", 1), ("aaab", 3), ("a" * 38 + "bb", 38), ("a" * 39 + "bb" * 9, 39)],
)
def test_examples_of_a_document_are_held_out_together(documents: str, border: int) -> None:
    assert fine_tuning(documents)._find_border("qasper") == border
    assert fine_tuning(documents, hold_out=False)._find_border("qasper") == len(documents)


def test_one_document_cannot_be_held_out() -> None:
    with pytest.raises(InputError, match="qasper belong to one document"):
        fine_tuning("aaaa")._find_border("qasper")
