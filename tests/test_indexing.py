"""Indexing: answers follow from the question, all places occur, means are as claimed."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers import cells_by_mean, make_task

from pe_bench.config import IGNORE
from pe_bench.results.splits import ID, OOD
from pe_bench.sequences.eval_points import EvalPoint
from pe_bench.tasks.indexing import FIRST_SYMBOL, START, Indexing


def make(tmp_path: Path, preset: str = "quick", **options: Any) -> Indexing:
    return make_task(Indexing, tmp_path, preset, **options)


def solve(task: Indexing, row: list[int]) -> dict[int, tuple[int, int, int]]:
    """Return the answer, its place and the shift of each question, by the question's last place."""
    reach = max(task.shifts)
    zero = FIRST_SYMBOL + task.symbols + reach  # the token of a shift of 0, if there were one
    first = next(place for place, token in enumerate(row) if token >= zero - reach)
    start, *text = row[:first]
    assert start == START and len(set(text)) == len(text) and min(text) >= FIRST_SYMBOL
    found = {}
    for end in range(first + 1, len(row), 2):
        shift = row[end - 1] - zero
        place = text.index(row[end]) + shift
        assert 0 < abs(shift) <= reach and 0 <= place < len(text)
        found[end] = (text[place], place, shift)
    return found


def asked(targets: list[int]) -> dict[int, int]:
    return {index: target for index, target in enumerate(targets) if target != IGNORE}


@pytest.mark.parametrize(("size", "shift"), [(4, "+1"), (8, "-2"), (9, "+2"), (32, "-1")])
def test_items_have_the_right_answers(tmp_path: Path, size: int, shift: str) -> None:
    task = make(tmp_path, samples=100)
    tokens, targets = task.items("grid", EvalPoint(size, shift)).batch()
    places: Counter[int] = Counter()
    for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        solved = solve(task, row)
        assert asked(wanted) == {end: answer for end, (answer, _, _) in solved.items()}
        assert {moved for _, _, moved in solved.values()} == {int(shift)}
        assert len(row) == 1 + size + 2 * task.questions
        places.update(place for _, place, _ in solved.values())
    away = abs(int(shift))
    possible = range(away, size) if int(shift) > 0 else range(size - away)
    assert set(places) == set(possible)


@pytest.mark.parametrize("options", [{}, {"max_train_symbols": 20, "reach": 9, "questions": 1}])
def test_training_draws_lengths_and_shifts_evenly(tmp_path: Path, options: dict[str, Any]) -> None:
    task = make(tmp_path, **options)
    reach = max(task.shifts)
    sizes: Counter[int] = Counter()
    shifts: Counter[int] = Counter()
    trained = set()
    for step in range(25):
        tokens, targets = task.batch(None, 3, step)
        assert tokens.shape[1] <= task.train_length
        for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
            row = [token for token in row if token]  # padding is 0
            solved = solve(task, row)
            assert asked(wanted) == {end: answer for end, (answer, _, _) in solved.items()}
            size = len(row) - 1 - 2 * task.questions
            sizes[size] += 1
            shifts.update(moved for _, _, moved in solved.values() if size > reach)
            trained.add(tuple(row[: size + 3]))
    shares = [sizes[size] * len(task.sizes) / sizes.total() for size in task.sizes]
    assert shares == pytest.approx([1] * len(task.sizes), abs=0.35)
    shares = [shifts[shift] * len(task.shifts) / shifts.total() for shift in task.shifts]
    assert shares == pytest.approx([1] * len(task.shifts), abs=0.35)
    for point in task.eval_points("grid"):
        rows = task.items("grid", point).ids[:, : point.length + 3].tolist()
        assert not trained & {*map(tuple, rows)}


def test_means_of_sides_and_lengths(tmp_path: Path) -> None:
    task = make(tmp_path)
    cells = cells_by_mean(task, "grid")
    shifts = ["-2", "-1", "+1", "+2"]
    assert cells[ID] == [(n, shift) for n in (4, 8) for shift in shifts]
    assert cells[OOD] == [(n, shift) for n in (9, 12, 16, 32) for shift in shifts]
    assert cells["left"] == [cell for cell in cells[OOD] if cell[1].startswith("-")]
    assert cells["right"] == [cell for cell in cells[OOD] if cell[1].startswith("+")]
    assert {cell.curve for cell in task.eval_points("grid")} == {"by-length"}


@pytest.mark.slow
def test_no_table_of_neighbours_knows_the_answers(tmp_path: Path) -> None:
    for name, rows in make(tmp_path).baselines().items():
        if name.endswith("table"):  # strings of four symbols are rows that recur
            assert all(row.value < 20 for row in rows), name


def test_sizes_of_the_paper(tmp_path: Path) -> None:
    task = make(tmp_path, "paper")
    assert task.sizes == range(20, 41) and (min(task.shifts), max(task.shifts)) == (-15, 15)
    assert task.train.steps * task.train.batch_size == 6_400_000 and task.questions == 1
