"""Data that change after a command has computed their digest are refused and never cached."""

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from helpers import some_slow
from pyarrow import parquet

from pe_bench.config import AdaptConfig, ModelConfig
from pe_bench.decoder.model import Decoder
from pe_bench.errors import ChangedError
from pe_bench.pretrained.saving import save_checkpoint
from pe_bench.registry import plugins
from pe_bench.runs import initial_weights
from pe_bench.runs.initial_weights import Adapted, Pretrained, load_origin, load_pretrained
from pe_bench.tasks.perplexity.tokenized_corpus import corpus_tokens, file_tokens
from pe_bench.tasks.scrolls import documents
from pe_bench.text import corpus
from pe_bench.text.document_files import read_documents, read_json_lines
from pe_bench.text.folder_corpus import folder_corpus
from pe_bench.text.load_tokenizer import load_tokenizer
from pe_bench.text.tokenizer import ByteTokenizer

BYTES = ByteTokenizer()
OLD, NEW = "As it was. " * 200, "As it is now. " * 200


def lines(text: str) -> bytes:
    record = {"id": "a", "input": text, "output": "c", "text": text}
    return (json.dumps(record) + "\n").encode()


def write_parquet(path: Path, text: str) -> None:
    parquet.write_table(pyarrow.table({"text": [text]}), path)


def write_zip(path: Path, text: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("qa/train.jsonl", lines(text))


WRITERS: dict[str, Callable[[Path, str], object]] = {
    "a.txt": lambda path, text: path.write_text(text),
    "a.jsonl": lambda path, text: path.write_bytes(lines(text)),
    "a.json": lambda path, text: path.write_bytes(lines(text)),
    "a.jsonl.gz": lambda path, text: path.write_bytes(gzip.compress(lines(text))),
    "a.parquet": write_parquet,
}


def kept(cache: Path) -> list[Path]:
    """Return the data in a cache, without locks."""
    return [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize("edit", ["changed", "not text", "removed", "while it is read"])
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("use", some_slow(["tokens", "vocabulary"], ["tokens"]))
def test_text(
    name: str, edit: str, use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache = tmp_path / "text", tmp_path / "cache"
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        WRITERS[name](folder / part / name, OLD)
    path = folder / "train" / name
    before = path.read_bytes()
    text = folder_corpus(folder)

    def read() -> None:
        if use == "tokens":
            corpus_tokens(text, BYTES, cache).train[0]()
        else:
            load_tokenizer("bpe:300", text, cache)

    match edit:
        case "changed":
            WRITERS[name](path, NEW)
        case "not text":
            path.write_bytes(b"\xff\xfe")
        case "removed":
            path.unlink()
        case "while it is read":
            once = read_documents

            def edited(path: Path) -> object:
                yield from once(path)
                WRITERS[name](path, NEW)

            monkeypatch.setattr(corpus, "read_documents", edited)
    with pytest.raises(ChangedError, match=f"have changed since .* run it again .*{name} differs"):
        read()
    assert not kept(cache)
    monkeypatch.undo()
    path.write_bytes(before)
    read()
    assert text.train[0].documents(cache)["text"] == [OLD]


@pytest.mark.parametrize("layout", ["file", "folder"])
def test_ids(layout: str, tmp_path: Path) -> None:
    for part in ("train", "test"):
        np.arange(200, dtype="<u2").tofile(tmp_path / f"{part}.bin")
    path = tmp_path / "train.bin"
    before = path.read_bytes()
    tokens = file_tokens(path if layout == "file" else tmp_path, BYTES)
    text = tokens.train[0]()
    path.write_bytes(before)  # another time, the same content
    first = text.read(0, 2)
    with path.open("r+b") as file:
        file.write(b"\x09")
    assert first.tolist() == [0, 1]
    with pytest.raises(ChangedError, match=r"train\.bin differs"):
        text.read(0, 2)
    path.unlink()
    with pytest.raises(ChangedError, match=r"train\.bin differs"):
        text.read(0, 2)


@pytest.mark.parametrize("packed", [False, True])
def test_records(packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qa").mkdir()
    path = tmp_path / ("qa.zip" if packed else "qa/train.jsonl")

    def write(text: str) -> None:
        write_zip(path, text) if packed else path.write_bytes(lines(text))

    def edited(*args: object) -> object:
        write(NEW)
        yield from read_json_lines(*args)  # type: ignore[arg-type]

    write(OLD)
    monkeypatch.setattr(documents, "read_json_lines", edited)
    with pytest.raises(ChangedError, match=f"{path.name} differs"):
        documents.open_split(tmp_path, "qa", "train", tmp_path / "cache")
    assert not kept(tmp_path / "cache")


@pytest.mark.slow
def test_weights(tmp_path: Path) -> None:
    model = ModelConfig(
        layers=1, heads=2, width=16, mlp_width=24, vocab_size=260, train_length=32, init_std=0.3
    )
    encoding = plugins.load("encoding", "rope")
    for seed in (0, 1):
        torch.manual_seed(seed)
        save_checkpoint(
            Decoder(model, encoding.make), tmp_path / f"{seed}", "rope", tokenizer=BYTES
        )
    origin = load_origin(str(tmp_path / "0"))
    adapted = Adapted(
        **{**vars(encoding), "encoding": encoding, "origin": origin}, config=AdaptConfig()
    )
    load_pretrained(adapted, model, 0, "fp32")
    (tmp_path / "1" / "model.safetensors").rename(tmp_path / "0" / "model.safetensors")
    with pytest.raises(ChangedError, match="0 differs"):
        load_pretrained(adapted, model, 0, "fp32")


@pytest.mark.parametrize("fingerprint", ["0123456789ab", "0123456789abcd", "0123456789ax"])
def test_a_fingerprint_is_that_of_the_run(
    fingerprint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoint: Any = SimpleNamespace(
        folder=tmp_path,
        fingerprint=fingerprint,
        config=SimpleNamespace(names=None),
        contains=lambda encoding: False,
    )
    monkeypatch.setattr(initial_weights, "load_files", lambda *args, **options: None)
    encoding = plugins.load("encoding", "nope")
    facts = {**vars(encoding), "version": "0123456789ab"}
    origin = Pretrained(**facts, checkpoint=checkpoint)
    adapted = Adapted(**{**facts, "encoding": encoding, "origin": origin}, config=AdaptConfig())
    model = ModelConfig(layers=1, heads=2, width=16, mlp_width=24)
    if fingerprint.startswith("0123456789ab"):
        load_pretrained(adapted, model, 0, "fp32")
    else:
        with pytest.raises(ChangedError, match=tmp_path.name):
            load_pretrained(adapted, model, 0, "fp32")
