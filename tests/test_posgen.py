"""PosGen: sums follow their rule, no short context predicts them, means are as claimed."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from helpers import lengths_by_mean, make_task

from pe_bench.config import IGNORE
from pe_bench.results.splits import ID, OOD
from pe_bench.sequences.eval_points import EvalPoint
from pe_bench.tasks.posgen import FIRST_NUMBER, RULES, START, Posgen

FAR_RULES = ("chain", "semi-recurrent")


def make(tmp_path: Path, preset: str = "quick", **options: Any) -> Posgen:
    return make_task(Posgen, tmp_path, preset, subsets=RULES, **options)


def summands(task: Posgen, rule: str, numbers: list[int]) -> tuple[int, ...]:
    """Return the numbers whose sum follows, by the definition in the docstring."""
    near, far = task.near, task.far
    if rule == "recurrent":
        others = numbers[-near - far : -near]
    elif rule == "chain":
        others = numbers[:far]
    else:
        written = len(numbers) - near - far
        others = numbers[written // 2 :][:far]
    return (*others, *numbers[-near:])


def answer(task: Posgen, rule: str, numbers: list[int]) -> int:
    return sum(summands(task, rule, numbers)) % task.modulus


def numbers_of(row: list[int]) -> list[int]:
    assert row[0] == START
    return [token - FIRST_NUMBER for token in row[1:]]


def test_a_row_by_hand(tmp_path: Path) -> None:
    task = make(tmp_path)
    assert answer(task, "recurrent", [1, 0, 2]) == 3 == answer(task, "chain", [1, 0, 2])
    assert answer(task, "recurrent", [1, 0, 2, 5]) == 7
    assert answer(task, "chain", [1, 0, 2, 5]) == 8
    assert answer(task, "semi-recurrent", [1, 0, 2, 5]) == 8
    assert answer(task, "semi-recurrent", [1, 0, 2, 5, 10]) == 4


@pytest.mark.parametrize("options", [{}, {"modulus": 17, "near": 3}, {"near": 1, "far": 3}])
@pytest.mark.parametrize("rule", RULES)
def test_sums_obey_their_rule(tmp_path: Path, rule: str, options: dict[str, Any]) -> None:
    task = make(tmp_path, samples=40, **options)
    given = task.near + task.far
    rows = task.items(rule, EvalPoint(65))
    assert rows.ids.shape == (40, 66) and rows.targets is not None
    for row, wanted in zip(rows.ids.tolist(), rows.targets.tolist(), strict=True):
        assert wanted[:-1] == [IGNORE] * 65
        assert wanted[-1] - FIRST_NUMBER == answer(task, rule, numbers_of(row))
    tokens, targets = task.batch(rule, 3, 5)
    for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        numbers = numbers_of(row)
        assert wanted[:given] == [IGNORE] * given
        for index in range(given, task.trained + 1):
            assert wanted[index] - FIRST_NUMBER == answer(task, rule, numbers[:index])


def table_score(task: Posgen, rule: str, context: int, point: EvalPoint) -> float:
    """Return the accuracy at a point of an n-gram table fitted to 200 training batches."""
    table: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for step in range(200):
        tokens, targets = task.batch(rule, 0, step)
        for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
            for end, target in enumerate(wanted, start=1):
                if target != IGNORE and end >= context:
                    table[tuple(row[end - context : end])][target] += 1
    items = task.items(rule, point)
    assert items.targets is not None
    right = 0
    for row, target in zip(items.ids.tolist(), items.targets[:, -1].tolist(), strict=True):
        seen = table[tuple(row[-context:])]
        right += bool(seen) and seen.most_common(1)[0][0] == target
    return right / len(items)


@pytest.mark.slow
def test_tables_of_tokens_know_the_local_rule_alone(tmp_path: Path) -> None:
    # The modulus is small, so that every context of six tokens is trained often.
    task = make(tmp_path, modulus=3, samples=600)
    assert table_score(task, "recurrent", 3, EvalPoint(24)) == 1
    for rule in FAR_RULES:
        for context in (3, 6):
            score = table_score(task, rule, context, EvalPoint(24))
            assert score < 0.42  # guessing: 0.33, 4.5 sigma


@pytest.mark.parametrize("rule", RULES)
def test_a_sum_without_one_of_its_numbers_is_uniform(tmp_path: Path, rule: str) -> None:
    task = make(tmp_path, modulus=3, samples=6000)
    items = task.items(rule, EvalPoint(16))
    assert items.targets is not None
    table: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for row, target in zip(items.ids.tolist(), items.targets[:, -1].tolist(), strict=True):
        terms = summands(task, rule, numbers_of(row))
        for missing in range(len(terms)):
            table[missing, *terms[:missing], *terms[missing + 1 :]][target] += 1
    assert len(table) == 3 * 3**2
    for counts in table.values():
        total = counts.total()
        assert max(counts.values()) / total < 1 / 3 + 4 * (2 / 9 / total) ** 0.5


@pytest.mark.slow
def test_every_sum_is_trained_and_no_row_of_the_evaluation(tmp_path: Path) -> None:
    task = make(tmp_path)
    steps = task.train.steps
    for rule in task.quick_subsets or RULES:
        sums = set()
        rows = set()
        for step in range(steps):
            for row in task.batch(rule, 1, step).tokens.tolist():
                rows.add(tuple(row))
                sums.add(summands(task, rule, numbers_of(row)))
        assert len(sums) == task.modulus ** (task.near + task.far)
        for point in task.eval_points(rule):
            if point.length >= task.trained:
                measured = task.items(rule, point).ids[:, : task.trained + 1].tolist()
                assert not rows.intersection(map(tuple, measured))


def test_means_of_each_rule(tmp_path: Path) -> None:
    task = make(tmp_path)
    assert (task.train_length, task.max_eval_tokens) == (17, 65)
    for rule in RULES:
        lengths = lengths_by_mean(task, rule)
        assert lengths[ID] == lengths[f"{rule}-{ID}"] == [8, 16]
        assert lengths[OOD] == lengths[f"{rule}-{OOD}"] == [17, 24, 32, 48, 64]


def test_sizes_of_the_paper(tmp_path: Path) -> None:
    task = make(tmp_path, "paper")
    assert (task.near, task.far, task.modulus, task.train_length) == (3, 1, 17, 65)
    assert task.train.steps * task.train.batch_size >= 150 * 10_000
    assert 256 in [point.length for point in task.eval_points("chain")]
