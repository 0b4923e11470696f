"""Files with many documents."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from pe_bench.errors import InputError
from pe_bench.text.arrow import quiet_library
from pe_bench.text.document_files import ALWAYS_ALLOWED, holds_many, read_documents

TEXTS = ["One line.\nAnother.", "", "naïve 한\u2028\x85\r\n", "x" * 5000]
KEPT = [text for text in TEXTS if text]
LINES = "\n".join(["", *(json.dumps({"text": t, "meta": {"n": 1}}) for t in TEXTS), ""]).encode()
RAW = json.dumps({"text": TEXTS[2], "meta": 7}, ensure_ascii=False).encode() + b"\r\n"

Read = Callable[[str, bytes], list[str]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write a file and read its documents."""

    def read(name: str, content: bytes) -> list[str]:
        path = tmp_path / "we[i]rd *" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        with quiet_library(tmp_path / "cache"):
            return list(read_documents(path))

    return read


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES),
        ("A.JSONL", LINES),
        ("bom.jsonl", b"\xef\xbb\xbf" + LINES[1:]),
        ("a.jsonl.gz", gzip.compress(LINES)),
        ("a.json.gz", gzip.compress(LINES[:300]) + gzip.compress(LINES[300:])),
        ("a.ndjson", LINES),
        ("a.ndjson.gz", gzip.compress(LINES)),
        ("c4-train.00000-of-01024.json", LINES),
        ("bom.json", b"\xef\xbb\xbf" + LINES[1:]),
        ("a.txt", LINES),
        ("lines", LINES),
        ("a::b.jsonl.gz", gzip.compress(LINES)),
        ("a::b.jsonl", LINES),
    ],
)
def test_a_document_per_line(read: Read, tmp_path: Path, name: str, content: bytes) -> None:
    assert read(name, content) == KEPT
    assert holds_many(tmp_path / "we[i]rd *" / name)


def test_characters_that_are_not_escaped(read: Read) -> None:
    assert read("a.jsonl", 2 * RAW) == 2 * [TEXTS[2]]
    assert read("a.jsonl", b'{"text": "\\ud800!"}') == ["?!"]  # half a pair, as UTF-8 has none
    assert read("a.txt", b"") == [""]
    assert read("a.txt", TEXTS[2].encode()) == [TEXTS[2]]
    assert read("bom.txt", b"\xef\xbb\xbf" + TEXTS[2].encode()) == [TEXTS[2]]


def table(folder: Path, column: dict[str, list[Any]]) -> bytes:
    parquet.write_table(pyarrow.table(column), folder / "table", row_group_size=7)
    return (folder / "table").read_bytes()


def test_a_document_per_row(read: Read, tmp_path: Path) -> None:
    texts = [text for text in TEXTS for _ in range(20)]
    content = table(tmp_path, {"url": texts, "text": texts})
    assert read("a.parquet", content) == [text for text in KEPT for _ in range(20)]
    wrong: list[dict[str, list[Any]]] = [{"body": texts}, {"text": [1, 2]}, {"text": ["a", None]}]
    for column in wrong:
        with pytest.raises(InputError, match=r"a\.parquet .*column 'text'"):
            read("a.parquet", table(tmp_path, column))
    with pytest.raises(InputError, match=r"a\.parquet cannot be read as a table"):
        read("a.parquet", b"PAR1" + LINES)


@pytest.mark.parametrize("name", ["a.txt", "a.json", "jsonl", "a.gz", "a.jsonl.txt"])
@pytest.mark.parametrize(
    "text", ["", "{", '{"body": "x"}\n', '{\n"text": "x"}', '["text"]', "{[" * 9]
)
def test_other_files_are_documents_themselves(read: Read, name: str, text: str) -> None:
    assert read(name, text.encode()) == [text]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", LINES + b"{", r"a\.jsonl:6 is not JSON in UTF-8 .*: expected one object"),
        ("a.jsonl", RAW * 3000 + b"\xff\n", r"a\.jsonl:3001 is not JSON in UTF-8"),
        ("a.jsonl", RAW + b'{"text": "\xff"}', r"a\.jsonl:2 is not JSON in UTF-8"),
        ("a.jsonl", RAW + b"[" * 100_000, r"a\.jsonl:2 is not JSON in UTF-8"),
        ("a.jsonl", b'{"body": "x"}\n', r"a\.jsonl:1 has no text: expected .* string 'text'"),
        ("a.jsonl", b'{"text": 1}\n', r"a\.jsonl:1 has no text"),
        ("a.ndjson", b'{"body": "x"}\n', r"a\.ndjson:1 has no text"),
        ("a.json", RAW + b'{"body": "x"}\n', r"a\.json:2 has no text"),
        ("a.jsonl", b'["text"]\n', r"a\.jsonl:1 has no text"),
        ("a.txt", b'{"id": 7}\n' + RAW, r"a\.txt:1 has no text"),
        ("a.jsonl.gz", LINES, r"a\.jsonl\.gz cannot be read .*: download it again"),
        ("a.jsonl.gz", gzip.compress(LINES)[:-20], r"a\.jsonl\.gz cannot be read"),
    ],
)
def test_damaged_files(read: Read, name: str, content: bytes, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read(name, content)


@pytest.mark.slow
def test_a_bomb_is_refused_before_anything_is_kept(read: Read, tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(ALWAYS_ALLOWED + 1), compresslevel=1)
    with pytest.raises(InputError, match=r"a\.json\.gz has \d{3},\d+ bytes and unpacks to 67,"):
        read("a.json.gz", bomb)
    assert not (tmp_path / "cache").exists()
    dense = json.dumps({"text": "x" * 5_000_000}).encode()  # a thousand times as large, but small
    assert read("b.json.gz", gzip.compress(dense)) == ["x" * 5_000_000]
