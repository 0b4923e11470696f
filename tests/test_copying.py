"""Copying: rows follow the definition, lengths are uniform, means are as claimed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import lengths_by_mean, make_task, some_slow

from pe_bench.config import IGNORE
from pe_bench.results.splits import FAR, ID, OOD
from pe_bench.sequences.eval_points import EvalPoint
from pe_bench.sequences.rows import PAD, Sequences
from pe_bench.task import Batch
from pe_bench.tasks.copying.task import Copying
from pe_bench.tasks.copying.variants import FIRST_SYMBOL, VARIANTS

NAMES = ("END", "COPY", "REVERSE", "REPLACE", "WITH", "IN", "SEP", "NEXT")
WORDS = dict(zip(range(1, FIRST_SYMBOL), NAMES, strict=True))
ALL = tuple(VARIANTS)


def make(
    tmp_path: Path,
    subsets: tuple[str, ...] | None = ALL,
    preset: str = "quick",
    protocol: str = "strict",
    **options: Any,
) -> Copying:
    return make_task(Copying, tmp_path, preset, protocol=protocol, subsets=subsets, **options)


def words(ids: list[int]) -> list[str]:
    return [WORDS.get(i) or f"s{i - FIRST_SYMBOL}" for i in ids]


def texts(sequences: Sequences) -> list[list[str]]:
    """Return the rows without padding."""
    found = []
    for ids, length in zip(sequences.ids, sequences.lengths, strict=True):
        assert (ids[length:] == PAD).all()
        found.append(words(ids[:length].tolist()))
    return found


def right_answer(name: str, question: list[str]) -> list[str]:
    """Return the correct answer after SEP, derived from the question by the definition."""
    assert question[-1] == "SEP"
    if name == "replace":
        command, a, with_, b, in_, *sequence = question[:-1]
        assert (command, with_, in_) == ("REPLACE", "WITH", "IN") and a != b
        assert set(sequence) == {a}
        return [b if symbol == a else symbol for symbol in sequence] + ["END"]
    command, *sequence = question[:-1]
    assert command == ("REVERSE" if name.startswith("reverse") else "COPY")
    assert all(symbol[0] == "s" for symbol in sequence)
    if "constant" in name:
        assert len(set(sequence)) == 1
    reverse = [*reversed(sequence)]
    return {
        "copy-constant": sequence,
        "copy-constant-twice": sequence + sequence,
        "copy": sequence,
        "copy-twice": [*sequence, "NEXT", *sequence],
        "reverse": reverse,
        "reverse-twice": [*reverse, "NEXT", *reverse],
        "reverse-then-copy": [*reverse, "NEXT", *sequence],
    }[name] + ["END"]


def size_of(name: str, text: list[str]) -> int:
    return text.index("SEP") - (5 if name == "replace" else 1)


def check(name: str, text: list[str], scored: list[bool]) -> int:
    """Assert that a row is right and scored only after SEP; return the length of its sequence."""
    question = text[: text.index("SEP") + 1]
    assert text[len(question) :] == right_answer(name, question)
    assert scored == [False] * len(question) + [True] * (len(text) - len(question))
    return size_of(name, text)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("protocol", ["strict", "paper"])
def test_items_are_what_the_variant_asks_for(tmp_path: Path, name: str, protocol: str) -> None:
    task = make(tmp_path, protocol=protocol, symbols=7, samples=30)
    for size in (2, 5, 20):
        found = items_of(task, name, size)
        for text, scored, length in zip(texts(found), found.scored, found.lengths, strict=True):
            assert check(name, text, scored[:length].tolist()) == size
    assert task.max_eval_tokens >= len(texts(items_of(task, name, 20))[0])


@pytest.mark.parametrize(
    ("name", "size", "different"),
    [
        ("copy-constant", 5, 4),
        ("copy-constant-twice", 3, 4),
        ("replace", 5, 12),
        ("copy", 2, 16),
        ("reverse-then-copy", 2, 16),
    ],
)
def test_where_there_are_few_items_each_counts_once(
    tmp_path: Path, name: str, size: int, different: int
) -> None:
    strict = texts(items_of(make(tmp_path, symbols=4, samples=16), name, size))
    assert len(strict) == len(set(map(tuple, strict))) == different
    drawn = texts(items_of(make(tmp_path, protocol="paper", symbols=4, samples=16), name, size))
    assert len(drawn) == 16 > len(set(map(tuple, drawn)))
    assert (
        len(items_of(make(tmp_path, symbols=4, samples=different - 1), name, size)) == different - 1
    )


def items_of(task: Copying, name: str, size: int) -> Sequences:
    return task.items(name, EvalPoint(size))


def rows_of(batch: Batch) -> list[tuple[list[str], list[bool]]]:
    """Return whole rows, including the last target, and the mask of scored tokens."""
    found = []
    for row, target in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        ids = [*row, max(target[-1], PAD)]
        length = len(np.trim_zeros(ids, "b"))
        assert all(t in (IGNORE, i) for t, i in zip(target, ids[1:], strict=True))
        found.append((words(ids[:length]), [False, *(t != IGNORE for t in target)][:length]))
    return found


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("protocol", some_slow(["strict", "paper"], ["strict"]))
def test_training_draws_lengths_and_symbols_evenly(
    tmp_path: Path, name: str, protocol: str
) -> None:
    task = make(tmp_path, (name,), protocol=protocol, min_symbols=2, max_train_symbols=4, symbols=5)
    sizes, symbols = np.zeros(5), np.zeros(5)
    for step in range(25):
        for text, scored in rows_of(task.batch(name, 3, step)):
            sizes[check(name, text, scored)] += 1
            symbols[int(text[1][1:])] += 1
            assert len(text) <= task.train_length
    assert sizes[:2].sum() == 0 and abs(sizes[2:] / sizes.sum() - 1 / 3).max() < 0.08
    assert abs(symbols / symbols.sum() - 1 / 5).max() < 0.08


@pytest.mark.slow
def test_protocol_paper_goes_through_its_sequences_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe_bench.tasks.copying.task.TRAIN_ITEMS", 90)
    task = make(tmp_path, protocol="paper")  # 9 lengths; batches of 64 cross the end of an epoch
    rows = [tuple(text) for step in range(45) for text, _ in rows_of(task.batch("copy", 0, step))]
    epochs = [rows[i : i + 90] for i in range(0, len(rows), 90)]
    assert [len(epoch) for epoch in epochs] == [90] * 32
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert len({*map(tuple, epochs)}) == 32
    sizes = [size_of("copy", [*row]) for row in epochs[0]]
    assert [sizes.count(size) for size in range(2, 11)] == [10] * 9


def test_means_of_variants(tmp_path: Path) -> None:
    task = make(tmp_path, ("copy", "reverse"), min_symbols=1, max_train_symbols=4)
    trained, longer, far = [1, 2, 3, 4], [5, 6, 7, 8], [64, 128]
    for name in task.subsets:
        assert lengths_by_mean(task, name) == {
            ID: trained, OOD: longer, FAR: far, "one-symbol-more": [5], "two-symbols-more": [6],
            f"{name}-{ID}": trained, f"{name}-{OOD}": longer, f"{name}-{FAR}": far,
        }  # fmt: skip


def test_sizes_of_the_presets(tmp_path: Path) -> None:
    quick = make(tmp_path, None)
    assert quick.subsets == ("copy", "reverse")
    paper = make(tmp_path, None, preset="paper")
    assert paper.subsets == ALL and paper.vocabulary.vocab_size == 109
    assert [point.length for point in paper.eval_points("copy")] == [*range(4, 41), 320, 640]
    published = make(tmp_path, None, preset="paper", protocol="paper")
    assert [point.length for point in published.eval_points("copy")] == [*range(4, 41)]
    assert (paper.train_length, paper.max_eval_tokens) == (64, 124)
    assert make(tmp_path, ("replace",), preset="paper").train_length == 47
