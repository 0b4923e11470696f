"""Addition: the equations are right; points and means contain the rows that they claim."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import cells_by_mean, make_task

from pe_bench.config import IGNORE
from pe_bench.results.splits import ID, OOD
from pe_bench.sequences.eval_points import EvalPoint
from pe_bench.sequences.rows import END, PAD, Sequences
from pe_bench.sequences.scoring import decoding_tokens
from pe_bench.tasks.addition.equations import EQUALS, PLUS, SYMBOLS, ZERO
from pe_bench.tasks.addition.task import Addition


def make(
    tmp_path: Path, preset: str = "quick", protocol: str = "strict", **options: Any
) -> Addition:
    return make_task(Addition, tmp_path, preset, protocol=protocol, **options)


def items(task: Addition, first: int, second: int) -> Sequences:
    return task.items("cells", EvalPoint(first, str(second)))


def texts(sequences: Sequences) -> list[str]:
    found = []
    for ids, length in zip(sequences.ids, sequences.lengths, strict=True):
        *symbols, end = ids[:length]
        assert end == END and (ids[length:] == PAD).all()
        found.append("".join(SYMBOLS[i - ZERO] for i in symbols))
    return found


def numbers(text: str) -> tuple[str, str, int]:
    """Return the operands as written, and the error of the sum (0: correct)."""
    question, total = text.split("=")
    a, b = question.split("+")
    return a, b, int(a[::-1]) + int(b[::-1]) - int(total[::-1])


@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 2), (3, 7), (10, 10), (40, 23)])
def test_items_are_equations_of_their_cell(tmp_path: Path, first: int, second: int) -> None:
    task = make(tmp_path, digits=20)
    found = items(task, first, second)
    for text, scored in zip(texts(found), found.scored, strict=True):
        a, b, wrong = numbers(text)
        assert (len(a), len(b), wrong) == (first, second, 0)
        assert a[-1] != "0" != b[-1] and not text.endswith("0")  # the leading digits
        assert np.flatnonzero(scored).tolist() == list(range(first + second + 2, len(text) + 1))


def test_small_cells(tmp_path: Path) -> None:
    strict = items(make(tmp_path), 1, 1)
    paper = items(make(tmp_path, protocol="paper"), 1, 1)
    assert len(strict) == len(set(texts(strict))) == 81
    assert len(paper) == 100 > len(set(texts(paper)))
    assert len(items(make(tmp_path), 1, 2)) == 100
    assert len(items(make(tmp_path, samples=7), 1, 1)) == 7


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1), (2, 2), (1, 3)])
def test_larger_cells_with_few_equations(tmp_path: Path, first: int, second: int) -> None:
    pairs = 81 * 10 ** (first + second - 2)
    found = texts(items(make(tmp_path, samples=pairs), first, second))
    assert len(found) == len(set(found)) == pairs  # each one once
    for text in found:
        a, b, wrong = numbers(text)
        assert (len(a), len(b), wrong) == (first, second, 0) and a[-1] != "0" != b[-1]
    assert len(items(make(tmp_path, samples=pairs - 1), first, second)) == pairs - 1


def test_training_draws_lengths_evenly_and_scores_what_follows_the_equals_sign(
    tmp_path: Path,
) -> None:
    task = make(tmp_path, digits=5)
    seen = np.zeros((6, 6))
    for step in range(40):
        tokens, targets = task.batch(None, 3, step)
        assert tokens.shape[1] < task.train_length
        for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
            equals = row.index(EQUALS)
            plus = row.index(PLUS)
            seen[plus, equals - plus - 1] += 1
            assert all(t == IGNORE for t in target[:equals])
            answer = [t for t in target[equals:] if t != IGNORE]
            assert answer[-1] == END and min(answer[:-1]) >= ZERO
    points = seen[1:, 1:] / seen.sum()
    assert seen[0].sum() == 0 and abs(points - 1 / 25).max() < 0.02


def test_means_of_pairs_of_lengths(tmp_path: Path) -> None:
    task = make(tmp_path, digits=2)
    grid = {(i, j) for i in range(1, 5) for j in range(1, 5)}
    trained = {(1, 1), (1, 2), (2, 1), (2, 2)}
    both_longer = {(3, 3), (3, 4), (4, 3), (4, 4)}
    means = {}
    for name, places in cells_by_mean(task).items():
        means[name] = {(first, int(second)) for first, second in places}
    assert means == {
        "grid": grid,
        ID: trained,
        OOD: grid - trained,
        "one-longer": grid - trained - both_longer,
        "both-longer": both_longer,
        "one-digit-more": {(1, 3), (2, 3), (3, 3), (3, 2), (3, 1)},
    }
    diagonal = [cell[:2] for cell in task.eval_points("cells") if cell.curve == "diagonal"]
    assert diagonal == [(1, "1"), (2, "2"), (3, "3"), (4, "4")]


@pytest.mark.slow
def test_the_grid_of_the_paper_costs_a_fortieth(tmp_path: Path) -> None:
    task = make(tmp_path, preset="paper", samples=2)
    assert (task.digits, task.max_eval_tokens, task.train_length) == (40, 244, 124)
    points = [items(task, i, j) for i in range(1, 81, 7) for j in range(1, 81, 7)]
    forward = sum(int((point.lengths - 1).sum()) for point in points)
    assert sum(map(decoding_tokens, points)) > 40 * 1.2 * forward
