"""Token ids on disk: tokenized texts, and given files of ids."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from helpers import some_slow

from pe_bench.errors import InputError
from pe_bench.tasks.perplexity import tokenized_corpus
from pe_bench.tasks.perplexity.tokenized_corpus import (
    TokenText,
    corpus_tokens,
    file_tokens,
    is_token_text,
)
from pe_bench.text.corpus import Corpus, Piece
from pe_bench.text.folder_corpus import folder_corpus
from pe_bench.text.tokenizer import ByteTokenizer

ROOT = Path(__file__).parents[1]
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


def documents(text: TokenText) -> list[bytes]:
    pairs = zip(text.starts.tolist(), text.ends.tolist(), strict=True)
    return [text.read(start, end).astype(np.uint8).tobytes() for start, end in pairs]


def test_a_corpus_is_tokenized_once(corpus: Corpus, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    tokens = corpus_tokens(corpus, BYTES, cache)
    assert (tokens.name, tokens.fingerprint) == (corpus.name, corpus.fingerprint)
    assert not cache.exists()
    for part, open_part in (("train", tokens.train[0]), ("test", tokens.test)):
        text = open_part()
        assert text.bounded
        assert documents(text) == [f"{part}: {document}".encode() for document in DOCUMENTS]
        assert [text.read(end, end + 1).tolist() for end in text.ends.tolist()] == 3 * [[BYTES.eos]]
        assert text.ends[-1] == len(text.ids) - 1
        assert text.read(0, 1).dtype == np.uint16
    for file in (*corpus.train[0].files, *corpus.test.files):
        file.path.unlink()
    assert documents(corpus_tokens(corpus, BYTES, cache).test()) == documents(tokens.test())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 and later
@pytest.mark.parametrize("processes", [1, 2])
def test_slices_go_across_the_chunks_of_a_column(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setattr(tokenized_corpus, "BYTES_AT_ONCE", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: processes)
    monkeypatch.setattr(tokenized_corpus, "BYTES_PER_PROCESS", 9)
    monkeypatch.setattr(os, "environ", os.environ)  # the library puts a copy in its place
    text = corpus_tokens(corpus, BYTES, tmp_path / "cache").train[0]()
    parts = [f"train: {document}".encode() for document in DOCUMENTS]
    whole = np.concatenate([[*part, BYTES.eos] for part in parts])
    ends = np.cumsum([len(part) + 1 for part in parts]).tolist()
    assert len(text.ids) == len(whole) == ends[-1]
    for start in (0, 5, ends[0] - 1, ends[0], ends[1] - 3, ends[1]):
        for stop in (start + 1, ends[1], ends[1] + 1, ends[2]):
            if start < stop:
                assert np.array_equal(text.read(start, stop), whole[start:stop]), (start, stop)
    assert len(list((tmp_path / "cache" / "tokens").rglob("*.arrow"))) == processes


def test_tokens_are_significant(corpus: Corpus, tmp_path: Path) -> None:
    cache, other = tmp_path / "cache", ByteTokenizer()
    other.fingerprint = "another"
    other.vocab_size = 2**16 + 1
    first = corpus_tokens(corpus, BYTES, cache).train[0]()
    second = corpus_tokens(corpus, other, cache).train[0]()
    assert second.read(0, 1).dtype == np.uint32
    assert documents(first) == documents(second)
    assert len(list((cache / "tokens").iterdir())) == 2
    with pytest.raises(InputError, match="has no document: give more text"):
        corpus_tokens(replace(corpus, test=Piece()), BYTES, cache).test()


def test_an_interrupted_tokenization_leaves_nothing(corpus: Corpus, tmp_path: Path) -> None:
    broken = Mock(wraps=BYTES, vocab_size=260, fingerprint="f", eos=BYTES.eos)
    broken.encode.side_effect = [BYTES.encode("x"), KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        corpus_tokens(corpus, broken, tmp_path / "cache").train[0]()
    (left,) = (tmp_path / "cache" / "tokens").glob("*/*")
    assert left.suffix == ".lock"
    whole = Mock(wraps=BYTES, vocab_size=260, fingerprint="f", eos=BYTES.eos)
    (left.parent / "tmp8fks2").write_text("of a process that was killed")
    corpus_tokens(corpus, whole, tmp_path / "cache").train[0]()
    assert {path.suffix for path in left.parent.iterdir()} == {".lock", ".arrow", ".json"}


CUT: dict[str, Callable[[bytes], bytes]] = {
    "at an even byte": lambda content: content[: len(content) // 2 & ~1],
    "at an odd byte": lambda content: content[: len(content) // 2 | 1],
    "garbage": lambda content: b"\xff\xfe garbage",
    "empty": lambda content: b"",
    "another id": lambda content: content.replace(b"s\0t\0", b"s\0u\0", 1),
}


@pytest.mark.parametrize("how", some_slow(CUT, everyday=("at an even byte",)))
@pytest.mark.parametrize("name", ["tokens/*/ids.arrow", "datasets/**/*.arrow", "tokens/*/*.json"])
def test_what_is_damaged_is_made_again(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, name: str
) -> None:
    cache = tmp_path / "cache"
    expected = documents(corpus_tokens(corpus, BYTES, cache).test())
    (path,) = cache.glob(name)
    whole = path.read_bytes()
    path.write_bytes(CUT[how](whole))
    changed = path.read_bytes() != whole
    if name.startswith("datasets"):
        shutil.rmtree(cache / "tokens")  # otherwise the text is not needed
    found = documents(corpus_tokens(corpus, BYTES, cache).test())
    assert found == expected
    assert (f"pe-bench: {path} " in capsys.readouterr().err) == changed
    assert documents(corpus_tokens(corpus, BYTES, cache).test()) == expected
    assert not capsys.readouterr().err  # repaired
    assert not list(cache.rglob("*.damaged*"))


KILLED = """
import os, signal, sys
from pathlib import Path
from pe_bench.tasks.perplexity import tokenized_corpus
from pe_bench.text import arrow, corpus
from pe_bench.text.folder_corpus import folder_corpus
from pe_bench.text.tokenizer import ByteTokenizer

folder, cache, where = sys.argv[1:]
arrow.WRITTEN_AT_ONCE = tokenized_corpus.BYTES_AT_ONCE = 1
calls = []

def deadly(function):
    def call(*args):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args)
    return call

if where == "reading":
    corpus.read_documents = lambda path, read=corpus.read_documents: map(deadly(str), read(path))
else:
    ByteTokenizer.encode = deadly(ByteTokenizer.encode)
text = folder_corpus(Path(folder))
tokenized_corpus.corpus_tokens(text, ByteTokenizer(), Path(cache)).train[0]()
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["reading", "tokenizing"])
def test_what_a_killed_run_has_left_is_not_used(corpus: Corpus, tmp_path: Path, where: str) -> None:
    cache, folder = tmp_path / "cache", tmp_path / "corpus"
    command = [sys.executable, "-c", KILLED, str(folder), str(cache), where]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    unfinished = "*.incomplete/*.arrow" if where == "reading" else "tokens/*/tmp*"
    assert list(cache.rglob(unfinished))
    text = corpus_tokens(corpus, BYTES, cache).train[0]()
    assert documents(text) == [f"train: {document}".encode() for document in DOCUMENTS]
    assert not list(cache.rglob(unfinished))


def write(path: Path, ids: list[int]) -> Path:
    np.array(ids, dtype="<u2").tofile(path)
    return path


def test_a_file_of_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [1, 7, 2, 1, 259, *range(50, 65)]
    path = write(tmp_path / "books.bin", ids)
    assert is_token_text(path) and not is_token_text(tmp_path)
    tokens = file_tokens(path, BYTES)
    train, test = tokens.train[0](), tokens.test()
    assert (train.ids[0:99].tolist(), test.ids[0:99].tolist()) == (ids[:18], ids[18:])
    assert (train.starts.tolist(), train.ends.tolist(), train.bounded) == ([0], [18], False)
    assert (test.starts.tolist(), test.ends.tolist(), test.bounded) == ([0], [2], False)
    said = "20 tokens without document boundaries; id 1 occurs 2 times, id 2 occurs 1 times\n"
    assert capsys.readouterr().out == f"{path}: {said}"
    assert tokens.name == "books"
    changed = file_tokens(write(path, [*ids[:-1], 9]), BYTES)
    assert changed.fingerprint != tokens.fingerprint


def test_large_files_are_looked_through_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tokenized_corpus, "BUFFER", 3)
    path = write(tmp_path / "a.bin", [1, 2, 2, 2, 1, 2, 5, 2])
    file_tokens(path, BYTES)
    assert "id 1 occurs 2 times, id 2 occurs 5 times" in capsys.readouterr().out
    with pytest.raises(InputError, match="has the id 300, but bytes has 260 ids"):
        file_tokens(write(path, [1, 2, 3, 300, 4, 5, 6]), BYTES)


def test_a_folder_of_ids(tmp_path: Path) -> None:
    write(tmp_path / "train.bin", [5, 6, 7])
    with pytest.raises(InputError, match=r"there is no file .*test\.bin: expected raw"):
        file_tokens(tmp_path, BYTES)
    write(tmp_path / "test.bin", [8, 9])
    assert is_token_text(tmp_path)
    tokens = file_tokens(tmp_path, BYTES)
    assert tokens.train[0]().ids[0:9].tolist() == [5, 6, 7]
    assert tokens.test().ids[0:9].tolist() == [8, 9]
    assert tokens.name == tmp_path.name


@pytest.mark.parametrize(
    ("content", "size", "sentence"),
    [
        (b"\x01\x00\x02", 260, "has 3 bytes, .* need an even number above 0: give a file of raw"),
        (b"", 260, "has 0 bytes"),
        (
            b"\x04\x01",
            260,
            r"has the id 260, .* give the tokenizer\.json of the file as --tokenizer",
        ),
        (b"\x01\x00", 2**16 + 1, "below 65536, but the vocabulary of bytes has 65537: give the"),
    ],
)
def test_files_that_are_not_ids(tmp_path: Path, content: bytes, size: int, sentence: str) -> None:
    path, tokenizer = tmp_path / "a.bin", ByteTokenizer()
    tokenizer.vocab_size = size
    path.write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        file_tokens(path, tokenizer)
