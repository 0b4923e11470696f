"""Sums of many numbers and products with one digit: rows are right, points are what they say."""

from pathlib import Path

import pytest
from helpers import Oracle, answer_after, make_task, means, measure

from pe_bench.sequences.eval_points import ID, OOD, EvalPoint
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


def adder(digits: int, operands: int) -> Oracle:
    """Adds up to so many numbers of so many digits; elsewhere the end is wrong."""

    def answer(ids: list[int]) -> list[int]:
        question = "".join(SUMS[i - FIRST] for i in ids if i >= FIRST).split("=")[0]
        numbers = question.split("+")
        total = 0
        written: list[int] = []
        for part in numbers:
            total += number(part)
            text = str(total).zfill(len(part))[::-1] + ">"
            written += [FIRST + SUMS.index(symbol) for symbol in text]
        right = len(numbers) <= operands and len(numbers[0]) - 1 <= digits
        return answer_after(len(question) + 1, [*written[:-1], END if right else FIRST])

    return Oracle(answer)


def test_means_over_what_is_more_than_trained(tmp_path: Path) -> None:
    task = make_task(MultiAddition, tmp_path, samples=2, digits=2, operands=3)
    rows = measure(task, adder(3, 4), tmp_path)
    values = {name: row.value for name, row in means(task, rows).items()}
    assert values == {
        ID: 100,
        "more-digits": 50,  # 3 of 3 and 4 digits
        "more-operands": pytest.approx(100 / 3),  # 4 of 4, 5 and 6 operands
        "more-of-both": pytest.approx(100 / 6),
        OOD: pytest.approx(100 * 5 / 16),
    }
    curve = [row for row in task.summarize(rows) if row.subset == "trained-operands"]
    exact = {row.length: row.value for row in curve if row.metric == "exact_match"}
    assert exact == {1: 100, 2: 100, 3: 100, 4: 0}
