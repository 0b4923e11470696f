"""Selective copying: rows follow the definition; settings, means and the gate are as claimed."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers import Oracle, answer_after, lengths_by_mean, make_task, measure

from pe_bench.config import IGNORE
from pe_bench.results.splits import ID, OOD
from pe_bench.sequences.eval_points import EvalPoint
from pe_bench.sequences.rows import END, Sequences
from pe_bench.tasks.selective_copy import BLANK, FIRST_SYMBOL, SEP, START, SelectiveCopy

BLANKS = (2, 4, 6, 8, 10, 12, 16, 32)  # trained: 8


def make(tmp_path: Path, preset: str = "quick", **options: Any) -> SelectiveCopy:
    return make_task(SelectiveCopy, tmp_path, preset, **options)


def check(row: list[int], scored: list[bool], blanks: int, tokens: int, symbols: int) -> list[int]:
    """Assert that a whole row follows the definition; return the places of its blanks."""
    assert row[0] == START and row[-1] == END and row.count(SEP) == 1
    question, answer = row[1 : row.index(SEP)], row[row.index(SEP) + 1 : -1]
    assert answer == [token for token in question if token != BLANK]
    assert len(answer) == tokens and question.count(BLANK) == blanks
    assert all(FIRST_SYMBOL <= token < FIRST_SYMBOL + symbols for token in answer)
    assert scored == [False] * (len(question) + 2) + [True] * (tokens + 1)
    return [i for i, token in enumerate(question) if token == BLANK]


@pytest.mark.parametrize("blanks", [2, 4, 8, 16, 32])
def test_items_are_what_they_say(tmp_path: Path, blanks: int) -> None:
    task = make(tmp_path, blanks=8, tokens=5, symbols=3, samples=40)
    items = task.items("by-blanks", EvalPoint(blanks))
    assert len(items) == 40
    for row, scored in zip(items.ids.tolist(), items.scored.tolist(), strict=True):
        check(row, scored, blanks, 5, 3)
        assert len(row) <= task.max_eval_tokens
    assert items.ids.max() == FIRST_SYMBOL + 2 < task.vocabulary.vocab_size


@pytest.mark.slow
def test_training_scatters_the_blanks_evenly(tmp_path: Path) -> None:
    task = make(tmp_path, blanks=6, tokens=4, symbols=5)
    where, seen = np.zeros(10), np.zeros(5)
    for step in range(60):
        tokens, targets = task.batch(None, 3, step)
        for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
            whole = [*row, target[-1]]
            assert all(t in (IGNORE, i) for t, i in zip(target, whole[1:], strict=True))
            where[check(whole, [False, *(t != IGNORE for t in target)], 6, 4, 5)] += 1
            seen += np.bincount(np.array(whole[-5:-1]) - FIRST_SYMBOL, minlength=5)
            assert len(whole) == task.train_length
    assert abs(where / where.sum() - 1 / 10).max() < 0.01
    assert abs(seen / seen.sum() - 1 / 5).max() < 0.02


def test_means_over_numbers_of_blanks(tmp_path: Path) -> None:
    names = {"dense": 4, "slightly-denser": 6, "slightly-sparser": 10, "sparser": 12, "sparse": 16}
    expected = {name: [blanks] for name, blanks in names.items()}
    task = make(tmp_path, blanks=8)
    assert lengths_by_mean(task, "by-blanks") == expected | {ID: [8], OOD: [*names.values()]}
    assert [cell.length for cell in task.eval_points("by-blanks")] == [*BLANKS]


def copier() -> Oracle:
    """Return a model that answers correctly and whose outputs depend on later tokens."""

    def answer(ids: list[int]) -> list[int]:
        end = ids.index(SEP)
        symbols = [i for i in ids[1:end] if i != BLANK]
        return answer_after(end + 1, [*symbols, END])

    return Oracle(answer, prefix_consistent=False)


def test_token_accuracy_is_after_right_tokens_whatever_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make(tmp_path, blanks=8, tokens=3, samples=4)
    calls: list[int] = []

    def nothing(model: Any, some: Sequences) -> tuple[npt.NDArray[np.bool_], int]:
        calls.append(len(some))
        return np.zeros(some.ids.shape, dtype=np.bool_), 1

    monkeypatch.setattr("pe_bench.sequences.scoring._generated", nothing)
    rows = measure(task, copier(), tmp_path / "journal")
    found = {(row.metric, row.length): row.value for row in rows}
    assert found["exact_match", 8] == 0 and found["token_accuracy", 8] == 100
    assert sum(calls) == len(BLANKS) * 4


def test_sizes_of_the_presets(tmp_path: Path) -> None:
    expected = {"quick": (27, 8, 51), "small": (195, 64, 387), "paper": (387, 128, 771)}
    for preset, sizes in expected.items():
        task = make(tmp_path, preset)
        assert (task.train_length, task.max_train_axis, task.max_eval_tokens) == sizes
    blanks = [point.length for point in task.eval_points("by-blanks")]
    assert blanks == [32, 64, 96, 128, 160, 192, 256, 512]
