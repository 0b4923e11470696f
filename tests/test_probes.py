"""Probes: answers follow the definition, all places occur, means are as claimed."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import lengths_by_mean, make_task

from pe_bench.config import IGNORE
from pe_bench.results.splits import ID, OOD
from pe_bench.sequences.eval_points import EvalPoint
from pe_bench.sequences.rows import PAD, Sequences
from pe_bench.tasks.probes import ASK, FIRST_SYMBOL, MARK, N_SYMBOLS, PROBES, REACH, START, Probes

LETTERS = "abcdefghijklmnop"


def make(
    tmp_path: Path,
    preset: str = "quick",
    subsets: tuple[str, ...] | None = PROBES,
    **options: Any,
) -> Probes:
    return make_task(Probes, tmp_path, preset, subsets=subsets, **options)


def text(ids: list[int]) -> str:
    """Return a row in the notation of the task's docstring, with numbers in brackets."""
    names = {START: "^", ASK: ":", MARK: "*", PAD: "_"}
    names |= {FIRST_SYMBOL + i: letter for i, letter in enumerate(LETTERS)}
    return "".join(names.get(i, f"<{i - FIRST_SYMBOL - N_SYMBOLS + 1}>") for i in ids)


def solve(probe: str, question: str) -> tuple[str, int, int]:
    """Return the answer, the length of the list and k (for `halves` the place), from the text."""
    listed, asked = question.removeprefix("^").split(":", 1)
    if probe == "halves":
        second = asked.removesuffix(":")
        assert len(second) == len(listed) and second.count("*") == 1 and "*" not in listed
        return listed[second.index("*")], len(listed), second.index("*") + 1
    k = int(asked[1:-1])
    if probe == "index":
        return listed[k - 1], len(listed), k
    assert listed.count("*") == 1
    before, after = listed.split("*")
    return (after[k - 1] if probe == "after" else before[-k]), len(listed) - 1, k


def check(probe: str, items: Sequences) -> Counter[tuple[int, int]]:
    """Check that all answers are right, and return the counts of lengths and k."""
    seen: Counter[tuple[int, int]] = Counter()
    for ids, scored, length in zip(items.ids.tolist(), items.scored, items.lengths, strict=True):
        *question, answer = ids[:length]
        assert np.flatnonzero(scored).tolist() == [length - 1]
        expected, size, k = solve(probe, text(question))
        assert text([answer]) == expected
        seen[size, k] += 1
    return seen


def test_the_examples_of_the_docstring() -> None:
    assert [
        solve(*question.split(" "))[0]
        for question in ("index ^abcd:<3>", "after ^ab*cd:<2>", "before ^ab*cd:<2>")
    ] == ["c", "d", "a"]
    assert solve("halves", "^abcd:bg*d:")[0] == "c"


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("size", [4, 7, 16, 128])
def test_items_have_the_right_answer(tmp_path: Path, probe: str, size: int) -> None:
    task = make(tmp_path, samples=800)
    items = task.items(probe, EvalPoint(size))
    seen = check(probe, items)
    assert {length for length, _ in seen} == {size}
    most = REACH if probe in ("after", "before") else min(size, 16 if probe == "index" else 999)
    if most <= 16:
        counts = [seen[size, k] * most / 800 for k in range(1, most + 1)]
        assert sum(seen.values()) == 800 and counts == pytest.approx([1] * most, abs=0.45)
    else:
        assert max(k for _, k in seen) > 0.9 * size


@pytest.mark.parametrize("probe", ["after", "before"])
def test_the_marker_is_anywhere(tmp_path: Path, probe: str) -> None:
    items = make(tmp_path, samples=4000).items(probe, EvalPoint(8))
    numbers = items.ids[:, -2] - FIRST_SYMBOL - N_SYMBOLS + 1
    places = (items.ids == MARK).argmax(1) - 1  # how many symbols are before it
    for k in range(1, REACH + 1):
        found = Counter(places[numbers == k].tolist())
        shift = 0 if probe == "after" else k
        assert set(found) == set(range(shift, 9 - k + shift))
        shares = [n * (9 - k) / (numbers == k).sum() for n in found.values()]
        assert shares == pytest.approx([1] * (9 - k), abs=0.35)


@pytest.mark.parametrize("probe", PROBES)
def test_training_draws_lengths_evenly(tmp_path: Path, probe: str) -> None:
    task = make(tmp_path)
    sizes: Counter[int] = Counter()
    for step in range(30):
        tokens, targets = task.batch(probe, 3, step)
        assert tokens.shape[0] == 64 and tokens.shape[1] < task.train_length
        for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
            (place,) = (i for i, t in enumerate(target) if t != IGNORE)
            expected, size, _ = solve(probe, text(row[: place + 1]))
            assert text([target[place]]) == expected
            assert not any(row[place + 1 :][1:])  # the answer, then padding
            sizes[size] += 1
    shares = [sizes[size] * 13 / 1920 for size in range(4, 17)]
    assert sum(sizes.values()) == 1920 and shares == pytest.approx([1] * 13, abs=0.35)


def test_means_of_each_probe(tmp_path: Path) -> None:
    task = make(tmp_path)
    assert task.trains_each_subset and task.subsets == PROBES
    for probe in PROBES:
        lengths = lengths_by_mean(task, probe)
        assert lengths[ID] == lengths[f"{probe}-{ID}"] == [4, 8, 16]
        assert lengths[OOD] == lengths[f"{probe}-{OOD}"] == [24, 32, 64, 128]


def test_models_of_all_probes_are_alike(tmp_path: Path) -> None:
    one = make(tmp_path, subsets=("index",))
    task = make(tmp_path)
    assert one.train_length == task.train_length == 36
    longest = max(task.items(probe, EvalPoint(128)).ids.shape[1] for probe in PROBES)
    assert longest == one.max_eval_tokens == task.max_eval_tokens
