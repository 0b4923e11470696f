"""Reading `.jsonl` splits, alone and from a zip file, and refusing broken ones."""

import hashlib
import json
import os
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from pe_bench.errors import InputError
from pe_bench.tasks.scrolls.documents import Record, Records, open_split

DATA = Path(os.environ.get("PE_BENCH_DATA", Path(__file__).parents[2] / "shared" / "data"))
SAMPLE = DATA / "scrolls" / "quality" / "validation.jsonl"


def lines(*rows: tuple[str, str, str | None]) -> bytes:
    fields = ("id", "input", "output")
    return "".join(
        json.dumps(dict(zip(fields, row, strict=True)), ensure_ascii=False) + "\n" for row in rows
    ).encode()


THREE = lines(("x", "première", "1"), ("y", "other", "2"), ("x", "ignored", "3"), ("x", "", "1"))


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def pack(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_rows_of_one_id_are_one_record(tmp_path: Path) -> None:
    records = Records(put(tmp_path / "train.jsonl", THREE))
    x, y = Record("x", "première", ("1", "3", "1")), Record("y", "other", ("2",))
    assert list(records) == [x, y] == records[:]
    assert records[-1] == y
    assert (len(records), records.rows, records.ids) == (2, 4, ("x", "y"))
    assert records.sha256 == hashlib.sha256(THREE).hexdigest()
    with pytest.raises(IndexError):
        records[2]


def test_blank_lines_and_other_line_ends_do_not_matter(tmp_path: Path) -> None:
    content = THREE.replace(b"\n", b"\r\n") + b"\n"
    records = Records(put(tmp_path / "train.jsonl", content[:-3] + b"\n\n"))
    assert (len(records), records.rows) == (2, 4)
    assert records[1].outputs == ("2",)


def test_memory_does_not_grow_with_the_texts(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    with path.open("wb") as file:
        for i in range(100):
            file.write(lines((str(i), "word " * 40_000, "out")))
    tracemalloc.start()
    records = Records(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 20e6
    assert peak < 3e6
    assert records[99].id == "99"


def test_a_test_split_may_lack_outputs(tmp_path: Path) -> None:
    content = lines(("x", "text", None))
    put(tmp_path / "qa" / "test.jsonl", content)
    put(tmp_path / "qa" / "train.jsonl", content)
    assert open_split(tmp_path, "qa", "test", tmp_path)[0] == Record("x", "text", ())
    with pytest.raises(InputError, match=r"train.jsonl:1: the field 'output' is NoneType"):
        open_split(tmp_path, "qa", "train", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"train.jsonl is empty"),
        (b"\n \n", r"train.jsonl is empty"),
        (THREE + b'{"id": "z", ', r"train.jsonl:5 is not JSON"),
        (THREE + b"\xff\xfe\n", r"train.jsonl:5 is not UTF-8"),
        (b"[1]\n", r"train.jsonl:1 is not a JSON object"),
        (b'{"id": 3, "input": "i", "output": "o"}\n', r"train.jsonl:1: the field 'id' is int"),
        (b'{"id": "x", "output": "o"}\n', r"train.jsonl:1: the field 'input' is missing"),
        (b'{"id": "x", "input": "i", "output": ["o"]}\n', r"the field 'output' is list"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Records(put(tmp_path / "train.jsonl", content))


def test_the_plain_file_wins_over_the_zip(tmp_path: Path) -> None:
    pack(tmp_path / "qa.zip", {"qa/train.jsonl": lines(("zip", "i", "o")), "qa/test.jsonl": THREE})
    put(tmp_path / "qa" / "train.jsonl", lines(("plain", "i", "o")))
    assert open_split(tmp_path, "qa", "train", tmp_path / "cache").ids == ("plain",)
    assert not (tmp_path / "cache").exists()
    assert open_split(tmp_path, "qa", "test", tmp_path / "cache").ids == ("x", "y")


def test_a_zip_is_unpacked_once_per_content(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    archive = pack(tmp_path / "qa.zip", {"qa/train.jsonl": THREE})
    first = open_split(tmp_path, "qa", "train", cache)
    key = hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    assert first.path == cache / key / "qa" / "train.jsonl"
    written = first.path.stat().st_mtime_ns
    assert open_split(tmp_path, "qa", "train", cache).path.stat().st_mtime_ns == written
    pack(archive, {"qa/train.jsonl": lines(("new", "i", "o"))})
    assert open_split(tmp_path, "qa", "train", cache).ids == ("new",)


@pytest.mark.parametrize("name", ["../evil", "/evil", "qa/../../evil", r"..\evil", r"C:\evil"])
def test_unsafe_members_are_refused_by_name(tmp_path: Path, name: str) -> None:
    pack(tmp_path / "qa.zip", {"qa/train.jsonl": THREE, name: b""})
    with pytest.raises(InputError) as error:
        open_split(tmp_path, "qa", "train", tmp_path / "cache")
    assert repr(name) in str(error.value)
    assert not (tmp_path / "cache").exists()


def test_a_damaged_zip_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    archive = pack(tmp_path / "qa.zip", {"qa/train.jsonl": os.urandom(5000)})
    content = bytearray(archive.read_bytes())
    content[1000] ^= 1
    archive.write_bytes(content)
    with pytest.raises(InputError, match=r"qa\.zip cannot be unpacked .*CRC"):
        open_split(tmp_path, "qa", "train", tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere is not a folder"):
        open_split(tmp_path / "nowhere", "qa", "train", tmp_path)
    with pytest.raises(InputError, match=r"^no qa in .*qa/train\.jsonl or .*qa\.zip$"):
        open_split(tmp_path, "qa", "train", tmp_path)
    pack(tmp_path / "qa.zip", {"qa/test.jsonl": THREE})
    with pytest.raises(InputError, match=r"holds no qa/train\.jsonl: it has qa/test\.jsonl"):
        open_split(tmp_path, "qa", "train", tmp_path)
    put(tmp_path / "qa.zip", b"hello")
    with pytest.raises(InputError, match=r"qa\.zip cannot be unpacked .*not a zip"):
        open_split(tmp_path, "qa", "train", tmp_path)
    with pytest.raises(InputError, match=r"there is no file"):
        Records(tmp_path / "train.jsonl")


@pytest.mark.skipif(not SAMPLE.is_file(), reason=f"no sample data at {SAMPLE}")
def test_real_records() -> None:
    records = open_split(DATA / "scrolls", "quality", "validation", Path("unused"))
    rows = [json.loads(line) for line in SAMPLE.read_bytes().splitlines()]
    assert records.rows == len(rows) == 20
    assert [record.id for record in records] == list(dict.fromkeys(row["id"] for row in rows))
    assert records[7].input == next(row["input"] for row in rows if row["id"] == records[7].id)
