"""State tracking: states follow from the symbols, tables are groups, training is as declared."""

from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import lengths_by_mean, make_task

from pe_bench.config import IGNORE
from pe_bench.results.splits import ID, OOD
from pe_bench.sequences.eval_points import EvalPoint
from pe_bench.tasks.state_tracking import FIRST_SYMBOL, START, STATES, StateTracking


def make(tmp_path: Path, preset: str = "quick", **options: Any) -> StateTracking:
    return make_task(StateTracking, tmp_path, preset, subsets=STATES, **options)


def state(task: StateTracking, kind: str, symbols: list[int], points: int = 3) -> int:
    """Return the state after symbols, by the definition in the docstring."""
    if kind == "majority":
        return int(symbols.count(1) > symbols.count(0))
    if kind == "parity":
        return symbols.count(1) % 2
    if kind == "sum":
        return sum(symbols) % task.symbols["sum"]
    elements = list(permutations(range(points)))
    order = list(range(points))
    for symbol in symbols:  # every further symbol permutes the result of the symbols before it
        order = [order[place] for place in elements[symbol]]
    return elements.index(tuple(order))


@pytest.mark.parametrize("kind", STATES)
def test_items_ask_for_the_last_state(tmp_path: Path, kind: str) -> None:
    task = make(tmp_path, samples=300)
    rows = task.items(kind, EvalPoint(33))
    tokens, targets = rows.batch()
    states: Counter[int] = Counter()
    for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        symbols = [token - FIRST_SYMBOL for token in row[1:]]
        assert row[0] == START and len(symbols) == 33
        assert wanted[:-1] == [IGNORE] * 33
        assert wanted[-1] - FIRST_SYMBOL == state(task, kind, symbols)
        states[wanted[-1]] += 1
    assert len(states) == task.symbols[kind] and max(states.values()) < 600 / len(states)


@pytest.mark.parametrize("kind", STATES)
def test_training_asks_for_every_state_or_the_last(tmp_path: Path, kind: str) -> None:
    for dense in (True, False):
        task = make(tmp_path, dense=dense)
        tokens, targets = task.batch(kind, 1, 2)
        assert tokens.shape[1] <= task.train_length == 17
        sizes = set()
        for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
            symbols = [token - FIRST_SYMBOL for token in row[1:] if token]
            asked = {index: t - FIRST_SYMBOL for index, t in enumerate(wanted) if t != IGNORE}
            places = range(1, len(symbols) + 1) if dense else [len(symbols)]
            assert asked == {n: state(task, kind, symbols[:n]) for n in places}
            sizes.add(len(symbols))
        assert sizes == {16} if dense else len(sizes) > 10


def test_any_number_of_ones_is_as_likely(tmp_path: Path) -> None:
    task = make(tmp_path, samples=9000)
    ones = (task.items("parity", EvalPoint(8)).ids[:, 1:] - FIRST_SYMBOL).sum(1)
    assert np.bincount(ones) / 1000 == pytest.approx(np.ones(9), abs=0.12)


@pytest.mark.parametrize("points", [2, 3, 4, 5])
def test_products_are_those_of_a_group(tmp_path: Path, points: int) -> None:
    task = make(tmp_path, points=points)
    table = task.products
    count = len(table)
    assert count == [2, 6, 24, 120][points - 2] == task.symbols["group"]
    assert sorted(table[:, 0]) == sorted(table[0]) == list(range(count))
    left, middle, right = np.random.default_rng(0).integers(0, count, (3, 500))
    assert (table[table[left, middle], right] == table[left, table[middle, right]]).all()
    assert (table == table.T).all() == (points == 2)
    symbols = [1, count - 1, 1]
    assert task.states("group", np.array([symbols]))[0, -1] == state(task, "group", symbols, points)


def test_means_of_each_kind(tmp_path: Path) -> None:
    task = make(tmp_path)
    for kind in STATES:
        lengths = lengths_by_mean(task, kind)
        assert lengths[ID] == lengths[f"{kind}-{ID}"] == [8, 16]
        assert lengths[OOD] == lengths[f"{kind}-{OOD}"] == [17, 24, 32, 48, 64]


@pytest.mark.slow
def test_the_last_bit_tells_much_of_a_majority_and_nothing_of_a_parity(tmp_path: Path) -> None:
    rows = make(tmp_path, samples=500).baselines()["bigram table"]
    floors = {row.subset: row.value for row in rows if row.metric == "exact_match"}
    assert floors[f"majority-{OOD}"] == pytest.approx(75, abs=4)
    assert floors[f"parity-{OOD}"] == pytest.approx(50, abs=4)


def test_sizes_of_the_paper(tmp_path: Path) -> None:
    task = make(tmp_path, "paper")
    assert {50, 51, 100, 150} <= {point.length for point in task.eval_points("parity")}
    assert not task.dense
