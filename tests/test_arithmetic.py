"""Sums of several numbers and products with one digit: rows are right, points are as claimed."""

from pathlib import Path

import pytest
from helpers import cells_by_mean, make_task

from pe_bench.results.splits import ID, OOD
from pe_bench.sequences.eval_points import EvalPoint
from pe_bench.sequences.rows import END, FIRST, Sequences
from pe_bench.tasks.multi_addition import MultiAddition
from pe_bench.tasks.multiplication import Multiplication

SUMS = "0123456789+=>"
PRODUCTS = "0123456789*="


def texts(symbols: str, rows: Sequences) -> list[str]:
    found = []
    for ids, length, scored in zip(rows.ids, rows.lengths, rows.scored, strict=True):
        assert ids[length - 1] == END
        text = "".join(symbols[i - FIRST] for i in ids[: length - 1])
        answer = text.index("=") + 1
        assert not scored[:answer].any() and scored[answer:length].all()
        found.append(text)
    return found


def number(text: str) -> int:
    return int(text[::-1])


@pytest.mark.parametrize(
    ("digits", "operands", "width"), [(1, 2, 2), (3, 5, 4), (20, 4, 21), (1, 12, 3), (2, 10, 3)]
)
@pytest.mark.parametrize("scratchpad", [True, False])
def test_sums_of_many_numbers(
    tmp_path: Path, digits: int, operands: int, width: int, scratchpad: bool
) -> None:
    task = make_task(MultiAddition, tmp_path, samples=40, scratchpad=scratchpad)
    rows = task.items("cells", EvalPoint(digits, str(operands)))
    largest = 0
    for text in texts(SUMS, rows):
        question, answer = text.split("=")
        numbers = question.split("+")
        totals = answer.split(">")
        assert {len(part) for part in (*numbers, *totals)} == {width}
        values = [number(part) for part in numbers]
        sums = [sum(values[: i + 1]) for i in range(operands)]
        assert [number(part) for part in totals] == (sums if scratchpad else sums[-1:])
        largest = max(largest, *values)
    assert 10 ** (digits - 1) <= largest < 10**digits


@pytest.mark.parametrize("digits", [1, 3, 40])
def test_products_with_one_digit(tmp_path: Path, digits: int) -> None:
    task = make_task(Multiplication, tmp_path)
    factors = set()
    for text in texts(PRODUCTS, task.items("cells", EvalPoint(digits))):
        question, product = text.split("=")
        first, factor = question.split("*")
        assert number(first) * number(factor) == number(product)
        assert (len(first), len(factor), len(product)) == (digits, 1, digits + 1)
        assert first[-1] != "0"
        factors.add(factor)
    assert factors == set("0123456789")


def test_means_over_what_is_more_than_trained(tmp_path: Path) -> None:
    task = make_task(MultiAddition, tmp_path, digits=2, operands=3)
    cells = cells_by_mean(task)
    assert {name: len(places) for name, places in cells.items()} == {
        ID: 4, "more-digits": 4, "more-operands": 6, "more-of-both": 6, OOD: 16,
    }  # fmt: skip
    assert {*cells[ID]} == {(1, "2"), (1, "3"), (2, "2"), (2, "3")}
    assert {*cells["more-digits"]} == {(3, "2"), (3, "3"), (4, "2"), (4, "3")}
    assert {second for _, second in cells["more-operands"]} == {"4", "5", "6"}
    curve = [cell for cell in task.eval_points("cells") if cell.curve == "trained-operands"]
    assert [cell[:2] for cell in curve] == [(n, m) for n in range(1, 5) for m in ("2", "3")]
