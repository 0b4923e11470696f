"""`.jsonl` splits are read, alone and from a zip file, and broken ones are refused."""

import hashlib
import json
import os
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from pe_bench.errors import InputError
from pe_bench.tasks.scrolls import splits
from pe_bench.tasks.scrolls.documents import Record, Records, open_split
from pe_bench.text.document_files import ALWAYS_ALLOWED


def lines(*rows: tuple[str, str, str | None]) -> bytes:
    fields = ("id", "input", "output")
    records = [dict(zip(fields, row, strict=True)) for row in rows]
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records).encode()


THREE = lines(
    *(("x", "première", "1"), ("y", "other", "2"), ("x", "première", "3"), ("x", "première", "1"))
)


def put(folder: Path, content: bytes, split: str = "train") -> Path:
    path = folder / "qa" / f"{split}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return folder


def pack(folder: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(folder / "qa.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return folder / "qa.zip"


def opened(folder: Path, split: str = "train") -> Records:
    return open_split(folder, "qa", split, folder / "cache")


def test_rows_of_one_id_are_one_record(tmp_path: Path) -> None:
    records = opened(put(tmp_path, THREE))
    x, y = Record("x", "première", ("1", "3", "1")), Record("y", "other", ("2",))
    assert list(records) == [x, y] == records[:]
    assert records[-1] == y
    assert (len(records), len(records.rows), records.ids) == (2, 4, ("x", "y"))
    assert records.sha256 == hashlib.sha256(THREE).hexdigest()
    with pytest.raises(IndexError):
        records[2]


def test_an_id_of_two_inputs_is_refused(tmp_path: Path) -> None:
    put(tmp_path, lines(("x", "one", "1"), ("y", "two", "2"), ("x", "two", "3")))
    with pytest.raises(
        InputError, match=r"train\.jsonl:3: the id 'x' has another input in an earlier line"
    ):
        opened(tmp_path)


def test_blank_lines_and_other_line_ends_do_not_matter(tmp_path: Path) -> None:
    content = THREE.replace(b"\n", b"\r\n") + b"\n"
    records = opened(put(tmp_path, content[:-3] + b"\n\n"))
    assert (len(records), len(records.rows)) == (2, 4)
    assert records[1].outputs == ("2",)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_texts(tmp_path: Path) -> None:
    put(tmp_path, lines(("0", "", "")))
    opened(tmp_path)  # imports the library
    put(tmp_path, b"".join(lines((str(i), "word " * 40_000, "out")) for i in range(400)))
    tracemalloc.start()
    records = opened(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "qa" / "train.jsonl").stat().st_size > 80e6
    assert peak < 40e6
    assert records[399].id == "399"


def test_a_test_split_may_lack_outputs(tmp_path: Path) -> None:
    content = lines(("x", "text", None))
    put(put(tmp_path, content, "test"), content)
    assert opened(tmp_path, "test")[0] == Record("x", "text", ())
    with pytest.raises(InputError, match=r"train.jsonl:1: the field 'output' is NoneType"):
        opened(tmp_path)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"train.jsonl is empty"),
        (b"\n \n", r"train.jsonl is empty"),
        (THREE + b'{"id": "z", ', r"train.jsonl:5 is not JSON"),
        (THREE + b"\xff\xfe\n", r"train.jsonl:5 is not JSON in UTF-8"),
        (b"[1]\n", r"train.jsonl:1 is not a JSON object"),
        (b'{"id": 3, "input": "i", "output": "o"}\n', r"train.jsonl:1: the field 'id' is int"),
        (b'{"id": "x", "output": "o"}\n', r"train.jsonl:1: the field 'input' is missing"),
        (b'{"id": "x", "input": "i", "output": ["o"]}\n', r"the field 'output' is list"),
    ],
)
def test_broken_files_are_refused(
    tmp_path: Path, content: bytes, message: str, zipped: bool
) -> None:
    if zipped:
        pack(tmp_path, {"qa/train.jsonl": content})
        message = rf"qa\.zip/qa/{message}" if message.startswith("train") else message
    else:
        put(tmp_path, content)
    with pytest.raises(InputError, match=message):
        opened(tmp_path)


def test_the_plain_file_wins_over_the_zip(tmp_path: Path) -> None:
    pack(tmp_path, {"qa/train.jsonl": lines(("zip", "i", "o")), "qa/test.jsonl": THREE})
    put(tmp_path, lines(("plain", "i", "o")))
    assert opened(tmp_path).ids == ("plain",)
    assert opened(tmp_path, "test").ids == ("x", "y")


def test_a_table_is_kept_once_per_content(tmp_path: Path) -> None:
    def tables() -> list[Path]:
        return list((tmp_path / "cache").rglob("*.arrow"))

    archive = pack(tmp_path, {"qa/train.jsonl": THREE})
    first = opened(tmp_path)
    (kept,) = tables()
    written = kept.stat().st_mtime_ns
    put(tmp_path, THREE)
    assert opened(tmp_path)[:] == first[:]
    assert tables() == [kept] and kept.stat().st_mtime_ns == written
    (tmp_path / "qa" / "train.jsonl").unlink()
    pack(tmp_path, {"qa/train.jsonl": lines(("new", "i", "o"))})
    assert opened(tmp_path).ids == ("new",)
    assert archive.exists() and len(tables()) == 2


@pytest.mark.parametrize("name", ["../evil", "/evil", "qa/../../evil", r"..\evil", r"C:\evil"])
def test_unsafe_members_are_refused_by_name(tmp_path: Path, name: str) -> None:
    pack(tmp_path, {"qa/train.jsonl": THREE, name: b""})
    with pytest.raises(InputError) as error:
        opened(tmp_path)
    assert repr(name) in str(error.value)
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
@pytest.mark.parametrize("member", ["qa/train.jsonl", "qa/other.jsonl"])
def test_a_bomb_is_refused_before_anything_is_unpacked(tmp_path: Path, member: str) -> None:
    pack(tmp_path, {"qa/train.jsonl": THREE, member: bytes(ALWAYS_ALLOWED + 1)})
    with pytest.raises(InputError, match=r"qa\.zip has 6\d,\d+ bytes and unpacks to 67,\d+"):
        opened(tmp_path)
    assert not (tmp_path / "cache").exists()


def test_a_damaged_zip_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    archive = pack(tmp_path, {"qa/train.jsonl": os.urandom(5000)})
    content = bytearray(archive.read_bytes())
    content[1000] ^= 1
    archive.write_bytes(content)
    with pytest.raises(InputError, match=r"qa\.zip cannot be read .*CRC"):
        opened(tmp_path)
    assert not (tmp_path / "cache").exists()


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere is not a folder"):
        opened(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"^no qa in .*qa/train\.jsonl or .*qa\.zip$"):
        opened(tmp_path)
    pack(tmp_path, {"qa/test.jsonl": THREE})
    with pytest.raises(InputError, match=r"holds no qa/train\.jsonl: it has qa/test\.jsonl"):
        opened(tmp_path)
    (tmp_path / "qa.zip").write_bytes(b"hello")
    with pytest.raises(InputError, match=r"qa\.zip cannot be read .*not a zip"):
        opened(tmp_path)


def test_real_records(real_documents: Path, tmp_path: Path) -> None:
    folder = real_documents / "scrolls"
    records = open_split(folder, "quality", "validation", tmp_path)
    sample = folder / "quality" / "validation.jsonl"
    rows = [json.loads(line) for line in sample.read_bytes().splitlines()]
    assert len(records.rows) == len(rows) == 20
    assert [record.id for record in records] == list(dict.fromkeys(row["id"] for row in rows))
    assert records[7].input == next(row["input"] for row in rows if row["id"] == records[7].id)


def test_subsets_are_downloaded_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, Path]] = []

    def hub_file(repository: str, name: str, *, cache: Path) -> Path:
        asked.append((repository, name, cache))
        return cache / "tau--scrolls" / name

    monkeypatch.setattr(splits, "hub_file", hub_file)
    assert splits.download("qmsum", tmp_path) == tmp_path / "hub" / "tau--scrolls"
    assert asked == [("tau/scrolls", "qmsum.zip", tmp_path / "hub")]
