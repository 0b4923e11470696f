"""Perplexity: scored tokens and their contexts, compared with windows cut by hand."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rope import RoPE
from pe_bench.positions import Positions
from pe_bench.results.items import RowKey, recompute
from pe_bench.results.journal import Journal
from pe_bench.results.measurement import Measurement, Status
from pe_bench.results.views import Column, Headline
from pe_bench.task import TaskContext
from pe_bench.tasks.perplexity import scored_windows
from pe_bench.tasks.perplexity.task import Perplexity

Numbers = dict[tuple[str, str, int | None], tuple[int, float, float]]
LENGTHS = [4, 8, 16, 32, 64]  # a quarter of the training length to four times it
ENDS = [1, 2, 4, 8, 16, 32, 64]  # ends of the position buckets
WORDS = ["position", "attention", "rotary", "bias", "token", "window", "layer", "head", "gate"]
TRAIN, TEST = [700, 900], [500, 63, 64, 470]  # bytes of the documents
WINDOWS = [7, 0, 1, 7]
STRIDE = 4
HEADLINE = ("4x-context", "bits_per_byte")
FORWARDS = len(LENGTHS)  # one from the start, and one for each shorter context


class Stretched(Encoding):
    """An encoding without prefix consistency: positions are relative to the length."""

    prefix_consistent = False

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        return x + positions.query[..., None] / positions.query.max()


def write(place: Path, sizes: Sequence[int]) -> None:
    place.mkdir(parents=True)
    for i, size in enumerate(sizes):
        rng = np.random.default_rng(size)
        names = ["".join(rng.choice([*"bdfhjkmqvz"], 8)) for _ in range(6)]  # of this document
        words = rng.choice([*WORDS, *names], size)
        (place / f"{i}.txt").write_text(" ".join(words)[:size], encoding="ascii")


@pytest.fixture
def context(tmp_path: Path) -> TaskContext:
    write(tmp_path / "tiny" / "train", TRAIN)
    write(tmp_path / "tiny" / "test", TEST)
    train = TrainConfig(length=16, batch_size=3)
    return TaskContext(train=train, data=tmp_path / "tiny", cache=tmp_path / "cache")


def folder(context: TaskContext, split: str) -> Path:
    assert context.data is not None
    return context.data / split


def texts(context: TaskContext, split: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder(context, split).iterdir())]


def decoder(task: Perplexity, encoding: type[Encoding] = RoPE) -> Decoder:
    """Return a decoder with large random weights, so that every position matters."""
    torch.manual_seed(0)
    config = ModelConfig(2, 4, 0, 32, 48, init_std=0.3, vocab_size=task.vocabulary.vocab_size)
    return Decoder(config, encoding).double().eval()


def evaluate(task: Perplexity, model: Decoder, journal: Path) -> list[Measurement]:
    with torch.inference_mode():
        return task.evaluate(model, "test", 0, Journal(journal)).rows


def numbers(rows: list[Measurement]) -> Numbers:
    return {(row.subset, row.metric, row.length): (row.n, row.value, row.stderr) for row in rows}


@torch.inference_mode()
def token_losses(task: Perplexity, model: Decoder, ids: list[int]) -> list[float]:
    """Return the loss of each token after a BOS, in nats, from a separate forward pass."""
    logits = model(torch.tensor([task.tokenizer.bos, *ids[:-1]])[None])[0]
    return F.cross_entropy(logits, torch.tensor(ids), reduction="none").tolist()


def by_hand(
    task: Perplexity,
    model: Decoder,
    chosen: Sequence[int] | None = None,
    step: int = 64,
    stride: int = STRIDE,
) -> Numbers:
    """Return the same from a forward pass for each window and length, with sums in loops."""
    documents = [task.tokenizer.encode(text).tolist() for text in texts(task.context, "test")]
    windows = [
        (d, doc[i : i + 64])
        for d, doc in enumerate(documents)
        for i in range(0, len(doc) - 63, step)
    ]
    windows = windows if chosen is None else [windows[i] for i in chosen]
    parts: dict[tuple[str, str, int], list[tuple[int, list[int], list[float]]]] = {}
    masks = task.scored_windows("test").keys.tolist()
    for (document, window), keys in zip(windows, masks, strict=True):
        whole = token_losses(task, model, window)
        for length in LENGTHS:
            losses, rest = token_losses(task, model, window[:length]), window[-length:]
            tail, after = rest[-stride:], token_losses(task, model, rest)[-stride:]
            for key, ids, some in (
                (("test", "", length), window[:length], losses),
                (("test", "tail_", length), window[length - stride : length], losses[-stride:]),
                (("context", "", length), tail, after),
                (
                    ("key-tokens", "", length),
                    list(itertools.compress(tail, keys)),
                    list(itertools.compress(after, keys)),
                ),
            ):
                parts.setdefault(key, []).append((document, ids, some))
        for i, end in zip([0, *ENDS], ENDS, strict=False):
            part = document, window[i:end], whole[i:end]
            parts.setdefault(("position", "", end), []).append(part)
    found = Numbers()
    for (subset, family, length), group in parts.items():
        group = [part for part in group if part[1]]  # only documents with a key token
        if not group:
            continue
        sizes = [(d, len(task.tokenizer.decode(ids)), sum(losses)) for d, ids, losses in group]
        rate, error = slow_ratio(sizes)
        bits = len(group), rate / math.log(2), error / math.log(2)
        found[subset, family + "bits_per_byte", length] = bits
        if subset == "test":
            rate, error = slow_ratio([(d, len(ids), sum(losses)) for d, ids, losses in group])
            perplexity = len(group), math.exp(rate), math.exp(rate) * error
            found[subset, family + "perplexity", length] = perplexity
    few = parts["context", "", 16]
    for length in (32, 64):
        pairs = zip(few, parts["context", "", length], strict=True)
        gains = [
            (d, len(task.tokenizer.decode(ids)), sum(a) - sum(b))
            for (d, ids, a), (_, _, b) in pairs
        ]
        rate, error = slow_ratio(gains)
        found["context", "context_gain", length] = (
            len(gains),
            rate / math.log(2),
            error / math.log(2),
        )
    return found


def slow_ratio(parts: list[tuple[int, int, float]]) -> tuple[float, float]:
    """Return nats per unit and the standard error, from parts (document, units, nats)."""
    units, nats = sum(part[1] for part in parts), sum(part[2] for part in parts)
    rate, documents = nats / units, {part[0] for part in parts}
    if len(documents) == 1:
        return rate, math.nan
    residuals = [sum(c - rate * b for a, b, c in parts if a == d) for d in documents]
    squares = sum(residual**2 for residual in residuals)
    return rate, math.sqrt(squares * len(documents) / (len(documents) - 1)) / units


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokenizer", "encoding"), [("bytes", RoPE), ("bytes", Stretched), ("bpe:300", NoPE)]
)
def test_numbers_are_those_of_windows_cut_by_hand(
    context: TaskContext, tmp_path: Path, tokenizer: str, encoding: type[Encoding]
) -> None:
    task = Perplexity(replace(context, tokenizer=tokenizer))
    model = decoder(task, encoding)
    rows = evaluate(task, model, tmp_path / "journal")
    found, expected = numbers(rows), by_hand(task, model)
    assert found.keys() == expected.keys() and len(rows) == len(found)
    for key in found:
        assert found[key] == pytest.approx(expected[key], rel=1e-9, nan_ok=True), key
    shown = {(view.subset, view.metric) for view in task.views}
    assert shown < {(row.subset, row.metric) for row in [*rows, *task.summarize(rows)]}
    for length, family in itertools.product(LENGTHS, ("", "tail_")):
        (n, bits, _), (_, value, _) = (
            found["test", family + metric, length] for metric in ("bits_per_byte", "perplexity")
        )
        if tokenizer == "bytes":
            assert n == sum(WINDOWS) and value == pytest.approx(2**bits, rel=1e-9)
        else:  # a token has more than a byte
            assert 2 <= n < sum(WINDOWS) and value > 2**bits


@pytest.mark.slow
def test_both_ends_of_an_interval_surround_the_number(context: TaskContext, tmp_path: Path) -> None:
    task = Perplexity(context)
    rows = evaluate(task, decoder(task), tmp_path / "journal")
    assert all(row.ci_low < row.value < row.ci_high for row in rows)
    (row,) = [r for r in rows if (r.subset, r.metric, r.length) == ("test", "bits_per_byte", 64)]
    assert row.ci_high - row.value != pytest.approx(row.value - row.ci_low)  # by resampling


@pytest.mark.slow
def test_the_two_definitions_and_the_curves_agree_where_they_must(
    context: TaskContext, tmp_path: Path
) -> None:
    task = Perplexity(context)
    found = numbers(evaluate(task, decoder(task), tmp_path / "journal"))
    # The shortest window is only a tail. With the whole context, it is the tail of the longest
    # window.
    for metric in ("bits_per_byte", "perplexity"):
        assert found["test", f"tail_{metric}", 4] == found["test", metric, 4]
    assert found["context", "bits_per_byte", 64] == found["test", "tail_bits_per_byte", 64]
    curve = [found["position", "bits_per_byte", end][1] for end in ENDS]
    mean = np.average(curve, weights=np.diff([0, *ENDS]))
    assert found["test", "bits_per_byte", 64][1] == pytest.approx(mean, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "stride"), [("strict", 3), ("paper", 3), ("paper", 1), ("paper", None)]
)
def test_stride_is_the_tail_and_in_protocol_paper_the_step(
    context: TaskContext, tmp_path: Path, protocol: str, stride: int | None
) -> None:
    task = Perplexity(replace(context, protocol=protocol), stride=stride, windows=6)
    tail = stride or LENGTHS[0]
    step = tail if protocol == "paper" else 64
    total = sum(1 + (size - 64) // step for size in TEST if size >= 64)
    assert total == sum(WINDOWS) or protocol == "paper"
    model, chosen = decoder(task), [i * total // 6 for i in range(6)]
    found = numbers(evaluate(task, model, tmp_path / "journal"))
    expected = by_hand(task, model, chosen, step, tail)
    assert found.keys() == expected.keys()
    for key in found:
        assert found[key] == pytest.approx(expected[key], rel=1e-9, nan_ok=True), key


@pytest.mark.slow
def test_one_forward_gives_every_shorter_length(
    context: TaskContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Perplexity(context)
    found = []
    for consistent, forwards in ((True, FORWARDS), (False, FORWARDS + len(LENGTHS) - 1)):
        monkeypatch.setattr(RoPE, "prefix_consistent", consistent)
        model = decoder(task)
        losses = Mock(wraps=model.token_losses)
        monkeypatch.setattr(model, "token_losses", losses)
        found.append(numbers(evaluate(task, model, tmp_path / str(consistent))))
        assert losses.call_count == forwards
    one, many = found
    assert list(one) == list(many)
    for key in one:
        assert one[key] == pytest.approx(many[key], rel=1e-9, nan_ok=True), key


@pytest.mark.slow
def test_windows_are_spread_evenly(context: TaskContext, tmp_path: Path) -> None:
    task = Perplexity(context, windows=2)
    model = decoder(task)
    two = numbers(evaluate(task, model, tmp_path / "two"))
    for key, expected in by_hand(task, model, [0, 7]).items():
        assert two[key] == pytest.approx(expected, rel=1e-9, nan_ok=True), key
    one = evaluate(Perplexity(context, windows=1), model, tmp_path / "one")
    assert all(row.n == 1 and math.isnan(row.stderr) for row in one)
    more = evaluate(Perplexity(context, windows=99), model, tmp_path / "more")
    assert {row.n for row in more if row.subset != "key-tokens"} == {sum(WINDOWS)}


def test_windows_of_training_begin_with_bos(context: TaskContext) -> None:
    task = Perplexity(context)
    tokens, targets = task.batch(None, 1, 7)
    assert tokens.shape == targets.shape == (3, 16)
    assert tokens[:, 0].tolist() == [task.tokenizer.bos] * 3
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_training_documents_are_joined_by_eos(context: TaskContext) -> None:
    total = sum(TRAIN) + len(TRAIN)
    (folder(context, "test") / "long.txt").write_text("long " * total)
    assert context.train is not None
    task = Perplexity(replace(context, train=replace(context.train, length=total - 1)))
    eos = [task.tokenizer.eos]
    stream = [token for text in texts(context, "train") for token in [*text, *eos]]
    rows = [row for step in range(8) for row in task.batch(None, 0, step).targets.tolist()]
    assert {tuple(row) for row in rows} == {tuple(stream[:-1]), tuple(stream[1:])}


@pytest.mark.slow
@pytest.mark.parametrize(("lengths", "longest"), [(None, 64), ("24+8+16", 24)])
def test_headline_is_the_loss_of_the_same_tokens_at_the_longest_context(
    context: TaskContext, tmp_path: Path, lengths: str | None, longest: int
) -> None:
    task = Perplexity(context, lengths=lengths)
    most = {64: "4x", 24: "1.5x"}[longest]
    rows = evaluate(task, decoder(task), tmp_path / "journal")
    found = {(row.subset, row.metric, row.length): row for row in rows}
    bits = "bits_per_byte"
    summary = {(row.subset, row.metric): row for row in task.summarize(rows)}
    effective = summary.pop((f"{most}-context", "effective_length"))
    assert (effective.value, effective.status) == (0, "not_learned")  # untrained model
    assert {name: replace(row, subset="", length=0) for name, row in summary.items()} == {
        name: replace(
            found[cell],
            subset="",
            length=0,
            status="ranked" if name[0].startswith("1x") else "not_learned",
        )
        for name, cell in {
            ("1x-context", bits): ("context", bits, 16),
            (f"{most}-context", bits): ("context", bits, longest),
            (f"{most}-context", "context_gain"): ("context", "context_gain", longest),
            (f"{most}-key-tokens", bits): ("key-tokens", bits, longest),
            ("1x-window", bits): ("test", bits, 16),
            (f"{most}-window", bits): ("test", bits, longest),
        }.items()
    }
    gain = summary["1x-context", bits].value - summary[f"{most}-context", bits].value
    assert summary[f"{most}-context", "context_gain"].value == pytest.approx(gain)
    assert task.headline == Headline(bits, f"{most}-context")
    assert task.max_eval_tokens == longest
    columns = {view.subset for view in task.views if isinstance(view, Column)}
    assert columns == {"1x-context", "1x-window"} | {
        f"{most}-{rows}" for rows in ("context", "key-tokens", "window")
    }


@pytest.mark.slow
def test_rows_and_summaries_follow_from_the_items(context: TaskContext, tmp_path: Path) -> None:
    task = Perplexity(context)
    with torch.inference_mode():
        rows, _, items = task.evaluate(decoder(task), "test", 0, Journal(tmp_path / "journal"))
    summary = [row for row in task.summarize(rows) if row.metric != "effective_length"]
    found = {place: pytest.approx(value) for place, value in recompute(items).items()}
    every = [*rows, *summary]
    places = [RowKey(row.subset, row.metric, row.length) for row in every]
    assert dict(zip(places, [row.value for row in every], strict=True)) == found


@pytest.mark.slow
def test_effective_length(context: TaskContext) -> None:
    task = Perplexity(context)
    for curve, expected in (
        ({16: 0.5, 32: 0.58, 64: 0.4}, 64),
        ({16: 0.5, 32: 0.6, 64: 0.4}, 16),
        ({4: 9.0, 16: 0.5, 32: 0.5, 64: 0.6}, 32),
        ({16: 50.0, 32: 50.0, 64: 50.0}, 0),  # worse than a trigram table, though flat
    ):
        rows = [
            Measurement("context", "bits_per_byte", value, 15, length=length)
            for length, value in curve.items()
        ]
        summary = task.summarize(rows)
        (found,) = [row for row in summary if row.metric == "effective_length"]
        learned: Status = "ranked" if expected else "not_learned"
        assert (found.value, found.status) == (expected, learned)
        (headline,) = [row for row in summary if (row.subset, row.metric) == HEADLINE]
        assert (headline.value, headline.status) == (curve[64], learned)


@pytest.mark.slow
def test_references_are_rows_of_all_that_a_model_has(context: TaskContext, tmp_path: Path) -> None:
    task = Perplexity(context)
    rows = evaluate(task, decoder(task), tmp_path / "journal")
    expected = [(r.subset, r.metric, r.length, r.n) for r in [*rows, *task.summarize(rows)]]
    found = task.baselines()
    assert list(found) == ["unigram table", "bigram table", "trigram table"]
    means = []
    for reference in found.values():
        assert [(r.subset, r.metric, r.length, r.n) for r in reference] == expected
        means += [r.value for r in reference if (r.subset, r.length) == ("test", 64)][:1]
    assert means == sorted(means, reverse=True)
    gains = [r.value for r in found["unigram table"] if r.metric == "context_gain"]
    assert gains == [0, 0, 0]  # a table without context does not use it


@pytest.mark.slow
def test_an_interrupted_evaluation_goes_on(
    context: TaskContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scored_windows, "TOKENS_PER_FORWARD", 2 * 64)  # two windows each
    task, journal = Perplexity(context), tmp_path / "journal"
    model = decoder(task)
    expected, losses = evaluate(task, model, tmp_path / "whole"), model.token_losses

    def stop_after(forwards: int) -> Mock:
        stopping = Mock(wraps=losses, side_effect=[DEFAULT] * forwards + [KeyboardInterrupt])
        monkeypatch.setattr(model, "token_losses", stopping)
        return stopping

    stop_after(3 * FORWARDS)
    with pytest.raises(KeyboardInterrupt):
        evaluate(task, model, journal)
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 6  # with the one that says whose they are
    journal.write_bytes(b"".join(lines[:-1]))  # killed while it was writing the third forward's
    rest = stop_after(6 * FORWARDS)  # of eight
    assert evaluate(task, model, journal) == expected
    assert rest.call_count == 6 * FORWARDS
    nothing = stop_after(0)
    assert evaluate(task, model, journal) == expected
    assert not nothing.called
