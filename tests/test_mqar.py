"""MQAR: rows obey the definition, draws have the right law, points and means are what they say."""

from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Oracle, make_task, measure
from torch import Tensor

from pe_bench.config import IGNORE
from pe_bench.sequences.eval_points import FAR, ID, OOD, EvalPoint
from pe_bench.sequences.rows import FIRST, Sequences
from pe_bench.sequences.scoring import teacher_forced
from pe_bench.tasks.mqar.rows import _distinct, _places
from pe_bench.tasks.mqar.task import MQAR


def make(tmp_path: Path, preset: str = "quick", **options: Any) -> MQAR:
    return make_task(MQAR, tmp_path, preset, **options)


def read(task: MQAR, row: list[int], pairs: int) -> dict[int, int]:
    """Place of each query -> the value of its key, by walking through the row."""
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
    again = task.items("grid", EvalPoint(length, str(pairs)))
    targets = rows.batch().targets
    assert (rows.ids == again.ids).all() and (targets == again.batch().targets).all()
    # The value is not given away by what follows its query.
    given_away = rows.ids[:, 1:] == targets[:, :-1].numpy()
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


def recall(task: MQAR, span: int = 10**6) -> Oracle:
    """Finds a key that is not too far back, else says something wrong."""

    def answer(ids: list[int]) -> list[int]:
        first: dict[int, int] = {}
        found = []
        for place, token in enumerate(ids):
            back = place - first.setdefault(token, place)
            found.append(ids[first[token] + 1] if 0 < back <= span else 0)
        return found

    return Oracle(answer, vocab_size=task.vocabulary.vocab_size)


@pytest.mark.slow
def test_cells_and_means(tmp_path: Path) -> None:
    task = make(tmp_path, samples=8, gate=10.0)
    rows = measure(task, recall(task, span=40), tmp_path)
    points = {
        (r.length, r.second_axis): r for r in rows if (r.subset, r.metric) == ("grid", "accuracy")
    }
    expected: dict[tuple[int, int], float] = {}
    for point in task.eval_points("grid"):
        pairs = int(point.second_axis)
        queries = task.items("grid", point)
        near = []
        for row, scored in zip(queries.ids.tolist(), queries.scored, strict=True):
            places = np.flatnonzero(scored).tolist()
            near += [place - row[: 2 * pairs].index(row[place]) <= 40 for place in places]
        expected[point.length, pairs] = 100 * float(np.mean(near))
        row = points[point.length, point.second_axis]
        assert row.value == pytest.approx(expected[point.length, pairs]) and row.n == len(near)
    assert len(points) == len(expected) == 27
    whole = [r for r in rows if (r.subset, r.metric) == ("grid", "exact_match")]
    assert len(whole) == 27
    assert all(r.value <= points[r.length, r.second_axis].value for r in whole)
    groups = {
        ID: [expected[kind] for kind in set(task.mix)],
        "longer": [v for (length, n), v in expected.items() if 32 < length <= 256 and n <= 8],
        "more-pairs": [v for (_, n), v in expected.items() if n > 8],
        OOD: [v for (length, _), v in expected.items() if 32 < length <= 256],
        FAR: [v for (length, _), v in expected.items() if length > 256],
    }
    assert [len(group) for group in groups.values()] == [5, 9, 6, 15, 6]
    means = [r for r in task.summarize(rows) if r.metric == "accuracy" and r.length is None]
    found = {row.subset: row.value for row in means}
    assert found == {name: pytest.approx(np.mean(group)) for name, group in groups.items()}
    assert found[ID] == 100 > found["longer"]
    gaps = {r.length: r.value for r in rows if r.subset == "gap"}
    assert set(gaps) == {2, 4, 8, 16, 32, 64, 128}
    assert gaps[32] > 0 == gaps[64] and gaps[16] == 100  # the pairs themselves take 8 tokens
    assert task.summarize([r for r in rows if r.subset == "gap"]) == []


@pytest.mark.parametrize(("most", "rows"), [(700, 10), (1, 1)])
def test_forward_passes_are_bounded(tmp_path: Path, most: int, rows: int) -> None:
    task = make(tmp_path, samples=30)
    model = recall(task)
    scores = teacher_forced(model, task.items("grid", EvalPoint(64, "4")), max_tokens=most)
    assert scores.correct is not None and scores.correct.tolist() == [4] * 30
    assert model.seen == [(rows, 64)] * (30 // rows)
