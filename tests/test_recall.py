"""Recall: questions follow the definition, answers by reading a row, means, baselines, stages."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import make_task

from pe_bench.config import IGNORE
from pe_bench.results.splits import ID, OOD
from pe_bench.sequences.eval_points import EvalPoint
from pe_bench.sequences.rows import PAD
from pe_bench.tasks.recall import FIRST_WORD, MARKERS, NTH, Recall

KINDS = {marker: kind for kind, marker in MARKERS.items()}


def make(tmp_path: Path, preset: str = "quick", **options: Any) -> Recall:
    return make_task(Recall, tmp_path, preset, **{"kinds": "all", **options})


def split(task: Recall, row: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Return the records and the questions of a row, from its tokens."""
    row = [token for token in row if token != PAD]
    start = next(i for i, token in enumerate(row) if token < FIRST_WORD)
    width = next(i for i, token in enumerate(row) if token >= FIRST_WORD + task.words) + 1
    assert start % width == (len(row) - start) % width == 0
    records = [row[i : i + width] for i in range(0, start, width)]
    return records, [row[i : i + width] for i in range(start, len(row), width)]


def solve(records: list[list[int]], question: list[int]) -> list[int]:
    """Return the answers in the records to a question, in the order of the records."""
    marker, *asked = question
    if KINDS.get(marker) == "reverse":
        return [key for key, value in records if [value] == asked]
    values = [record[-1] for record in records if record[:-1] == asked]
    kind = KINDS.get(marker)
    if kind == "latest":
        return values[-1:]
    if kind == "two-token":
        return values
    i = 0 if kind == "first" else marker - NTH
    return values[i : i + 1]


def answers(task: Recall, row: list[int]) -> dict[int, int]:
    """Return the answer to each question of a row, by the place of its last token."""
    records, questions = split(task, row)
    place = len(records) * len(records[0]) - 1
    found = {}
    for question in questions:
        (answer,) = solve(records, question)
        place += len(question)
        found[place] = answer
    return found


@pytest.mark.parametrize("kind", Recall.all_subsets)
def test_targets_are_what_the_row_says(tmp_path: Path, kind: str) -> None:
    task = make(tmp_path, samples=20)
    for point in task.eval_points(kind):
        items = task.items(kind, point)
        values = int(point.second_axis)
        for tokens, targets in zip(*items.batch(), strict=True):
            wanted = {i: t for i, t in enumerate(targets.tolist()) if t != IGNORE}
            assert wanted == answers(task, tokens.tolist())
            records, questions = split(task, tokens.tolist())
            assert len(records) == point.length and len(questions) == point.length // values
            assert len({record[-1] for record in records}) == point.length
            assert len({tuple(question) for question in questions}) == len(questions)
            for index in range(len(records[0]) - 1):
                counts = Counter(record[index] for record in records)
                assert set(counts.values()) == {values}
            if kind == "two-token":
                assert len({tuple(record[:2]) for record in records}) == point.length


def test_every_record_is_asked_for(tmp_path: Path) -> None:
    task = make(tmp_path, samples=400)
    seen = {}
    for kind in task.all_subsets:
        items = task.items(kind, EvalPoint(16, "4", ID))
        places = []
        for row in items.ids.tolist():
            records, questions = split(task, row)
            for question in questions:
                answer = solve(records, question)[0]
                held = [answer in record for record in records]
                places.append(held.index(True))
        seen[kind] = np.bincount(places, minlength=16) / len(places)
    assert seen["latest"].argmax() == 15 and seen["first"].argmax() == 0
    assert seen["two-token"] == pytest.approx([1 / 16] * 16, abs=0.03)
    assert seen["nth"] == pytest.approx([1 / 16] * 16, abs=0.03)


def test_cells(tmp_path: Path) -> None:
    task = make(tmp_path)
    sizes = {(point.length, point.second_axis): point.split for point in task.eval_points("latest")}
    assert sizes == {
        (8, "2"): ID, (16, "2"): ID, (16, "4"): ID,
        **{(n, str(w)): OOD for n in (32, 64) for w in (2, 4, 8)},
    }  # fmt: skip
    pairs = {(point.length, point.second_axis) for point in task.eval_points("two-token")}
    assert pairs == sizes.keys() - {(32, "8")}  # first tokens would need eight second ones
    groups = {
        (point.second_axis, point.groups) for point in task.eval_points("nth") if point.split == OOD
    }
    assert groups == {("2", ("longer",)), ("4", ("longer",)), ("8", ("more-values",))}
    large = make(tmp_path, "small", samples=1)
    assert EvalPoint(64, "8", OOD, ("more-values",)) in large.eval_points("first")
    assert large.max_eval_tokens == 3 * 256 + 3 * 128


def test_nth_asks_for_trained_numbers_alone(tmp_path: Path) -> None:
    task = make(tmp_path)
    items = task.items("nth", EvalPoint(64, "8", OOD))
    markers = items.ids[(items.ids < FIRST_WORD)]
    assert set(np.unique(markers)) == set(range(NTH, NTH + 4))


@pytest.mark.slow
def test_training_begins_with_two_records_and_mixes_kinds(tmp_path: Path) -> None:
    task = make(tmp_path)
    steps = task.train.steps
    sizes = Counter[tuple[int, int]]()
    kinds = Counter[tuple[bool, str]]()
    stages = 2 * steps // 5
    for step in [*range(0, stages, 64), *range(stages, steps, 16)]:
        tokens, targets = task.batch(None, 1, step)
        assert len(tokens) == 64
        for row, wanted in zip(tokens.tolist()[::3], targets.tolist()[::3], strict=True):
            found = {i: t for i, t in enumerate(wanted) if t != IGNORE}
            assert found == answers(task, row)
            records, questions = split(task, row)
            kinds[step < stages, KINDS.get(questions[0][0], "nth")] += 1
            if step < stages:
                assert len(records) == len(questions) == 2
            else:
                sizes[len(records), len(records) // len(questions)] += 1
    assert set(sizes) == {(4, 1), (4, 2), (8, 2), (16, 2), (16, 4)}
    mixed = np.array([kinds[False, kind] for kind in task.all_subsets])
    assert mixed / mixed.sum() == pytest.approx([0.2] * 5, abs=0.02)
    first = np.array([kinds[True, kind] for kind in task.all_subsets])
    assert first[2:4] / first.sum() == pytest.approx([1 / 3] * 2, abs=0.03)
    few = task.batch(None, 1, 3).tokens
    assert len(few[few >= FIRST_WORD].unique()) <= 8  # four keys and four values
    least = 8 + 4  # tokens of a stage's longest rows: two records and two questions
    assert few.shape[1] == least < task.held_out_batch(None, 3).tokens.shape[1]


def test_some_kinds_alone(tmp_path: Path) -> None:
    assert make_task(Recall, tmp_path).subsets == ("latest", "first", "reverse")
    task = make(tmp_path, kinds="reverse+latest")
    assert task.subsets == ("reverse", "latest") and task.train_length == 48
    for point in task.eval_points("latest"):
        everything = make(tmp_path).items("latest", point)
        assert (task.items("latest", point).ids == everything.ids).all()


@pytest.mark.slow
def test_no_reference_gets_halfway(tmp_path: Path) -> None:
    task = make(tmp_path, samples=30)
    baselines = task.baselines()
    assert {"a record of the key", "the last record"} <= baselines.keys()
    for rows in baselines.values():
        means = {row.subset: row.value for row in rows if row.metric == "accuracy"}
        for kind in task.all_subsets:
            for end in (ID, OOD):
                assert means[f"{kind}-{end}"] < 45
    key = {r.subset: r.value for r in baselines["a record of the key"] if r.metric == "accuracy"}
    assert key[f"latest-{ID}"] == pytest.approx(100 * (0.5 + 0.5 + 0.25) / 3)
    assert key[f"nth-{OOD}"] == pytest.approx(100 * (0.5 + 0.25 + 0.125) / 3)
    assert key[f"reverse-{ID}"] == pytest.approx(100 * (1 / 4 + 1 / 8 + 1 / 4) / 3)
    last = {r.subset: r.value for r in baselines["the last record"] if r.metric == "accuracy"}
    # The last record is the latest of its key, one of the keys that are asked for.
    assert last[f"latest-{ID}"] == pytest.approx(key[f"reverse-{ID}"])
    assert last[f"first-{ID}"] == 0
