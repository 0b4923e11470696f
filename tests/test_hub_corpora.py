"""Public corpora, file by file: from a local server that replaces the hub, and from copies."""

import gzip
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from helpers import some_slow
from pyarrow import parquet

from pe_bench.config import TrainConfig
from pe_bench.errors import InputError
from pe_bench.task import TaskContext
from pe_bench.tasks.perplexity import hub_corpora
from pe_bench.tasks.perplexity.hub_corpora import PUBLIC, copied_corpus, public_corpus
from pe_bench.tasks.perplexity.task import Perplexity
from pe_bench.text.corpus import Corpus, Piece
from pe_bench.text.download import hub_content, hub_file

COMMIT = "c" * 40


def content(file: str, folder: Path) -> bytes:
    """Return two documents that name their file, in the format of its ending."""
    texts = [f"{file} {i}" for i in range(2)]
    if not file.endswith(".parquet"):
        return gzip.compress(
            "".join(json.dumps({"text": t}) + "\n" for t in texts).encode(), mtime=0
        )
    parquet.write_table(pyarrow.table({"text": texts}), folder / "table")
    return (folder / "table").read_bytes()


def texts(pieces: Sequence[Piece], cache: Path) -> list[str]:
    return [text for piece in pieces for text in piece.documents(cache)["text"]]


def said(files: Sequence[str]) -> list[str]:
    return [f"{file} {i}" for file in files for i in range(2)]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the files that were requested from the local server, which has every file."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            paths.append("?")
            self.answer()

        def do_GET(self) -> None:
            paths.append(self.path.partition(f"/resolve/{COMMIT}/")[2])
            self.wfile.write(self.answer())

        def answer(self) -> bytes:
            found = re.fullmatch(r"/datasets/[\w-]+/[\w-]+/resolve/\w+/(.*)", self.path)
            assert found
            body = bodies.setdefault(found[1], content(found[1], tmp_path))
            self.send_response(200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            return body

    bodies: dict[str, bytes] = {}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    # With telemetry, the client would send a request to the real hub.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        for function in (hub_file, hub_content):
            there = partial(function, endpoint=endpoint)
            monkeypatch.setattr(hub_corpora, function.__name__, there)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield paths
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC)
def test_a_file_is_downloaded_when_it_is_read(name: str, asked: list[str], tmp_path: Path) -> None:
    source, cache = PUBLIC[name], tmp_path / "cache"
    corpus = public_corpus(name, 3, cache)
    assert asked == ["?"] * 4
    files = [file.name for piece in corpus.train for file in piece.files]
    assert files == [*source.train[:3]] and corpus.name == name and not corpus.valid.files
    asked.clear()
    assert texts([corpus.test], cache) == said(source.test)
    assert texts(corpus.train[:1], cache) == said(files[:1])
    assert asked == ["?", *source.test, "?", files[0]]
    asked.clear()
    again = public_corpus(name, 3, cache)  # two files are there
    assert asked == ["?"] * 2 and again.fingerprint == corpus.fingerprint
    assert texts(again.train, cache) == said(files)
    assert [file for file in asked if file != "?"] == files[1:]
    asked.clear()
    whole = public_corpus(name, 3, cache)
    assert whole.fingerprint == corpus.fingerprint and texts(whole.train, cache) == said(files)
    assert not asked
    assert public_corpus(name, 4, cache).fingerprint != corpus.fingerprint


@pytest.mark.slow
def test_training_goes_from_piece_to_piece(asked: list[str], tmp_path: Path) -> None:
    """The first step needs one file, and a batch depends only on seed and step."""
    train = TrainConfig(length=4, batch_size=2, steps=10)
    context = TaskContext(preset="small", train=train, cache=tmp_path / "cache")

    def batches(steps: Sequence[int]) -> list[bytes]:
        task = Perplexity(context, corpus="c4", train_files=4)
        return [task.batch(None, 1, step).targets.numpy().tobytes() for step in steps]

    def fetched() -> list[str]:
        return re.findall(r"train\.(\d{5})", " ".join(asked))

    first = batches([0, 2])
    assert fetched() == ["00000"]
    late = batches([9])
    assert fetched() == ["00000", "00003"]
    everything = batches(range(10))
    assert [everything[step] for step in (0, 2, 9)] == first + late
    assert len({*everything}) == 10
    assert fetched() == ["00000", "00003", "00001", "00002"]


@pytest.mark.parametrize("name", some_slow(PUBLIC, ["proofpile"]))
@pytest.mark.parametrize("flat", [False, True])
def test_copies_of_the_files(name: str, flat: bool, tmp_path: Path) -> None:
    source, place = PUBLIC[name], tmp_path / "copies"

    def put(file: str) -> None:
        path = place / (Path(file).name if flat else file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(file, tmp_path))

    put("unrelated.jsonl.gz")
    assert copied_corpus(name, place, 9) is None
    put(source.test[0])
    with pytest.raises(
        InputError, match=re.escape(f"but not {source.train[0]}: copy this file from")
    ):
        copied_corpus(name, place, 9)
    put(source.train[5])
    one = copied_corpus(name, place, 9)
    put(source.train[3])
    two, first = copied_corpus(name, place, 9), copied_corpus(name, place, 1)
    assert one and two and first and one != first
    for corpus, files in ((one, [5]), (two, [3, 5]), (first, [3])):
        assert texts(corpus.train, tmp_path) == said([source.train[i] for i in files])
        assert texts([corpus.test], tmp_path) == said(source.test) and corpus.name == name


def test_a_task_trains_and_tests_on_copies(tmp_path: Path) -> None:
    for name, files in (("c4", [*PUBLIC["c4"].train[2:5], *PUBLIC["c4"].test]),
                        ("proofpile", PUBLIC["proofpile"].test)):  # fmt: skip
        for file in files:
            path = tmp_path / "copies" / name / Path(file).name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content(file, tmp_path))
    train = TrainConfig(length=4, batch_size=2, steps=10)
    context = TaskContext(train=train, data=tmp_path / "copies", cache=tmp_path / "cache")
    task = Perplexity(context, corpus="c4", test="proofpile+c4", train_files=2)
    assert task.tokens.name == "c4" and len(task.tokens.train) == 2
    assert task.all_subsets == ("proofpile", "c4")
    for subset in task.all_subsets:
        text = task.texts[subset].open()
        documents = [
            task.tokenizer.decode(text.read(start, end))
            for start, end in zip(text.starts.tolist(), text.ends.tolist(), strict=True)
        ]
        assert documents == said(PUBLIC[subset].test)
    trained = task.tokenizer.decode(np.concatenate([piece().ids for piece in task.tokens.train]))
    assert all(text in trained for text in said(PUBLIC["c4"].train[2:4]))


def test_a_copy_has_the_label_of_a_download(asked: list[str], tmp_path: Path) -> None:
    downloaded, source = public_corpus("c4", 2, tmp_path / "cache"), PUBLIC["c4"]
    for file in (*source.train[:2], *source.test):
        path = tmp_path / "copies" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(file, tmp_path))
    copied: Corpus | None = copied_corpus("c4", tmp_path / "copies", 2)
    assert copied and copied.fingerprint == downloaded.fingerprint


def test_files_are_those_of_the_official_splits() -> None:
    assert {name: len(source.train) for name, source in PUBLIC.items()} == {
        "pg19": 23,
        "proofpile": 21,
        "c4": 1024,
    }
    for source in PUBLIC.values():
        assert len({*source.train, *source.test}) == len(source.train) + len(source.test)
    assert PUBLIC["c4"].train[7] == "en/c4-train.00007-of-01024.json.gz"
    assert PUBLIC["proofpile"].train[20] == "train/proofpile_train_20.jsonl.gz"
    assert PUBLIC["pg19"].train[22] == "data/train-00022-of-00023-5a956eb2a5d6cab5.parquet"


def test_no_download_of_that_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no download of code, only of pg19, .*: give a folder"):
        public_corpus("code", 1, tmp_path)
    assert copied_corpus("code", tmp_path, 1) is None


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"OFFLINE.*give --data DIR with proofpile_train_0\.jsonl"):
        public_corpus("proofpile", 1, tmp_path)
