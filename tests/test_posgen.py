"""PosGen: rows obey their rule, beginnings of the evaluation are new, means are what they say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Oracle, make_task, means, measure

from pe_bench.config import IGNORE
from pe_bench.sequences.cells import ID, OOD, Cell
from pe_bench.tasks.posgen import FIRST_NUMBER, RULES, START, Posgen


def make(tmp_path: Path, preset: str = "quick", **options: Any) -> Posgen:
    return make_task(Posgen, tmp_path, preset, subsets=RULES, **options)


def following(task: Posgen, rule: str, numbers: list[int]) -> int:
    """The number after these, by the words of the docstring."""
    near, far = task.near, task.far
    if rule == "recurrent":
        others = numbers[-near - far : -near]
    elif rule == "chain":
        others = numbers[:far]
    else:
        written = len(numbers) - near - far
        others = numbers[written // 2 :][:far]
    return (sum(numbers[-near:]) + sum(others)) % task.modulus


def numbers_of(row: list[int]) -> list[int]:
    assert row[0] == START
    return [token - FIRST_NUMBER for token in row[1:]]


def test_a_row_by_hand(tmp_path: Path) -> None:
    task = make(tmp_path)
    assert following(task, "recurrent", [1, 0, 2]) == 3 == following(task, "chain", [1, 0, 2])
    assert following(task, "recurrent", [1, 0, 2, 3]) == 5
    assert following(task, "chain", [1, 0, 2, 3]) == 6
    assert following(task, "semi-recurrent", [1, 0, 2, 3]) == 6
    assert following(task, "semi-recurrent", [1, 0, 2, 3, 6]) == 9


@pytest.mark.parametrize("options", [{}, {"modulus": 17, "near": 3}, {"near": 1, "far": 3}])
@pytest.mark.parametrize("rule", RULES)
def test_rows_obey_their_rule(tmp_path: Path, rule: str, options: dict[str, Any]) -> None:
    task = make(tmp_path, samples=40, **options)
    given = task.near + task.far
    rows = task.items(rule, Cell(65))
    assert rows.ids.shape == (40, 66)
    for row, scored in zip(rows.ids.tolist(), rows.scored, strict=True):
        numbers = numbers_of(row)
        for place in range(given, 65):
            assert numbers[place] == following(task, rule, numbers[:place])
        assert np.flatnonzero(scored).tolist() == [65]
    tokens, targets = task.batch(rule, 3, 5)
    for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        numbers = numbers_of(row)
        assert wanted[:given] == [IGNORE] * given
        for place in range(given, task.trained):
            assert wanted[place] - FIRST_NUMBER == following(task, rule, numbers[:place])


@pytest.mark.parametrize(
    "options", [{"modulus": 5}, {"modulus": 3, "near": 1}, {"modulus": 2, "near": 3}]
)
def test_no_training_row_begins_as_one_of_the_evaluation(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    task = make(tmp_path, samples=400, **options)
    given = task.near + task.far
    trained = set()
    for step in range(40):
        trained |= {*map(tuple, task.batch("chain", 0, step).tokens[:, 1 : given + 1].tolist())}
    measured = {*map(tuple, task.items("chain", Cell(16)).ids[:, 1 : given + 1].tolist())}
    assert not trained & measured
    assert len(trained | measured) == task.modulus**given  # all that there are
    assert len(measured) == -(-(task.modulus**given) // 8)


def solver(task: Posgen, rule: str, most: int) -> Oracle:
    """Follows a rule up to a length, then writes what is no number."""

    def answer(ids: list[int]) -> list[int]:
        numbers = numbers_of(ids)
        given = task.near + task.far
        found = [0] * given
        for place in range(given, len(numbers) + 1):
            right = FIRST_NUMBER + following(task, rule, numbers[:place])
            found.append(right if place < most else START)
        return found

    return Oracle(answer)


@pytest.mark.slow
def test_means_and_effective_length_of_each_rule(tmp_path: Path) -> None:
    task = make(tmp_path, samples=5)
    assert (task.train_length, task.max_eval_tokens) == (17, 65)
    most = dict(zip(RULES, (99, 32, 8), strict=True))
    rows = measure(task, {rule: solver(task, rule, most[rule]) for rule in RULES}, tmp_path)
    chain = {row.length: row.value for row in rows if row.subset == "chain"}
    assert chain == {8: 100, 16: 100, 17: 100, 24: 100, 32: 100, 48: 0, 64: 0}
    found = {name: row.value for name, row in means(task, rows).items()}
    assert found[f"recurrent-{OOD}"] == 100 and found[f"chain-{OOD}"] == 60
    assert found[f"semi-recurrent-{ID}"] == 50 and found[f"semi-recurrent-{OOD}"] == 0
    effective = means(task, rows, "effective_length")
    assert [effective[rule].value for rule in RULES] == [64, 32, 0]
    assert effective["semi-recurrent"].status == "not_learned"


@pytest.mark.slow
def test_tables_of_trigrams_know_a_rule_of_two_numbers_alone(tmp_path: Path) -> None:
    floors = []
    for near in (1, 2):
        rows = make(tmp_path, near=near, samples=200).references()["trigram table"]
        floors.append(next(r.value for r in rows if r.subset == f"recurrent-{OOD}"))
    assert floors[0] > 60 and floors[1] < 30  # guessing: 9; some pairs are never seen


def test_sizes_of_the_paper(tmp_path: Path) -> None:
    task = make(tmp_path, "paper")
    assert (task.near, task.far, task.modulus, task.train_length) == (3, 1, 17, 65)
    assert task.train.steps * task.train.batch_size >= 150 * 10_000
    assert 256 in [cell.length for cell in task.cells("chain")]
