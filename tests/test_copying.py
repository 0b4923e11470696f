"""Copying: every variant reads as defined, lengths are even, means are means of lengths."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Oracle, answer_after, make_task, measure

from pe_bench.decoder.model import IGNORE
from pe_bench.errors import InputError
from pe_bench.sequences.rows import PAD, Sequences
from pe_bench.task import Batch
from pe_bench.tasks.copying import SYMBOL, VARIANTS, Copying

NAMES = ("END", "COPY", "REVERSE", "REPLACE", "WITH", "IN", "SEP", "NEXT")
WORDS = dict(zip(range(1, SYMBOL), NAMES, strict=True))
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
    return [WORDS.get(i) or f"s{i - SYMBOL}" for i in ids]


def texts(sequences: Sequences) -> list[list[str]]:
    """The rows without their padding."""
    found = []
    for ids, length in zip(sequences.ids, sequences.lengths, strict=True):
        assert (ids[length:] == PAD).all()
        found.append(words(ids[:length].tolist()))
    return found


def right_answer(name: str, question: list[str]) -> list[str]:
    """What the definition asks to be written after SEP, read from the question alone."""
    assert question[-1] == "SEP"
    if name == "rdc":
        command, a, with_, b, in_, *sequence = question[:-1]
        assert (command, with_, in_) == ("REPLACE", "WITH", "IN") and a != b
        assert set(sequence) == {a}
        return [b if symbol == a else symbol for symbol in sequence] + ["END"]
    command, *sequence = question[:-1]
    assert command == ("REVERSE" if name.startswith("m") else "COPY")
    assert all(symbol[0] == "s" for symbol in sequence)
    if name.startswith("r"):
        assert len(set(sequence)) == 1
    reverse = [*reversed(sequence)]
    return {
        "rsc": sequence,
        "rsc2x": sequence + sequence,
        "cmc": sequence,
        "cmc2x": [*sequence, "NEXT", *sequence],
        "mc": reverse,
        "mc2x": [*reverse, "NEXT", *reverse],
        "mcrv": [*reverse, "NEXT", *sequence],
    }[name] + ["END"]


def size_of(name: str, text: list[str]) -> int:
    return text.index("SEP") - (5 if name == "rdc" else 1)


def check(name: str, text: list[str], scored: list[bool]) -> int:
    """Asserts that a row is right and scored after SEP alone; the length of its sequence."""
    question = text[: text.index("SEP") + 1]
    assert text[len(question) :] == right_answer(name, question)
    assert scored == [False] * len(question) + [True] * (len(text) - len(question))
    return size_of(name, text)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("protocol", ["strict", "paper"])
def test_items_are_what_the_variant_asks_for(tmp_path: Path, name: str, protocol: str) -> None:
    task = make(tmp_path, protocol=protocol, symbols=7, samples=30)
    for size in (2, 5, 20):
        items = task.items(name, size)
        for text, scored, length in zip(texts(items), items.scored, items.lengths, strict=True):
            assert check(name, text, scored[:length].tolist()) == size
        again = make(tmp_path, protocol=protocol, symbols=7, samples=30).items(name, size)
        assert (again.ids == items.ids).all()
    assert task.longest >= len(texts(task.items(name, 20))[0])


@pytest.mark.parametrize(
    ("name", "size", "different"),
    [("rsc", 5, 4), ("rsc2x", 3, 4), ("rdc", 5, 12), ("cmc", 2, 16), ("mcrv", 2, 16)],
)
def test_where_there_are_few_items_each_counts_once(
    tmp_path: Path, name: str, size: int, different: int
) -> None:
    strict = texts(make(tmp_path, symbols=4, samples=16).items(name, size))
    assert len(strict) == len(set(map(tuple, strict))) == different
    drawn = texts(make(tmp_path, protocol="paper", symbols=4, samples=16).items(name, size))
    assert len(drawn) == 16 > len(set(map(tuple, drawn)))
    assert len(make(tmp_path, symbols=4, samples=different - 1).items(name, size)) == different - 1


def rows_of(batch: Batch) -> list[tuple[list[str], list[bool]]]:
    """Whole rows, the last token being a target only, and what is scored."""
    found = []
    for row, target in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        ids = [*row, max(target[-1], PAD)]
        length = len(np.trim_zeros(ids, "b"))
        assert all(t in (IGNORE, i) for t, i in zip(target, ids[1:], strict=True))
        found.append((words(ids[:length]), [False, *(t != IGNORE for t in target)][:length]))
    return found


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("protocol", ["strict", "paper"])
def test_training_draws_lengths_and_symbols_evenly(
    tmp_path: Path, name: str, protocol: str
) -> None:
    task = make(tmp_path, (name,), protocol=protocol, shortest=2, longest=4, symbols=5)
    sizes, symbols = np.zeros(5), np.zeros(5)
    for step in range(25):
        for text, scored in rows_of(task.batch(name, 3, step)):
            sizes[check(name, text, scored)] += 1
            symbols[int(text[1][1:])] += 1
            assert len(text) <= task.train_length
    assert sizes[:2].sum() == 0 and abs(sizes[2:] / sizes.sum() - 1 / 3).max() < 0.08
    assert abs(symbols / symbols.sum() - 1 / 5).max() < 0.08
    same = task.batch(name, 3, 5)
    again = make(tmp_path, (name,), protocol=protocol, shortest=2, longest=4, symbols=5)
    assert torch.equal(same.tokens, again.batch(name, 3, 5).tokens)
    assert not torch.equal(same.tokens, task.batch(name, 4, 5).tokens)


def test_protocol_paper_goes_through_its_sequences_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe_bench.tasks.copying.TRAINING_ITEMS", 90)
    task = make(tmp_path, protocol="paper")  # 9 lengths; batches of 64 cross the end of an epoch
    rows = [tuple(text) for step in range(45) for text, _ in rows_of(task.batch("cmc", 0, step))]
    epochs = [rows[i : i + 90] for i in range(0, len(rows), 90)]
    assert [len(epoch) for epoch in epochs] == [90] * 32
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert len({*map(tuple, epochs)}) == 32
    sizes = [size_of("cmc", [*row]) for row in epochs[0]]
    assert [sizes.count(size) for size in range(2, 11)] == [10] * 9


def copier(longest: int, but: int) -> Oracle:
    """Answers rightly up to a length, but for one, where the end comes late."""

    def answer(ids: list[int]) -> list[int]:
        text = words([i for i in ids if i != PAD])
        question = text[: text.index("SEP") + 1]
        name = "mc" if text[0] == "REVERSE" else "cmc"
        right = right_answer(name, question)
        size = size_of(name, text)
        if size > longest or size == but:
            right[-1] = "NEXT"
        return answer_after(len(question), [id_of(word) for word in right])

    return Oracle(answer)


def id_of(word: str) -> int:
    return NAMES.index(word) + 1 if word in NAMES else SYMBOL + int(word[1:])


@pytest.mark.parametrize("gate", [75.0, 76.0])
def test_means_and_the_gate(tmp_path: Path, gate: float) -> None:
    task = make(tmp_path, ("cmc", "mc"), shortest=1, longest=4, samples=5, gate=gate)
    rows = measure(task, {"cmc": copier(6, but=0), "mc": copier(5, but=2)}, tmp_path)
    assert len(rows) == 2 * 3 * len(task.lengths)  # with the ends of the intervals
    curve = {row.length: row.value for row in rows if row.metric == "exact_match"}
    assert curve == {n: 100.0 * (n <= 5 and n != 2) for n in range(1, 9)}  # mc, which came last
    summary = {(row.subset, row.metric): row for row in task.summarize(rows)}
    values = {subset: row.value for (subset, _), row in summary.items()}
    # Of 4 lengths each: cmc all inside and 5, 6 beyond; mc 1, 3, 4 inside and 5 beyond.
    expected = {"cmc-inside": 100, "cmc": 50, "mc-inside": 75, "mc": 25}
    assert values == expected | {"inside": 87.5, "beyond": 37.5}
    metric = "exact_match" if gate == 75 else "unsolved_exact_match"
    assert {m for s, m in summary if s == "beyond"} == {metric}
    assert {m for s, m in summary if s != "beyond"} == {"exact_match"}
    assert summary["beyond", metric].n == 2 * 4 * 5
    assert task.summarize([]) == []


def test_sizes_of_the_presets(tmp_path: Path) -> None:
    quick = make(tmp_path, None)
    assert quick.subsets == ("cmc", "mc") and [*quick.shown] == ["inside", "cmc", "mc"]
    assert (quick.train_length, quick.trained_to, quick.longest) == (23, 10, 43)
    paper = make(tmp_path, None, preset="paper")
    assert paper.subsets == ALL and (paper.vocab_size, paper.lengths) == (109, range(4, 41))
    assert (paper.train_length, paper.longest) == (64, 124)
    assert make(tmp_path, ("rdc",), preset="paper").train_length == 47
    for preset, config in Copying.presets.items():
        assert make(tmp_path, None, preset=preset).train_length == config.train.length
    assert [*paper.shown] == [*Copying.shown]
    assert make(tmp_path, ("mc", "rsc")).subsets == ("mc", "rsc")
    assert make(tmp_path, ("mc",)).fingerprint != quick.fingerprint


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"longest": 0}, "copying:longest must be from 1 to 1000, not 0"),
        ({"shortest": 11}, "copying:shortest must be from 1 to 10, not 11"),
        ({"symbols": 1}, "copying:symbols must be from 2"),
    ],
)
def test_options_out_of_range(tmp_path: Path, options: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make(tmp_path, **options)


def test_parts_that_there_are_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no subset 'cmc3x' \(did you mean 'cmc2x'\?\)"):
        make(tmp_path, ("cmc3x",))
