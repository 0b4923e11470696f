"""Flip-flop: rows follow the definition, reads are counted, means and the gate are as claimed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import lengths_by_mean, make_task

from pe_bench.config import IGNORE
from pe_bench.results.splits import ID, OOD
from pe_bench.sequences.eval_points import EvalPoint
from pe_bench.sequences.rows import Sequences
from pe_bench.tasks.flipflop import IGNORED, ONE, READ, SKIP, WRITE, ZERO, Flipflop

LETTERS = {WRITE: "w", READ: "r", SKIP: "i", ZERO: "0", ONE: "1"}


def make(tmp_path: Path, preset: str = "quick", **options: Any) -> Flipflop:
    return make_task(Flipflop, tmp_path, preset, **options)


def texts(sequences: Sequences) -> list[str]:
    assert (sequences.lengths == sequences.ids.shape[1]).all()
    return ["".join(LETTERS[i] for i in row) for row in sequences.ids.tolist()]


def reads(text: str) -> list[int]:
    """Return the places of the bits after r, and assert that each is the bit last written."""
    memory, found = "", []
    for index in range(0, len(text), 2):
        instruction, bit = text[index], text[index + 1]
        if instruction == "w":
            memory = bit
        elif instruction == "r":
            assert bit == memory
            found.append(index + 1)
    return found


@pytest.mark.parametrize(("subset", "share"), IGNORED.items())
@pytest.mark.parametrize("pairs", [2, 64])
def test_items_are_texts_of_the_language(
    tmp_path: Path, subset: str, share: float, pairs: int
) -> None:
    items = make(tmp_path, samples=300).items(subset, EvalPoint(2 * pairs))
    found = texts(items)
    assert len(found) == 300 and {len(text) for text in found} == {2 * pairs}
    for text, scored in zip(found, items.scored, strict=True):
        assert text[0] == "w" and text[-2] == "r"
        assert reads(text) == np.flatnonzero(scored).tolist()
    middle = "".join(text[2:-2] for text in found)
    if middle:
        frequencies = [middle.count(letter) / (len(middle) / 2) for letter in "irw"]
        assert frequencies == pytest.approx([share, (1 - share) / 2, (1 - share) / 2], abs=0.02)
        ignored = [bit for i, bit in zip(middle[::2], middle[1::2], strict=True) if i == "i"]
        assert np.mean([bit == "1" for bit in ignored]) == pytest.approx(0.5, abs=0.03)


def test_the_training_texts_are_usual_ones_with_loss_at_reads(tmp_path: Path) -> None:
    task = make(tmp_path)
    tokens, targets = task.batch(None, 3, 5)
    assert tokens.shape == (64, 63)
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        whole = [*row, target[-1]]  # the row ends with a read
        places = reads("".join(LETTERS[i] for i in whole))
        expected = {place - 1: whole[place] for place in places}
        assert {i: t for i, t in enumerate(target) if t != IGNORE} == expected
    ignored = (tokens[:, 2:-1:2] == SKIP).double().mean()
    assert float(ignored) == pytest.approx(0.8, abs=0.03)


def test_means_of_lengths_and_frequencies(tmp_path: Path) -> None:
    task = make(tmp_path, pairs=8, times=4)
    assert (task.train_length, task.max_train_axis, task.max_eval_tokens) == (16, 16, 64)
    usual, sparse, dense = IGNORED
    assert (usual, sparse, dense) == (ID, "sparse", "dense")
    assert lengths_by_mean(task, usual) == {ID: [16], "longer": [32, 64], OOD: [32, 64]}
    for name in (sparse, dense):
        expected = {name: [16], f"longer-{name}": [32, 64], OOD: [16, 32, 64]}
        assert lengths_by_mean(task, name) == expected


@pytest.mark.slow
def test_sizes_of_the_paper(tmp_path: Path) -> None:
    task = make(tmp_path, "paper")
    assert (task.train_length, task.max_eval_tokens) == (512, 2048)
    assert task.train.steps * task.train.batch_size == 1_600_000
