"""MQAR: rows follow the definition, draws have the right distribution, means are as claimed."""

from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import cells_by_mean, make_task
from torch import Tensor

from pe_bench.config import IGNORE
from pe_bench.results.splits import FAR, ID, OOD
from pe_bench.sequences.eval_points import EvalPoint
from pe_bench.sequences.rows import FIRST, Sequences
from pe_bench.tasks.mqar.rows import _distinct, _places
from pe_bench.tasks.mqar.task import MQAR


def make(tmp_path: Path, preset: str = "quick", **options: Any) -> MQAR:
    return make_task(MQAR, tmp_path, preset, **options)


def read(task: MQAR, row: list[int], pairs: int) -> dict[int, int]:
    """Return the value of the key of each query, by the query's place."""
    keys = range(FIRST, FIRST + task.keys)
    values = range(FIRST + task.keys, FIRST + 2 * task.keys)
    known = dict(zip(row[: 2 * pairs : 2], row[1 : 2 * pairs : 2], strict=True))
    assert len(known) == len(set(known.values())) == pairs
    assert all(key in keys and value in values for key, value in known.items())
    assert all(token in keys or token in values for token in row)
    return {i: known[token] for i, token in enumerate(row) if token in known and i >= 2 * pairs}


def check(task: MQAR, rows: Sequences, pairs: int, queries: int) -> None:
    for tokens, targets in zip(*map(Tensor.tolist, rows.batch()), strict=True):
        asked = {i: t for i, t in enumerate(targets) if t != IGNORE}
        assert read(task, tokens, pairs) == asked
        assert len(asked) == queries and all(place % 2 == 0 for place in asked)
        assert len({tokens[place] for place in asked}) == queries


@pytest.mark.parametrize(("length", "pairs"), [(8, 2), (32, 2), (32, 8), (256, 64)])
def test_rows_ask_for_every_key_once(tmp_path: Path, length: int, pairs: int) -> None:
    task = make(tmp_path)
    rows = task.items("grid", EvalPoint(length, str(pairs)))
    assert rows.ids.shape == (100, length)
    check(task, rows, pairs, pairs)
    # The token after a query does not reveal its value.
    given_away = rows.ids[:, 1:] == rows.batch().targets[:, :-1].numpy()
    assert given_away.sum() < 0.05 * rows.scored.sum()


def test_one_query_at_a_gap(tmp_path: Path) -> None:
    task = make(tmp_path, samples=400)
    for gap in (2, 64):
        rows = task.items("gap", EvalPoint(gap))
        check(task, rows, 4, 1)
        assert rows.ids.shape == (400, 256) and rows.scored[:, 8 + gap].all()
        which = (rows.ids[:, :8:2] == rows.ids[:, 8 + gap, None]).argmax(1)
        assert np.bincount(which, minlength=4) / 400 == pytest.approx([0.25] * 4, abs=0.1)


@pytest.mark.slow
def test_training_mixes_five_kinds(tmp_path: Path) -> None:
    task = make(tmp_path)
    seen: Counter[tuple[int, int]] = Counter()
    for step in range(400):
        tokens, targets = task.batch(None, 1, step)
        wanted = targets != IGNORE
        pairs = int(wanted[0].sum())
        seen[tokens.shape[1], pairs] += 1
        for row, target in zip(tokens[:3].tolist(), targets[:3].tolist(), strict=True):
            expected = read(task, row, pairs)
            assert {i: t for i, t in enumerate(target) if t != IGNORE} == expected
    assert set(seen) == {(8, 2), (16, 2), (32, 2), (32, 4), (32, 8)}
    assert seen[8, 2] / 400 == pytest.approx(5 / 9, abs=0.08)
    assert tokens.shape[0] == 64


def test_sizes_of_the_paper(tmp_path: Path) -> None:
    task = make(tmp_path, "paper", samples=2)
    assert Counter(task.mix) == {(64, 4): 5, (128, 8): 1, (256, 16): 1, (256, 32): 1, (256, 64): 1}
    points = task.eval_points("grid")
    grid = {(point.length, int(point.second_axis)) for point in points if point.split != FAR}
    assert len(grid) == 3 + 4 + 5 + 6 + 7 + 8
    trained = {(c.length, int(c.second_axis)) for c in task.eval_points("grid") if c.split == ID}
    assert trained == set(task.mix)
    assert all(c.length > 256 for c in task.eval_points("grid") if c.split == OOD)
    tested = {(64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256)}
    assert grid >= {*tested, (2048, 512)}
    assert (task.max_eval_tokens, task.max_far_tokens) == (2048, 8192)
    assert (task.keys, task.train_length) == (4096, 256)
    assert [point.length for point in task.eval_points("gap")] == [2**i for i in range(1, 11)]
    check(task, task.items("grid", EvalPoint(2048, "512")), 512, 512)


def test_far_rows_are_few_and_as_many_pairs_as_in_training(tmp_path: Path) -> None:
    task = make(tmp_path)
    far = [point for point in task.eval_points("grid") if point.split == FAR]
    assert [point[:2] for point in far] == [(n, p) for n in (512, 1024) for p in ("2", "4", "8")]
    for point in far:
        rows = task.items("grid", point)
        assert rows.ids.shape == (17, point.length)
        check(task, rows, int(point.second_axis), int(point.second_axis))


@pytest.mark.parametrize(("count", "below"), [(2, 5), (3, 4)])  # each way of drawing
def test_draws_without_replacement(count: int, below: int) -> None:
    found = _distinct(np.random.default_rng(0), 30_000, count, below)
    seen = Counter(map(tuple, found.tolist()))
    outcomes = list(permutations(range(below), count))
    assert set(seen) == set(outcomes)
    shares = [seen[outcome] * len(outcomes) / 30_000 for outcome in outcomes]
    assert shares == pytest.approx([1] * len(outcomes), abs=0.12)


@pytest.mark.slow
def test_gaps_follow_a_power_law() -> None:
    found = _places(np.random.default_rng(0), 60_000, 2, 4)
    weights = np.arange(1, 5) ** -0.99
    weights /= weights.sum()
    seen = Counter(map(tuple, found.tolist()))
    for first, second in permutations(range(4), 2):
        share = weights[first] * weights[second] / (1 - weights[first])
        assert seen[first, second] / 60_000 == pytest.approx(share, abs=0.008)
    all_ = _places(np.random.default_rng(0), 10, 6, 6)
    assert (np.sort(all_) == np.arange(6)).all()


def test_means_of_lengths_and_pairs(tmp_path: Path) -> None:
    task = make(tmp_path)
    cells = {}
    for name, places in cells_by_mean(task, "grid").items():
        cells[name] = {(length, int(pairs)) for length, pairs in places}
    assert cells[ID] == set(task.mix)
    beyond = {(length, 2**i) for length in (64, 128, 256) for i in range(1, 7)}
    assert cells[OOD] == {(length, pairs) for length, pairs in beyond if 4 * pairs <= length}
    assert cells["longer"] == {cell for cell in cells[OOD] if cell[1] <= 8}
    assert cells["more-pairs"] == cells[OOD] - cells["longer"]
    assert cells[FAR] == {(length, pairs) for length in (512, 1024) for pairs in (2, 4, 8)}
    sizes = {name: len(group) for name, group in cells.items()}
    assert sizes == {ID: 5, "longer": 9, "more-pairs": 6, OOD: 15, FAR: 6}
    assert [cell.length for cell in task.eval_points("gap")] == [2, 4, 8, 16, 32, 64, 128]
    assert cells_by_mean(task, "gap") == {}


def test_a_value_of_the_row_is_right_once_in_as_many_pairs(tmp_path: Path) -> None:
    task = make(tmp_path, samples=4)
    (scores,) = task.own_baselines("grid", EvalPoint(64, "4")).values()
    assert scores.counts.tolist() == [4] * 4
    assert scores.correct is not None and scores.correct.tolist() == [1] * 4  # 4 queries, 1 of 4
    assert scores.exact.tolist() == [0.25**4] * 4
    (single,) = task.own_baselines("gap", EvalPoint(8)).values()  # one query among 32 / 8 pairs
    assert single.exact.tolist() == [0.25] * 4
