import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.encoding import Encoding
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rope import RoPE
from pe_bench.errors import InputError
from pe_bench.model import Decoder
from pe_bench.results import Journal, Measurement
from pe_bench.task import Setup
from pe_bench.tasks import perplexity
from pe_bench.tasks.perplexity import Perplexity

Numbers = dict[tuple[str, int | None], tuple[int, float, float]]
LENGTHS = [4, 8, 16, 32, 64]  # a quarter of the training length to four times it
WORDS = ["position", "attention", "rotary", "bias", "token", "window", "layer", "head", "gate"]
TRAIN, TEST = [700, 900], [500, 63, 64, 470]  # bytes of the documents
WINDOWS = 7 + 0 + 1 + 7


class Stretched(Encoding):
    """Not prefix consistent: where a token stands is relative to the length."""

    prefix_consistent = False

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + positions[..., None] / positions.max()


def write(place: Path, sizes: Sequence[int]) -> None:
    place.mkdir(parents=True)
    for i, size in enumerate(sizes):
        words = np.random.default_rng(size).choice(WORDS, size)
        (place / f"{i}.txt").write_text(" ".join(words)[:size], encoding="ascii")


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    write(tmp_path / "tiny" / "train", TRAIN)
    write(tmp_path / "tiny" / "test", TEST)
    train = TrainConfig(length=16, batch_size=3)
    return Setup("quick", "strict", train, tmp_path / "tiny", "bytes", tmp_path / "cache")


def folder(setup: Setup, split: str) -> Path:
    assert setup.data is not None
    return setup.data / split


def texts(setup: Setup, split: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder(setup, split).iterdir())]


def decoder(task: Perplexity, encoding: type[Encoding] = RoPE) -> Decoder:
    """Random weights, large enough for every position to matter."""
    torch.manual_seed(0)
    config = ModelConfig(2, 4, None, 32, 48, init_std=0.3, vocab_size=task.vocab_size)
    return Decoder(config, encoding).double().eval()


def evaluate(task: Perplexity, model: Decoder, journal: Path) -> list[Measurement]:
    with torch.inference_mode():
        return task.evaluate(model, "test", 0, Journal(journal))


def numbers(rows: list[Measurement]) -> Numbers:
    return {(row.metric, row.length): (row.n, row.value, row.stderr) for row in rows}


@torch.inference_mode()
def by_hand(task: Perplexity, model: Decoder, chosen: slice = slice(None)) -> Numbers:
    """The same from a forward for each window and length."""
    tokenizer, found = task.tokenizer, Numbers()
    documents = map(tokenizer.encode, texts(task.setup, "test"))
    windows = [doc[i : i + 64] for doc in documents for i in range(0, len(doc) - 63, 64)][chosen]
    for length in LENGTHS:
        nats, sizes = [], []
        for window in windows:
            ids = torch.tensor(window[:length].tolist())
            logits = model(torch.cat([torch.tensor([tokenizer.bos]), ids[:-1]])[None])[0]
            nats.append(float(F.cross_entropy(logits, ids, reduction="sum")))
            sizes.append(len(tokenizer.decode(ids)))
        n, rate = len(windows), sum(nats) / sum(sizes)
        squares = sum((a - rate * b) ** 2 for a, b in zip(nats, sizes, strict=True))
        error = math.sqrt(squares / (n - 1) / n) / (sum(sizes) / n)
        found["bits_per_byte", length] = n, rate / math.log(2), error / math.log(2)
        value = math.exp(sum(nats) / (n * length))
        error = float(np.std(nats, ddof=1)) / length / math.sqrt(n)
        found["perplexity", length] = n, value, value * error
    return found


@pytest.mark.parametrize(
    ("tokenizer", "encoding"), [("bytes", RoPE), ("bytes", Stretched), ("bpe:300", NoPE)]
)
def test_numbers_are_those_of_windows_cut_by_hand(
    setup: Setup, tmp_path: Path, tokenizer: str, encoding: type[Encoding]
) -> None:
    task = Perplexity(replace(setup, tokenizer=tokenizer), None)
    model = decoder(task, encoding)
    rows = evaluate(task, model, tmp_path / "journal")
    found, expected = numbers(rows), by_hand(task, model)
    assert found.keys() == expected.keys() and len(rows) == len(found)
    for key in found:
        assert found[key] == pytest.approx(expected[key], rel=1e-9), key
    assert all(row.stderr > 0 for row in rows)
    assert {row.subset for row in rows} == set(task.subsets) == set(task.shown) == {"test"}
    for length in LENGTHS:
        (n, bits, _), (_, value, _) = (found[m, length] for m in ("bits_per_byte", "perplexity"))
        if tokenizer == "bytes":
            assert n == WINDOWS and value == pytest.approx(2**bits, rel=1e-9)
        else:  # a token has more than a byte
            assert 2 <= n < WINDOWS and value > 2 ** (1.3 * bits)


def test_one_forward_gives_every_shorter_length(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Perplexity(setup, None)
    found = []
    for consistent, forwards in ((True, 1), (False, len(LENGTHS))):
        monkeypatch.setattr(RoPE, "prefix_consistent", consistent)
        model = decoder(task)
        losses = Mock(wraps=model.token_losses)
        monkeypatch.setattr(model, "token_losses", losses)
        found.append(numbers(evaluate(task, model, tmp_path / str(consistent))))
        assert losses.call_count == forwards
    one, many = found
    assert list(one) == list(many)
    for key in one:
        assert one[key] == pytest.approx(many[key], rel=1e-9), key


def test_windows_are_spread_evenly(setup: Setup, tmp_path: Path) -> None:
    task = Perplexity(setup, None, windows=2)
    model = decoder(task)
    two = numbers(evaluate(task, model, tmp_path / "two"))
    for key, expected in by_hand(task, model, slice(0, 14, 7)).items():
        assert two[key] == pytest.approx(expected, rel=1e-9), key
    one = evaluate(Perplexity(setup, None, windows=1), model, tmp_path / "one")
    assert all(row.n == 1 and row.value > 0 and math.isnan(row.stderr) for row in one)
    more = evaluate(Perplexity(setup, None, windows=99), model, tmp_path / "more")
    assert {row.n for row in more} == {WINDOWS}


def test_batch_is_a_pure_function_of_seed_and_step(setup: Setup) -> None:
    task, again = Perplexity(setup, None), Perplexity(setup, None)
    again.batch(None, 5, 5)
    tokens, targets = task.batch(None, 1, 7)
    assert tokens.shape == targets.shape == (3, 16)
    assert tokens[:, 0].tolist() == [task.tokenizer.bos] * 3
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    for other, seed, step in ((task, 1, 7), (again, 1, 7), (again, 1, 8), (again, 2, 7)):
        equal = torch.equal(other.batch(None, seed, step).targets, targets)
        assert equal == ((seed, step) == (1, 7))


def test_training_documents_are_joined_by_eos(setup: Setup) -> None:
    total = sum(TRAIN) + len(TRAIN)
    (folder(setup, "test") / "long.txt").write_text("long " * total)
    task = Perplexity(replace(setup, train=replace(setup.train, length=total - 1)), None)
    eos = [task.tokenizer.eos]
    stream = [token for text in texts(setup, "train") for token in [*text, *eos]]
    rows = [row for step in range(8) for row in task.batch(None, 0, step).targets.tolist()]
    assert {tuple(row) for row in rows} == {tuple(stream[:-1]), tuple(stream[1:])}


def test_headline_is_bits_per_byte_at_the_longest(setup: Setup, tmp_path: Path) -> None:
    task = Perplexity(setup, None)
    rows = evaluate(task, decoder(task), tmp_path / "journal")
    (row,) = [row for row in rows if (row.metric, row.length) == ("bits_per_byte", 64)]
    assert task.summarize(rows) == [replace(row, subset=task.headline.subset)]
    assert task.headline.metric == "bits_per_byte" and not task.headline.higher_is_better
    assert task.longest == 64


def test_an_interrupted_evaluation_goes_on(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perplexity, "TOKENS_PER_FORWARD", 2 * 64)  # two windows each
    task, journal = Perplexity(setup, None), tmp_path / "journal"
    model = decoder(task)
    expected, losses = evaluate(task, model, tmp_path / "whole"), model.token_losses

    def stop_after(forwards: int) -> Mock:
        stopping = Mock(wraps=losses, side_effect=[DEFAULT] * forwards + [KeyboardInterrupt])
        monkeypatch.setattr(model, "token_losses", stopping)
        return stopping

    stop_after(3)
    with pytest.raises(KeyboardInterrupt):
        evaluate(task, model, journal)
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) == 6
    journal.write_bytes(b"".join(lines[:-1]))  # killed while it was writing the third forward's
    rest = stop_after(6)  # of eight
    assert evaluate(task, model, journal) == expected
    assert rest.call_count == 6
    nothing = stop_after(0)
    assert evaluate(task, model, journal) == expected
    assert not nothing.called


def test_labels_tell_data_and_tokenizers_apart(setup: Setup) -> None:
    task = Perplexity(setup, None)
    record = task.provenance()
    assert task.data_label == record["label"] == f"tiny-{record['fingerprint'][:8]}"
    merged = Perplexity(replace(setup, tokenizer="bpe:300"), None)
    assert merged.data_label == task.data_label and merged.fingerprint != task.fingerprint
    assert merged.vocab_size == 300 and task.vocab_size == 260
    with (folder(setup, "test") / "0.txt").open("a") as file:
        file.write(".")
    changed = Perplexity(setup, None)
    assert changed.data_label != task.data_label and changed.fingerprint != task.fingerprint


def test_builtin_text(setup: Setup) -> None:
    task = Perplexity(replace(setup, data=None), None)
    assert task.data_label == f"stdlib-v1-{task.fingerprint[:8]}"
    assert task.batch(None, 0, 0).tokens.shape == (3, 16)


@pytest.mark.parametrize(
    ("changed", "windows", "sentence"),
    [
        ({"train": TrainConfig(length=200)}, 0, "no test document of tiny has 800 tokens, .*: use"),
        ({"train": TrainConfig(length=1602)}, 0, "tiny has 1602 tokens to train on, .*: give more"),
        ({}, -1, "windows must not be negative .*, not -1"),
        ({"preset": "paper", "data": None}, 0, "preset paper .*: give a folder"),
    ],
)
def test_bad_input(setup: Setup, changed: dict[str, Any], windows: int, sentence: str) -> None:
    if "1602" in sentence:
        (folder(setup, "test") / "long.txt").write_text("long " * 1602)
    with pytest.raises(InputError, match=sentence):
        task = Perplexity(replace(setup, **changed), None, windows=windows)
        assert (task.skip(NoPE(ModelConfig())) is None) == ("800" not in sentence)
        task.batch(None, 0, 0)
        task.evaluate(Mock(spec=Decoder), "test", 0, Mock(spec=Journal))
