"""Files that hold many documents."""

import gzip
import json
from pathlib import Path

import pytest

from pe_bench.errors import InputError
from pe_bench.text import document_files as packed

TEXTS = ["One line.\nAnother.", "", "naïve 한\u2028\x85", "x" * 5000]
KEPT = [text.encode() for text in TEXTS if text]
LINES = "\n".join(["", *(json.dumps({"text": t, "meta": {"n": 1}}) for t in TEXTS), ""]).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES),
        ("A.JSONL", LINES),
        ("a.jsonl.gz", gzip.compress(LINES)),
        ("a.json.gz", gzip.compress(LINES[:300]) + gzip.compress(LINES[300:])),
    ],
)
def test_a_document_per_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert packed.is_packed(tmp_path / name)
    assert list(packed.documents(tmp_path / name)) == KEPT


def test_a_document_per_row(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    texts = [text for text in TEXTS for _ in range(20)]
    parquet.write_table(arrow.table({"url": texts, "text": texts}), path, row_group_size=7)
    assert list(packed.documents(path)) == [text for text in KEPT for _ in range(20)]
    for column in ({"body": texts}, {"text": [1, 2]}, {"text": ["a", None]}):
        parquet.write_table(arrow.table(column), path)
        with pytest.raises(InputError, match=r"a\.parquet .*column 'text'"):
            list(packed.documents(path))
    path.write_bytes(b"PAR1" + LINES)
    with pytest.raises(InputError, match=r"a\.parquet cannot be read as a table"):
        list(packed.documents(path))


@pytest.mark.parametrize("name", ["a.txt", "a.json", "jsonl", "a.gz", "a.jsonl.txt"])
def test_other_files_are_documents_themselves(name: str) -> None:
    assert not packed.is_packed(Path(name))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", LINES + b"{", r"a\.jsonl:6 is not JSON .*: expected one object per line"),
        ("a.jsonl", b"\xff\n", r"a\.jsonl:1 is not JSON"),
        ("a.jsonl", b'{"body": "x"}\n', r"a\.jsonl:1 has no text: expected .* string 'text'"),
        ("a.jsonl", b'{"text": 1}\n', r"a\.jsonl:1 has no text"),
        ("a.jsonl", b'["text"]\n', r"a\.jsonl:1 has no text"),
        ("a.jsonl.gz", LINES, r"a\.jsonl\.gz is damaged .*: get it again"),
        ("a.jsonl.gz", gzip.compress(LINES)[:-20], r"a\.jsonl\.gz is damaged"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        list(packed.documents(tmp_path / name))
