"""Public corpora, from a stand-in for the hub on this machine and from copies."""

import gzip
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pe_bench.errors import InputError
from pe_bench.tasks.perplexity import hub_text
from pe_bench.tasks.perplexity.hub_text import PUBLIC, copied_corpus, public_corpus
from pe_bench.text.download import hub_file

COMMIT = "c" * 40


def content(file: str, folder: Path) -> bytes:
    """Two documents that tell which file they are from, in the format that its name promises."""
    texts = [f"{file} {i}" for i in range(2)]
    if not file.endswith(".parquet"):
        return gzip.compress("".join(json.dumps({"text": t}) + "\n" for t in texts).encode())
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"text": texts}), folder / "table")
    return (folder / "table").read_bytes()


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Paths that the stand-in has been asked for the content of; it has every file."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            paths.append(self.path)
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
    # With telemetry the client would ask the real hub for a list of agents.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(hub_text, "hub_file", partial(hub_file, endpoint=endpoint))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield paths
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", PUBLIC)
def test_files_are_downloaded_once(name: str, asked: list[str], tmp_path: Path) -> None:
    source, cache = PUBLIC[name], tmp_path / "cache"
    corpus = public_corpus(name, 2, cache)
    wanted = [*source.train[:2], *source.test]
    prefix = f"/datasets/{source.repo}/resolve/{COMMIT}/"
    assert asked == [f"{prefix}{file}" for file in wanted]
    train = [text.decode() for text in corpus.texts("train")]
    assert train == [f"{file} {i}" for file in source.train[:2] for i in range(2)]
    assert [text.decode() for text in corpus.texts("test")] == [
        f"{file} {i}" for file in source.test for i in range(2)
    ]
    assert corpus.name == name and not corpus.valid
    asked.clear()
    assert public_corpus(name, 2, cache) == corpus and not asked
    more = public_corpus(name, 3, cache)
    assert asked == [f"{prefix}{source.train[2]}"] and more.fingerprint != corpus.fingerprint


@pytest.mark.parametrize("name", PUBLIC)
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
    with pytest.raises(InputError, match=re.escape(f"but not {source.train[0]}: copy that")):
        copied_corpus(name, place, 9)
    put(source.train[5])
    one = copied_corpus(name, place, 9)
    put(source.train[3])
    two, first = copied_corpus(name, place, 9), copied_corpus(name, place, 1)
    assert one and two and first and one != first
    for corpus, files in ((one, [5]), (two, [3, 5]), (first, [3])):
        names = [source.train[i] for i in files]
        train = [text.decode() for text in corpus.texts("train")]
        assert train == [f"{file} {i}" for file in names for i in range(2)]
        assert len(list(corpus.texts("test"))) == 2 and corpus.name == name


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
    with pytest.raises(InputError, match=r"give --data DIR with proofpile_train_0\.jsonl\.gz"):
        public_corpus("proofpile", 1, tmp_path)
