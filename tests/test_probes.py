"""Probes: questions have the answers that their definition gives, all places come up, means."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Oracle, answer_after, make_task, measure

from pe_bench.decoder.model import IGNORE
from pe_bench.errors import InputError
from pe_bench.sequences.rows import PAD, Sequences
from pe_bench.tasks.probes import ASK, MARK, PROBES, REACH, START, SYMBOL, SYMBOLS, Probes

LETTERS = "abcdefghijklmnop"


def make(
    tmp_path: Path,
    preset: str = "quick",
    subsets: tuple[str, ...] | None = PROBES,
    **options: Any,
) -> Probes:
    return make_task(Probes, tmp_path, preset, subsets=subsets, **options)


def text(ids: list[int]) -> str:
    """As in the docstring of the task; numbers in brackets."""
    names = {START: "^", ASK: ":", MARK: "*", PAD: "_"}
    names |= {SYMBOL + i: letter for i, letter in enumerate(LETTERS)}
    return "".join(names.get(i, f"<{i - SYMBOL - SYMBOLS + 1}>") for i in ids)


def solve(probe: str, question: str) -> tuple[str, int, int]:
    """The answer, the length of the list and k (of `halves`: the place), read from the text."""
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
    """That all answers are right; how often each length came with each k."""
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
    items = task.items(probe, size)
    seen = check(probe, items)
    assert {length for length, _ in seen} == {size}
    most = REACH if probe in ("after", "before") else min(size, 16 if probe == "index" else 999)
    if most <= 16:
        counts = [seen[size, k] * most / 800 for k in range(1, most + 1)]
        assert sum(seen.values()) == 800 and counts == pytest.approx([1] * most, abs=0.45)
    else:
        assert max(k for _, k in seen) > 0.9 * size
    assert (task.items(probe, size).ids == items.ids).all()
    assert items.ids.max() < task.vocab_size


@pytest.mark.parametrize("probe", ["after", "before"])
def test_the_marker_is_anywhere(tmp_path: Path, probe: str) -> None:
    items = make(tmp_path, samples=4000).items(probe, 8)
    numbers = items.ids[:, -2] - SYMBOL - SYMBOLS + 1
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
    same = task.batch(probe, 3, 5).tokens
    assert torch.equal(same, task.batch(probe, 3, 5).tokens)
    assert not torch.equal(same, task.batch(probe, 4, 5).tokens)


def solver(probe: str, most: int = 10**6) -> Oracle:
    """Answers a probe rightly on lists of up to `most` symbols."""

    def answer(ids: list[int]) -> list[int]:
        letter, size, _ = solve(probe, text(ids).rstrip("_"))
        return answer_after(len(ids), [SYMBOL + LETTERS.index(letter) if size <= most else 0])

    return Oracle(answer)


def solvers(**most: int) -> dict[str, Oracle]:
    return {probe: solver(probe, most.get(probe, 10**6)) for probe in PROBES}


def test_means_and_the_gate_of_each_probe(tmp_path: Path) -> None:
    task = make(tmp_path, samples=5)
    rows = measure(task, solvers(index=16, after=32, before=8), tmp_path / "a")
    curves = {(r.subset, r.length): r.value for r in rows if r.metric == "exact_match"}
    lengths = (4, 8, 16, 24, 32, 64, 128)
    assert [curves["after", n] for n in lengths] == [100, 100, 100, 100, 100, 0, 0]
    assert len(curves) == 28 and len(rows) == 3 * 28
    found = {(r.subset, r.metric): r.value for r in task.summarize(rows)}
    assert found == {
        ("index-inside", "exact_match"): 100,
        ("after-inside", "exact_match"): 100,
        ("before-inside", "exact_match"): pytest.approx(200 / 3),
        ("halves-inside", "exact_match"): 100,
        ("index-beyond", "exact_match"): 0,
        ("after-beyond", "exact_match"): 50,
        ("before-beyond", "unsolved_exact_match"): 0,
        ("halves-beyond", "exact_match"): 100,
        ("beyond", "unsolved_exact_match"): 37.5,
    }
    solved = task.summarize(measure(task, solvers(index=16), tmp_path / "b"))
    assert {(r.subset, r.metric): r.value for r in solved}["beyond", "exact_match"] == 75
    assert sum(r.n for r in solved if r.subset == "beyond") == 4 * 4 * 5
    quick = make(tmp_path, subsets=None, samples=5)
    assert quick.subsets == PROBES[:2] and len(quick.shown) == 4
    (mean,) = [r.value for r in quick.summarize(rows) if r.subset == "beyond"]
    assert mean == 25 and quick.fingerprint != task.fingerprint
    part = [row for row in rows if row.subset == "after"]
    assert [r.subset for r in task.summarize(part)] == ["after-inside", "after-beyond"]
    assert task.summarize([]) == []


def test_each_probe_has_a_seed_of_its_own(tmp_path: Path) -> None:
    task = make(tmp_path)
    assert task.trains_each_subset and task.subsets == PROBES
    lists = [task.items(probe, 16).ids[:, 1] for probe in ("index", "halves")]
    assert (lists[0] != lists[1]).any()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"longest": 15}, "probes:longest must be from 16 to 4096, not 15"),
    ],
)
def test_options_out_of_range(tmp_path: Path, options: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make(tmp_path, **options)


def test_presets_train_on_rows_as_long_as_they_say(tmp_path: Path) -> None:
    for name, preset in Probes.presets.items():
        task = make(tmp_path, name)
        assert preset.train.length == task.train_length
        longest = max(
            task.items(probe, size).ids.shape[1] for probe in PROBES for size in (task.sizes[-1],)
        )
        assert longest == task.longest
