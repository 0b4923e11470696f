"""Damaged files of a run, or files of another run, are detected, named and made again."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from test_runner import Toy, record
from test_runner import toy as toy  # a fixture

from pe_bench.cli import main
from pe_bench.reporting.frames import read_results
from pe_bench.results.journal import Journal
from pe_bench.results.metrics import Metric
from pe_bench.results.store import owner_of, read_records
from pe_bench.system.schema import WrongError, read_as
from pe_bench.system.sealed import DamagedError, read_sealed, write_sealed

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda content: content[: len(content) // 2],
    "short of a line": lambda content: content[: content.rindex(b"\n", 0, -1) + 1],
    "short of a digit": lambda content: content.replace(b",5,0.1", b",5,0.", 1),
    "garbage": lambda content: b"\xff\xfe\x00garbage",
    "empty": lambda content: b"",
    "empty object": lambda content: b"{}",
    "list": lambda content: b"[]",
    "deep": lambda content: b"[" * 100_000,
}
OF_JSON = ("empty", "empty object", "list", "deep")  # checksums detect the others
FILES = ["rows.csv", "items.parquet", "curves.parquet", "run.json"]
FILES += ["subsets/a.csv", "subsets/a.curves.parquet", "subsets/a.json"]


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how != "missing":
        path.write_bytes(DAMAGE[how](content) if b"\n" in content else content[:-9])


def test_a_record_is_what_was_written_and_belongs_to_one_thing(tmp_path: Path) -> None:
    path, rows = tmp_path / "record.json", tmp_path / "rows.csv"
    rows.write_text("1")
    write_sealed(path, {"a": (1, 2), "b": {3: float("nan")}}, owner="it", files=[rows])
    assert read_sealed(path, owner="it")["a"] == [1, 2]
    with pytest.raises(DamagedError, match="belongs to it, not to that"):
        read_sealed(path, owner="that")
    rows.write_text("2")
    with pytest.raises(DamagedError, match=r"rows\.csv has changed since it was written"):
        read_sealed(path, owner="it")
    rows.write_text("1" * 2000)
    write_sealed(path, {"b": float("nan")}, owner="it", files=[rows])
    read_sealed(path, owner="it", limit=2000)
    with pytest.raises(DamagedError, match=r"rows\.csv cannot be read \(larger than"):
        read_sealed(path, owner="it", limit=1999)
    path.write_text(path.read_text().replace("NaN", "0.5"))
    with pytest.raises(DamagedError, match=r"record\.json has changed since it was written"):
        read_sealed(path, owner="it")


CASES = [
    (file, how)
    for file in FILES
    for how in [*DAMAGE, "missing", "folder"]
    if (how in OF_JSON) <= file.endswith(".json")
    if (how == "short of a digit") <= file.endswith(".csv")
]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "how"), CASES)
def test_a_damaged_file_is_named_and_made_again(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, how: str
) -> None:
    unfinished = file.startswith("subsets")
    toy(fail="b" if unfinished else "")
    folder = record(tmp_path)[1]
    rows = (folder / "rows.csv").read_bytes()
    damage(folder / file, how)
    capsys.readouterr()
    code, log = toy()
    path = Path("results") / folder.relative_to(tmp_path / "results") / file
    silent = (("run.json", "missing"), ("run.json", "empty object"), ("subsets/a.json", "missing"))
    if (file, how) not in silent:
        assert f"pe-bench: {path} " in capsys.readouterr().err
    assert (code, log) == (0, ["a", "b"] if unfinished else [])
    assert record(tmp_path)[0]["status"] == "done"
    assert unfinished or (folder / "rows.csv").read_bytes() == rows
    if how == "garbage":  # takes a while
        assert toy() == (0, [])
        assert main(["report"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("file", ["run.json", *FILES[:2]])
def test_a_damaged_run_hurts_no_other(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    toy(encodings=("rope", "nope"))
    folder = record(tmp_path, "rope")[1]
    (folder / file).write_bytes(b"\xff garbage")
    capsys.readouterr()
    assert toy(encodings=("nope",)) == (2, [])  # nothing is measured again
    out, run_error = capsys.readouterr()
    assert "nope" in out.split("\n\n")[-3]
    assert main(["report"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{folder.name}/{file} " in line and "run it again, or remove" in line
    assert run_error == f"{line}\n"
    text = (tmp_path / "results/leaderboard.md").read_text()
    assert "| nope" in text and "| rope" not in text
    assert "- rope on toy.py, seed 0: damaged, " in text
    assert toy(encodings=("rope",)) == (0, [])
    assert main(["report"]) == 0
    assert "| rope" in (tmp_path / "results/leaderboard.md").read_text()


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (tuple[int, ...], [1, 2], (1, 2)),
        (Mapping[str, tuple[int, ...]], {"a": [1, 2]}, {"a": (1, 2)}),
        (Mapping[str, Metric], {"a": {"title": "F1", "other": 1}}, {"a": Metric("F1")}),
        (list[str], ["x", 1], "its 1 must be text"),
        (Mapping[str, str], {"a": "x", "b": 1}, "its b must be text"),
        (Mapping[str, list[int]], {"a": [], "b": [1, "x"]}, "its b.1 must be a whole number"),
        (Mapping[str, str], {"\x1b": "x"}, "its \ufffd must be text"),
        (Mapping[str, str], ["x"], "it must be an object"),
    ],
)
def test_values_within_others_have_their_types(kind: Any, value: Any, expected: Any) -> None:
    if isinstance(expected, str):
        with pytest.raises(WrongError) as caught:
            read_as(kind, value)
        assert str(caught.value).startswith(expected)
    else:
        assert read_as(kind, value) == expected


TYPES = ['"seed": "zero"', '"costs": 5', '"environment": []', '"subsets": 3', '"headline": "x"']


@pytest.mark.slow
@pytest.mark.parametrize("change", TYPES)
def test_a_record_of_wrong_types_is_damaged(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    toy()
    path = record(tmp_path)[1] / "run.json"
    content = read_sealed(path, owner=owner_of(path.parent))
    write_sealed(path, content | json.loads("{" + change + "}"), owner=owner_of(path.parent))
    capsys.readouterr()
    assert main(["report"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "run.json is not the record of a run (" in line
    assert toy() == (0, [])  # made again from the subsets
    assert main(["report"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("runs/**/subsets/a.json", "training"),
        ("tuning/**/*.json", "lr"),
        ("tuning/**/*.json", "tried"),
    ],
)
def test_a_sealed_file_of_wrong_types_is_damaged(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str], pattern: str, name: str
) -> None:
    """The checksum is valid, as in a folder that someone else has changed."""
    assert toy("--tune", "--tune.seeds", "7", fail="b")[0] == 1
    (path,) = (tmp_path / "results").glob(pattern)
    content = json.loads(path.read_text())
    files = [path.parent / file for file in content.pop("files", {})]
    of = content.pop("of")
    del content["sha256"]
    write_sealed(path, content | {name: ["wrong"]}, owner=of, files=files)
    capsys.readouterr()
    assert toy("--tune", "--tune.seeds", "7")[0] == 0
    assert f"{path.name} is not valid: its {name}" in capsys.readouterr().err
    assert main(["report"]) == 0


@pytest.mark.slow
def test_a_file_in_place_of_a_run_is_set_aside(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy()
    folder = record(tmp_path)[1]
    shutil.rmtree(folder)
    folder.touch()
    assert toy() == (0, ["batch", "batch", "a", "b"])  # weights are not kept
    assert f"{folder.name} is not the folder of a run" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "results/runs")
    (tmp_path / "results/runs").touch()
    assert toy()[0] == 1
    assert "cannot save results/runs/toy.py" in capsys.readouterr().err


@pytest.mark.slow
def test_rows_of_another_run_are_not_taken(toy: Toy, tmp_path: Path) -> None:
    toy("--seeds", "0", "1", fail="b")
    one, other = (record(tmp_path, seed=seed)[1] / "subsets" for seed in (0, 1))
    expected = (one / "a.csv").read_bytes()
    shutil.rmtree(one)
    shutil.copytree(other, one)
    assert toy() == (0, ["a", "b"])
    assert (one / "a.csv").read_bytes() == expected


@pytest.mark.slow
def test_an_edit_taken_back_shows_the_first_numbers_again(toy: Toy, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    source = "from pe_bench.api import Encoding\n\nclass Mine(Encoding):\n    max_position = 100\n"
    for text in (source, source.replace("100", "99"), source):
        mine.write_text(text)
        toy("--seeds", "0", "1", encodings=("./mine.py",))
    names = read_results(tmp_path / "results")["run"].unique()
    measured = (tmp_path / "results/runs/toy.py/mine.py").glob("seed0-*/subsets/a.csv")
    first = min(measured, key=lambda path: path.stat().st_mtime).parents[1]
    assert {str(name) for name in names} >= {first.name}
    versions = {r.encoding_version for r in read_records(tmp_path / "results") if r.name in names}
    assert len(names) == 2 and len(versions) == 1


@pytest.mark.slow
def test_time_and_memory_are_those_of_all_calls(toy: Toy, tmp_path: Path) -> None:
    toy("--subsets", "a")
    first, folder = record(tmp_path)
    assert first["seconds"] > 0
    (folder / "run.json").unlink()
    toy("--subsets", "a")  # nothing is measured
    again = record(tmp_path)[0]
    assert (again["seconds"], again["costs"]) == (first["seconds"], first["costs"])
    assert again["peak_memory_bytes"] == first["peak_memory_bytes"] > 0
    toy()
    assert record(tmp_path)[0]["seconds"] > first["seconds"]


def test_a_journal_is_read_up_to_where_it_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "part.jsonl"
    for key in "abc":
        Journal(path, "run").add({key: 1})
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*whole[:2], whole[2][:5] + b"\n", whole[3]]))
    journal = Journal(path, "run")
    assert journal.items == {"a": 1} and journal.seconds > 0
    assert (
        f"{path} is damaged, or belongs to another run, from line 3 on" in capsys.readouterr().err
    )
    journal.add({"b": 2})
    assert Journal(path, "run").items == {"a": 1, "b": 2}
    assert Journal(path, "another").items == {}
    path.write_bytes(b'["a", 1]\n')  # format of an earlier version
    assert Journal(path, "run").items == {}
