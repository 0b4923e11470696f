"""Ids on disk, tokenized or as they come."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from pe_bench.errors import InputError
from pe_bench.tasks.perplexity import token_text
from pe_bench.tasks.perplexity.token_text import (
    TokenText,
    corpus_tokens,
    file_tokens,
    is_token_text,
)
from pe_bench.text.corpus import Corpus, folder_corpus
from pe_bench.text.tokenizer import ByteTokenizer

BYTES = ByteTokenizer()
DOCUMENTS = ["The first. " * 99, "A second one. " * 99, "x" * 1100]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    place = tmp_path / "corpus"
    place.mkdir()
    for part in ("train", "test"):
        lines = [json.dumps({"text": f"{part}: {text}"}) + "\n" for text in DOCUMENTS]
        (place / f"{part}.jsonl").write_text("".join(lines))
    return folder_corpus(place)


def documents(text: TokenText) -> list[list[int]]:
    return [text.ids[a:b].tolist() for a, b in zip(text.starts, text.ends, strict=True)]


def test_a_corpus_is_tokenized_once(corpus: Corpus, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    tokens = corpus_tokens(corpus, BYTES, cache)
    assert (tokens.name, tokens.fingerprint) == (corpus.name, corpus.fingerprint)
    assert not cache.exists()
    for part in ("train", "test"):
        text = tokens.part(part)
        assert text.bounded and documents(text) == [
            list(document) for document in corpus.texts(part)
        ]
        assert (
            text.ids[text.ends].tolist() == [BYTES.eos] * 3 and text.ends[-1] == len(text.ids) - 1
        )
        assert text.ids.dtype == np.uint16
    for path in (*corpus.train, *corpus.test):
        path.unlink()
    again = corpus_tokens(corpus, BYTES, cache).part("test")
    assert np.array_equal(again.ids, tokens.part("test").ids)
    assert np.array_equal(again.ends, tokens.part("test").ends)


def test_tokens_are_told_apart(corpus: Corpus, tmp_path: Path) -> None:
    cache, other = tmp_path / "cache", ByteTokenizer()
    other.fingerprint = "another"
    other.vocab_size = 2**16 + 1
    first = corpus_tokens(corpus, BYTES, cache).part("train")
    second = corpus_tokens(corpus, other, cache).part("train")
    third = corpus_tokens(replace(corpus, fingerprint="f", train=()), BYTES, cache)
    assert second.ids.dtype == np.uint32 and np.array_equal(first.ids, second.ids)
    assert len({path.name for path in (cache / "tokens").iterdir()}) == 4
    with pytest.raises(InputError, match="no document"):
        third.part("train")


def test_an_interrupted_tokenization_leaves_nothing(corpus: Corpus, tmp_path: Path) -> None:
    broken = Mock(wraps=BYTES, vocab_size=260, fingerprint="f", eos=BYTES.eos)
    broken.encode.side_effect = [BYTES.encode("x"), KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        corpus_tokens(corpus, broken, tmp_path / "cache").part("train")
    assert not list((tmp_path / "cache" / "tokens").iterdir())


def write(path: Path, ids: list[int]) -> Path:
    np.array(ids, dtype="<u2").tofile(path)
    return path


def test_a_file_of_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [1, 7, 2, 1, 259, *range(50, 65)]
    path = write(tmp_path / "books.bin", ids)
    assert is_token_text(path) and not is_token_text(tmp_path)
    tokens = file_tokens(path, BYTES)
    parts = [tokens.part(part) for part in ("train", "test")]
    assert [part.ids.tolist() for part in parts] == [ids[:18], ids[18:]]
    assert [(p.starts.tolist(), p.ends.tolist(), p.bounded) for p in parts] == [
        ([0], [18], False),
        ([0], [2], False),
    ]
    said = "20 tokens, not known where documents begin; id 1 occurs 2 times, id 2 occurs 1 times\n"
    assert capsys.readouterr().out == f"{path}: {said}"
    assert tokens.name == "books"
    changed = file_tokens(write(path, [*ids[:-1], 9]), BYTES)
    assert changed.fingerprint != tokens.fingerprint


def test_large_files_are_looked_through_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(token_text, "BUFFER", 3)
    path = write(tmp_path / "a.bin", [1, 2, 2, 2, 1, 2, 5, 2])
    file_tokens(path, BYTES)
    assert "id 1 occurs 2 times, id 2 occurs 5 times" in capsys.readouterr().out
    with pytest.raises(InputError, match="has the id 300, and bytes has 260 ids"):
        file_tokens(write(path, [1, 2, 3, 300, 4, 5, 6]), BYTES)


def test_a_folder_of_ids(tmp_path: Path) -> None:
    write(tmp_path / "train.bin", [5, 6, 7])
    with pytest.raises(InputError, match=r"there is no file .*test\.bin: expected raw"):
        file_tokens(tmp_path, BYTES)
    write(tmp_path / "test.bin", [8, 9])
    assert is_token_text(tmp_path)
    tokens = file_tokens(tmp_path, BYTES)
    assert [tokens.part(p).ids.tolist() for p in ("train", "test")] == [[5, 6, 7], [8, 9]]
    assert tokens.name == tmp_path.name


@pytest.mark.parametrize(
    ("content", "size", "sentence"),
    [
        (b"\x01\x00\x02", 260, "has 3 bytes, .* need an even number above 0: give a file of raw"),
        (b"", 260, "has 0 bytes"),
        (b"\x04\x01", 260, r"has the id 260, .* give the tokenizer\.json that .* as --tokenizer"),
        (b"\x01\x00", 2**16 + 1, "below 65536 and the vocabulary of bytes has 65537: give the"),
    ],
)
def test_files_that_are_not_ids(tmp_path: Path, content: bytes, size: int, sentence: str) -> None:
    path, tokenizer = tmp_path / "a.bin", ByteTokenizer()
    tokenizer.vocab_size = size
    path.write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        file_tokens(path, tokenizer)
