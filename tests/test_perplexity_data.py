"""The texts of perplexity: folders, corpora, files of ids, presets, and refusals."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers import check_items
from test_perplexity import HEADLINE, WINDOWS, decoder, evaluate, folder, numbers, texts, write
from test_perplexity import context as context  # a fixture

from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.decoder.model import Decoder
from pe_bench.encodings.nope import NoPE
from pe_bench.errors import InputError
from pe_bench.results.items import Items, RowKey
from pe_bench.results.journal import Journal
from pe_bench.results.measurement import Measurement, Status
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import resolve
from pe_bench.task import TaskContext
from pe_bench.tasks.perplexity import source
from pe_bench.tasks.perplexity.rows import (
    effective_length,
    mean_rows,
    of_corpus,
    rows_of_corpus,
)
from pe_bench.tasks.perplexity.task import Perplexity
from pe_bench.text.folder_corpus import folder_corpus


def test_labels_tell_data_and_tokenizers_apart(context: TaskContext) -> None:
    task = Perplexity(context)
    record = task.provenance()
    assert task.data_label == record["label"] == f"tiny-{record['fingerprint'][:8]}"
    merged = Perplexity(replace(context, tokenizer="bpe:300"))
    assert merged.data_label == task.data_label and merged.fingerprint != task.fingerprint
    assert merged.vocabulary.vocab_size == 300 and task.vocabulary.vocab_size == 260
    with (folder(context, "test") / "0.txt").open("a") as file:
        file.write(".")
    changed = Perplexity(context)
    assert changed.data_label != task.data_label and changed.fingerprint != task.fingerprint


def test_the_effective_length_ends_where_the_loss_is_too_high() -> None:
    for curve, expected in (
        ({16: 0.5, 32: 0.58, 64: 0.4}, 64),
        ({16: 0.5, 32: 0.6, 64: 0.4}, 16),
        ({4: 9.0, 16: 0.5, 32: 0.5, 64: 0.6}, 32),
    ):
        rows = {n: Measurement("context", "bits_per_byte", loss, 9) for n, loss in curve.items()}
        assert effective_length(rows, trained=16) == expected


def test_items_of_a_corpus_count_for_it_and_for_the_mean() -> None:
    place = RowKey("4x-context", "bits_per_byte", 64)
    found = of_corpus(Items("context", "nats", np.ones(2), groups=(place,)), "pg19")
    assert found.subset == "pg19-context"
    assert found.groups == (place._replace(subset="pg19-4x-context"), place)
    rows = [Measurement(name, "nats", 1.0, 9) for name in ("pg19-context", "code-context")]
    assert [row.subset for row in rows_of_corpus(rows, "pg19")] == ["context"]


@pytest.mark.slow
def test_builtin_text(context: TaskContext) -> None:
    task = Perplexity(replace(context, data=None))
    assert task.data_label == f"python-v1-{task.fingerprint[:8]}"
    assert task.batch(None, 0, 0).tokens.shape == (3, 16)


def test_provenance_tells_which_windows(context: TaskContext) -> None:
    choices: list[dict[str, Any]] = [{}, {"stride": 2}, {"windows": 3}]
    records = [
        Perplexity(replace(context, protocol=protocol), **options).provenance()
        for protocol in ("strict", "paper")
        for options in choices
    ]
    assert [record["windows"] for record in records[:3]] == [sum(WINDOWS), sum(WINDOWS), 3]
    assert len({record["windows_sha256"] for record in records}) == len(records)
    assert [record["documents"] for record in records[:2]] == [3, 3]


def test_a_corpus_in_a_folder_of_corpora(context: TaskContext, tmp_path: Path) -> None:
    plain = Perplexity(context)
    (tmp_path / "tiny").rename(tmp_path / "code")
    inside = Perplexity(replace(context, data=tmp_path), corpus="code")
    itself = Perplexity(replace(context, data=tmp_path / "code"), corpus="code")
    digest = plain.data_label.removeprefix("tiny")
    assert inside.data_label == itself.data_label == f"code{digest}"
    assert inside.fingerprint == plain.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["pg19", "proofpile", "code"])
def test_real_corpora(
    context: TaskContext, tmp_path: Path, real_documents: Path, corpus: Any
) -> None:
    train = TrainConfig(length=64, batch_size=2)
    changed = replace(context, data=real_documents, train=train, protocol="paper")
    task = Perplexity(changed, corpus=corpus, windows=8)
    assert task.data_label.startswith(f"{corpus}-")
    assert task.batch(None, 0, 0).tokens.shape == (2, 64)
    assert task.provenance()["documents"] > 1
    rows = evaluate(task, decoder(task), tmp_path / "journal")
    assert all(math.isfinite(row.value) for row in rows)
    whole = [row for row in rows if row.subset != "key-tokens"]  # not every window has key tokens
    assert all(row.n == 8 for row in whole)


@pytest.mark.slow
@pytest.mark.parametrize("folder_of_files", [False, True])
def test_ids_without_text(
    context: TaskContext, tmp_path: Path, folder_of_files: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    train, test = (b"".join(texts(context, split)) for split in ("train", "test"))
    place = tmp_path / "ids"
    place.mkdir()
    for name, text in {"train": train, "test": test, "both": train + test}.items():
        np.frombuffer(text, np.uint8).astype("<u2").tofile(place / f"{name}.bin")
    path = place if folder_of_files else place / "both.bin"
    task = Perplexity(replace(context, data=path))
    total, size = len(train + test), len(test)
    if not folder_of_files:
        size = total // 10
    assert task.data_label.startswith("ids-" if folder_of_files else "both-")
    assert "without document boundaries; id 1 occurs 0 times" in capsys.readouterr().out
    assert task.batch(None, 0, 0).targets.max() < 256
    rows = evaluate(task, decoder(task), tmp_path / "journal")
    assert {row.n for row in rows if row.subset != "key-tokens"} == {size // 64}
    (note,) = task.evaluate(decoder(task), "test", 0, Journal(tmp_path / "journal")).notes
    assert "windows may cross documents" in note
    assert task.provenance()["documents"] is None
    named = Perplexity(replace(context, data=path), corpus="pg19")
    assert named.fingerprint == task.fingerprint and named.data_label.startswith("pg19-")


@pytest.mark.slow
def test_several_corpora_are_measured_each_by_itself(context: TaskContext, tmp_path: Path) -> None:
    """Each is evaluated like the test part of the training corpus; the headline is their mean."""
    root = tmp_path / "corpora"
    root.mkdir()
    (tmp_path / "tiny").rename(root / "pg19")
    write(root / "code" / "test", [800, 600])  # has no other part
    write(root / "proofpile" / "train", [1400])
    write(root / "proofpile" / "test", [1100])
    context = replace(context, data=root)
    task = Perplexity(context, corpus="pg19", test="pg19+code+proofpile")
    alone = Perplexity(context, corpus="pg19")
    assert task.subsets == ("pg19", "code", "proofpile")
    assert task.batch(None, 0, 3).tokens.equal(alone.batch(None, 0, 3).tokens)
    assert task.data_label.startswith("pg19-") and task.data_label != alone.data_label
    model = decoder(alone)
    rows: list[Measurement] = []
    items: list[Items] = []
    for subset in task.subsets:
        with torch.inference_mode():
            found = task.evaluate(model, subset, 0, Journal(tmp_path / subset))
        assert found.notes[0].startswith(f"{subset}: ")
        rows += found.rows
        items += found.items
    summary = task.summarize(rows)
    check_items([*rows, *summary], items, tmp_path)
    own = evaluate(alone, model, tmp_path / "alone")
    expected = numbers([*own, *alone.summarize(own)])
    found_rows = numbers([*rows, *summary])
    for (name, metric, length), number in expected.items():
        assert found_rows[f"pg19-{name}", metric, length] == pytest.approx(number, nan_ok=True)
    other = Perplexity(replace(context, data=root / "proofpile"))
    there = numbers(evaluate(other, model, tmp_path / "other"))
    key = ("context", "bits_per_byte", 64)
    assert found_rows["proofpile-context", *key[1:]] == pytest.approx(there[key], nan_ok=True)
    headline = [found_rows[f"{name}-4x-context", "bits_per_byte", None][1] for name in task.subsets]
    assert found_rows[*HEADLINE, None][1] == pytest.approx(np.mean(headline))
    shown = {(view.subset, view.metric) for view in task.views}
    assert shown < {(row.subset, row.metric) for row in [*rows, *summary]}
    references = task.baselines()["trigram table"]
    assert {row.subset for row in references} >= {f"{name}-context" for name in task.subsets}
    assert numbers(references)["code-context", *key[1:]][1] != pytest.approx(
        numbers(alone.baselines()["trigram table"])[key][1]
    )
    partial = task.summarize([row for row in rows if not row.subset.startswith("code-")])
    (mean,) = [row for row in partial if (row.subset, row.metric) == HEADLINE]
    assert mean.status in ("partial", "not_learned")
    tests = task.provenance()["tests"]
    assert [tests[name]["documents"] for name in task.subsets] == [3, 2, 1]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["ranked", "ranked"], "ranked"),
        (["ranked", "not_learned"], "not_learned"),
        (["not_learned", "not_learned"], "not_learned"),
        (["ranked"], "partial"),
    ],
)
def test_a_mean_is_ranked_where_every_corpus_is(statuses: list[Status], expected: Status) -> None:
    names = ["pg19", "code"]
    rows = []
    for name, status in zip(names, statuses, strict=False):
        rows.append(Measurement(f"{name}-4x-context", "bits_per_byte", 1.0, 9, status=status))
    (mean,) = mean_rows(rows, names)
    assert (mean.subset, mean.status) == ("4x-context", expected)


def test_a_test_part_of_ids(context: TaskContext, tmp_path: Path) -> None:
    (tmp_path / "tiny").rename(tmp_path / "code")
    place = tmp_path / "pg19"
    place.mkdir()
    ids = np.frombuffer((tmp_path / "code" / "test" / "0.txt").read_bytes(), np.uint8)
    ids.astype("<u2").tofile(place / "test.bin")
    task = Perplexity(replace(context, data=tmp_path), corpus="code", test="pg19")
    assert len(task.windows_of("pg19")) == 500 // 64
    assert not task.texts["pg19"].open().ids.flags.writeable  # the user's file stays as it is
    assert task.provenance()["tests"]["pg19"]["documents"] is None
    with (place / "test.bin").open("ab") as file:
        file.write(b"a\0")
    changed = Perplexity(replace(context, data=tmp_path), corpus="code", test="pg19")
    assert changed.data_label != task.data_label


@pytest.mark.parametrize(("preset", "corpus"), [("small", "pg19"), ("mid", "c4"), ("paper", "c4")])
def test_presets_have_a_public_corpus_and_words(
    context: TaskContext, monkeypatch: pytest.MonkeyPatch, preset: str, corpus: str
) -> None:
    fetch = Mock(return_value=folder_corpus(folder(context, "train").parent))
    monkeypatch.setattr(source, "public_corpus", fetch)
    files = Perplexity.presets[preset].options.get("train_files", 1)
    options = RunOptions(preset=preset, cache=context.cache, train={"length": 16})
    task = resolve(options, "perplexity")
    fetch.assert_called_once_with(corpus, files, context.cache)
    assert task.task.context.tokenizer == Perplexity.presets[preset].tokenizer
    assert task.task.context.tokenizer.startswith("bpe:")


def test_a_public_corpus_is_fetched_for_larger_presets(
    context: TaskContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = Mock(return_value=folder_corpus(folder(context, "train").parent))
    monkeypatch.setattr(source, "public_corpus", fetch)
    task = Perplexity(replace(context, data=None, preset="small"), corpus="c4", train_files=7)
    fetch.assert_called_once_with("c4", 7, context.cache)
    assert task.batch(None, 0, 0).tokens.shape == (3, 16)


@pytest.mark.parametrize(
    ("changed", "options", "sentence"),
    [
        (
            {"train": TrainConfig(length=200)},
            {},
            "no test document of tiny has 800 tokens, 4 times the training length: use longer "
            "documents or a smaller --train.length",
        ),
        (
            {},
            {"lengths": "16+800"},
            "no test document of tiny has 800 tokens, 50 times the training length: use longer "
            "documents or shorter perplexity:lengths",
        ),
        (
            {"train": TrainConfig(length=1602)},
            {},
            "tiny has 1602 tokens to train on, .*: give more",
        ),
        ({}, {"stride": 5}, "stride must be from 1 to 4, the shortest window, not 5"),
        ({}, {"corpus": "stdlib"}, "corpus=stdlib needs no data: leave out --data"),
        ({}, {"corpus": "python"}, "corpus=python needs no data: leave out --data"),
        ({"data": None}, {"corpus": "pg19"}, "quick downloads nothing: give a folder .* of pg19"),
        ({"preset": "small", "data": None}, {"corpus": "code"}, "no download of code, .*: give a"),
        ({"preset": "paper"}, {}, "preset paper needs tokens of several bytes each.* bpe:32000"),
        ({}, {"test": "pg19+cod"}, r"no corpus 'cod' \(did you mean 'code'\?\); .* joined by \+"),
        ({}, {"test": "code+pg19+code"}, "names code twice"),
        ({}, {"test": "pg19"}, "downloads nothing: give a folder with the text of pg19"),
        ({"preset": "small"}, {"test": "code"}, "no download of code"),
        (
            {"data": Path("PARENT")},
            {"test": "code"},
            "has a folder code to measure on",
        ),
        (
            {"data": Path("PARENT")},
            {"test": "code", "corpus": "pg19"},
            "must be in another one there: name it with perplexity:corpus=pg19",
        ),
        ({"data": Path("x.bin")}, {}, "there is no file x.bin"),
        (
            {"data": Path("x.bin"), "tokenizer": "bpe:300"},
            {},
            "has ids of an existing vocabulary, .* give its tokenizer",
        ),
    ],
)
def test_bad_input(
    context: TaskContext, changed: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    if changed.get("data") == Path("PARENT"):
        place = folder(context, "test").parent
        place.rename(place.with_name("code"))
        changed = {"data": place.parent}
    if "1602" in sentence:
        (folder(context, "test") / "long.txt").write_text("long " * 1602)
    with pytest.raises(InputError, match=sentence):
        task = Perplexity(replace(context, **changed), **options)
        assert (task.skip(NoPE(ModelConfig())) is None) == ("800" not in sentence)
        task.batch(None, 0, 0)
        task.evaluate(Mock(spec=Decoder), "test", 0, Mock(spec=Journal))
