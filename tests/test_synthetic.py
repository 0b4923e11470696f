"""Sequences concatenated from parts, and exact match from one forward pass."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers import CODED, some_slow
from torch import Tensor

from pe_bench.config import IGNORE, ModelConfig
from pe_bench.decoder.generation import generate
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.positions import Positions
from pe_bench.registry import plugins
from pe_bench.results.intervals import wilson
from pe_bench.sequences.rows import (
    END,
    PAD,
    Segment,
    Sequences,
    Turn,
    collate,
    concatenate,
    stack,
)
from pe_bench.sequences.scoring import (
    count_correct,
    decoding_tokens,
    exact_match,
    teacher_forced,
)


def sequences() -> Sequences:
    """Return three rows: 5 6 | 9 | 7 8 END, 5 | 9 | 7 END and 9 | END."""
    first, second = np.array([[5, 6], [5, 0], [0, 0]]), np.array([[7, 8], [7, 0], [0, 0]])
    sizes = np.array([2, 1, 0])
    return concatenate(
        3,
        Segment(first, sizes),
        Segment(np.array([9])),
        Segment(second, sizes, scored=True),
        Segment(np.array([END]), scored=True),
    )


def test_rows_are_joined_without_gaps() -> None:
    found = sequences()
    assert found.ids.tolist() == [
        [5, 6, 9, 7, 8, END],
        [5, 9, 7, END, PAD, PAD],
        [9, END, PAD, PAD, PAD, PAD],
    ]
    assert found.lengths.tolist() == [6, 4, 2]
    assert [row.nonzero()[0].tolist() for row in found.scored] == [[3, 4, 5], [2, 3], [1]]
    batch = found.batch()
    assert batch.tokens.tolist()[1] == [5, 9, 7, END, PAD]
    assert batch.targets.tolist()[1] == [IGNORE, 7, END, IGNORE, IGNORE]
    few = found.take(np.array([2, 1]))
    assert few.ids.tolist() == [[9, END, PAD, PAD], [5, 9, 7, END]]
    both = stack([few, found])
    assert both.ids.shape == (5, 6) and both.lengths.tolist() == [2, 4, 6, 4, 2]
    # Prompts of 3, 2 and 1 tokens; every answer token needs all before it.
    assert decoding_tokens(found) == (3 + 4 + 5) + (2 + 3) + 1


def decoder(spec: str, std: float = 0.3) -> Decoder:
    torch.manual_seed(0)
    shape = ModelConfig(
        layers=2,
        heads=2,
        width=32,
        mlp_width=48,
        vocab_size=12,
        init_std=std,
        train_length=8,  # rows are shorter and longer
        digit_ids=tuple(range(2, 8)),
        separator_ids=(8,),
    )
    return Decoder(shape, plugins.load("encoding", spec).make).double().eval()


def rows_half_right(model: Decoder, rows: int) -> Sequences:
    """Return prompts of 2 to 9 tokens; the model writes the right answer to every other one."""
    random = np.random.default_rng(0)
    sizes = random.integers(2, 10, rows)
    prompts = [random.integers(2, 12, size).tolist() for size in sizes]
    answers = generate(model, prompts, max_new_tokens=4, end=END)
    made = []
    for row, (prompt, text) in enumerate(zip(prompts, answers, strict=True)):
        gold = [*text, END][:4]
        if row % 2:
            place = int(random.integers(len(gold)))
            gold[place] = END + (gold[place] + int(random.integers(11))) % 11
        parts = Segment(np.array([prompt])), Segment(np.array([gold]), scored=True)
        made.append(concatenate(1, *parts))
    return stack(made)


def by_decoding(model: Decoder, items: Sequences) -> list[bool]:
    """Return exact match by decoding, token by token."""
    found = []
    for ids, scored, length in zip(items.ids, items.scored, items.lengths, strict=True):
        gold = ids[:length][scored[:length]].tolist()
        prompt = ids[:length][~scored[:length]].tolist()
        (text,) = generate(model, [prompt], max_new_tokens=len(gold), end=END)
        found.append([*text, END][: len(gold)] == gold)
    return found


@pytest.mark.parametrize("spec", some_slow(CODED, everyday=("cope",)))
def test_one_forward_pass_is_greedy_decoding(spec: str) -> None:
    model = decoder(spec)
    items = rows_half_right(model, 20)
    assert exact_match(model, items).exact.tolist() == by_decoding(model, items)
    assert 5 <= exact_match(model, items).exact.sum() <= 15  # both outcomes occur


def test_which_path_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("_predicted", "_generated"):
        inner = getattr(__import__("pe_bench.sequences.scoring", fromlist=[name]), name)

        def watch(*args: Any, name: str = name, inner: Any = inner) -> Any:
            calls.append(name)
            return inner(*args)

        monkeypatch.setattr(f"pe_bench.sequences.scoring.{name}", watch)
    expected = {
        "rope": "_predicted",
        "randpe": "_predicted",
        "rope:scaling=dynamic-pi": "_generated",
    }
    for spec, path in expected.items():
        calls.clear()
        exact_match(decoder(spec), sequences())
        assert set(calls) == {path}
        calls.clear()
        teacher_forced(decoder(spec), sequences())
        assert set(calls) == {"_predicted"}


class Whole(Encoding):
    """An encoding that depends on the length of the row."""

    prefix_consistent = False
    seen: list[tuple[int, ...]]

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        self.seen.append(tuple(x.shape[:2]))
        return x * x.shape[1]


def test_rows_share_a_forward_pass_with_rows_as_long() -> None:
    torch.manual_seed(0)
    shape = ModelConfig(layers=1, heads=2, width=8, mlp_width=8, vocab_size=12)
    random = np.random.default_rng(1)
    sizes = random.integers(1, 60, 300)
    items = concatenate(
        300,
        Segment(random.integers(2, 12, (300, 60)), sizes),
        Segment(np.array([[END]]), scored=True),
    )
    found = exact_match(Decoder(shape, Encoding).eval(), items, max_tokens=1000)
    assert found.forward_tokens < 1.1 * (items.lengths - 1).sum()
    Whole.seen = []
    teacher_forced(Decoder(shape, Whole).eval(), items, max_tokens=1000)
    assert sum(rows for rows, _ in Whole.seen) == 300
    assert {width for _, width in Whole.seen} == set(sizes.tolist())
    assert max(rows * width for rows, width in Whole.seen) <= 1000


@pytest.mark.parametrize(
    ("share", "n", "low", "high"),
    [(0.0, 100, 0.0, 0.0370), (1.0, 100, 0.9630, 1.0), (0.5, 100, 0.4038, 0.5962)],
)
def test_wilson_intervals(share: float, n: int, low: float, high: float) -> None:
    assert wilson(share, n) == pytest.approx((low, high), abs=5e-5)


def test_samples_of_unequal_length() -> None:
    found = collate([[Turn([5, 6, 9], [7, 8, END])], [Turn([9], [END])]])
    assert found.ids.tolist() == [[5, 6, 9, 7, 8, END], [9, END, PAD, PAD, PAD, PAD]]
    assert found.lengths.tolist() == [6, 2]
    assert [row.nonzero()[0].tolist() for row in found.scored] == [[3, 4, 5], [1]]


def test_tokens_before_the_first_wrong_one() -> None:
    targets = np.array([[IGNORE, 1, 2, IGNORE, 3], [IGNORE, 1, IGNORE, 2, 3]])
    predicted = np.array([[0, 1, 2, 0, 4], [0, 9, 0, 2, 3]])
    leading, correct = count_correct(predicted, targets)
    assert leading.tolist() == [2, 0] and correct.tolist() == [2, 2]
