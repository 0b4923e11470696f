"""Merging the runs of several folders: nothing is overwritten and nothing is lost."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock
from made_runs import CURVE, SCORE, TEST, put, put_seeds, write_rows
from test_compare import put as put_scores
from test_runner import Toy, record
from test_runner import toy as toy  # a fixture

from pe_bench.cli import main
from pe_bench.reporting.frames import read_results
from pe_bench.results.export import write_export
from pe_bench.results.identity import digest_settings
from pe_bench.results.layout import CURVES, EXPORTED, PACKED_ROWS, baselines_path
from pe_bench.results.measurement import CSV_COLUMNS, Measurement
from pe_bench.results.store import read_records
from pe_bench.results.views import Headline
from pe_bench.system.sealed import read_sealed, write_sealed

ROOT = Path(__file__).parents[1]
COMMITTED = ROOT / "results" / "quick"


def merge(*folders: Path, to: Path) -> int:
    return main(["merge", *map(str, folders), "--results", str(to)])


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of the runs in a folder, without locks."""
    files = [path for path in (folder / "runs").rglob("*") if path.is_file()]
    return {f"{path.relative_to(folder)}": path.read_bytes() for path in files if path.suffix}


@pytest.mark.slow
def test_two_folders_become_one(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy("--results", "a")
    toy("--results", "b", encodings=["rope", "nope"])
    toy("--results", "whole", encodings=["nope", "rope"])
    capsys.readouterr()
    assert merge(Path("a"), Path("b"), to=Path("both")) == 0
    out = capsys.readouterr().out
    assert "a: 1 copied, 0 already exist" in out and "b: 1 copied, 1 already exist" in out
    assert read_results("both").equals(read_results("whole"))
    assert contents(Path("both")).keys() == contents(Path("whole")).keys()
    assert toy("--results", "both", encodings=["nope", "rope"]) == (0, [])  # all is done
    before = contents(Path("both"))
    assert merge(Path("a"), Path("b"), to=Path("both")) == 0
    assert contents(Path("both")) == before


@pytest.mark.slow
def test_an_export_comes_back_as_runs(toy: Toy, tmp_path: Path) -> None:
    toy("--seeds", "0", "1", encodings=["nope", "rope"])
    assert main(["export", "sent"]) == 0
    assert sorted(path.name for path in Path("sent").iterdir()) == [
        CURVES, "items.parquet", EXPORTED, PACKED_ROWS,
    ]  # fmt: skip
    assert merge(Path("sent"), to=Path("there")) == 0
    here, there = contents(Path("results")), contents(Path("there"))
    for name in there:
        shortened = name.endswith(("run.json", CURVES))
        assert shortened or there[name] == here[name]
    assert len(there) == 12  # files of four runs
    assert toy("--seeds", "0", "1", "--results", "there", encodings=["nope", "rope"]) == (0, [])
    assert merge(Path("sent"), Path("results"), to=Path("there")) == 0


def test_other_numbers_are_named_and_nothing_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    first = put(a, "rope", [SCORE, *CURVE])
    second = put(b, "rope", [replace(SCORE, value=1.25), *CURVE])
    put(b, "alibi", [SCORE])
    before = contents(a)
    assert merge(b, to=a) == 1
    found = capsys.readouterr()
    assert f"rope · lm · seed 0: other numbers in {second} than in {first}, which stay" in found.err
    assert "(1 of 4 rows differ, the first is all bits_per_byte: 1.25 and 1.0)" in found.err
    assert "b: 1 copied, 0 already exist" in found.out
    after = contents(a)
    assert {name: after[name] for name in before} == before and len(after) == len(before) + 2
    put(b, "rope", [SCORE])
    assert merge(b, to=a) == 1
    assert "only one of them has 3 of 4 rows" in capsys.readouterr().err


def test_some_tasks_and_encodings_alone_are_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    for encoding in ("rope", "alibi", "alibi:fixed=true"):
        for task in ("lm", "lm:corpus=c4", "mqar"):
            put_scores(source, task, encoding, [1.0], digest=f"{len(task)}")
    only = ["merge", str(source), "--results", str(target)]
    assert main([*only, "--task", "lm", "--encoding", "alibi", "rope"]) == 0
    assert sorted((one.task, one.encoding) for one in read_records(target)) == [
        ("lm", "alibi"), ("lm", "rope"), ("lm:corpus=c4", "alibi"), ("lm:corpus=c4", "rope"),
    ]  # fmt: skip
    capsys.readouterr()
    assert main([*only, "--encoding", "ropes"]) == 2
    assert "no runs of the encoding 'ropes' (did you mean 'rope'?)" in capsys.readouterr().err


def test_items_count_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    put_seeds(a, "rope", [50])
    put_seeds(b, "rope", [50])
    assert merge(b, to=a) == 0
    put_seeds(b, "fire", [51])
    (items,) = (b / "runs" / "lm" / "fire").glob("*/items.parquet")
    (same,) = (b / "runs" / "lm" / "rope").glob("*/items.parquet")
    shutil.copy(items, same)
    assert merge(b, to=a) == 1
    assert "scores of items differ" in capsys.readouterr().err


def test_an_export_of_the_same_runs_has_the_same_items(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An export rounds scores of items."""
    a, b = tmp_path / "a", tmp_path / "b"
    put_seeds(a, "rope", [50 + 1 / 3])
    write_export(b, read_records(a))
    assert merge(b, to=a) == merge(a, to=tmp_path / "c") == merge(b, to=tmp_path / "c") == 0
    assert "differ" not in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_damaged_is_left_out(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy(encodings=["nope", "rope"])
    rows = next(Path("results").glob("runs/*/*/*/rows.csv"))
    rows.write_text(rows.read_text()[:-5])
    capsys.readouterr()
    assert merge(Path("results"), to=Path("there")) == 1
    found = capsys.readouterr()
    assert "rows.csv has changed since it was written" in found.err and "1 copied" in found.out
    assert len(read_records(Path("there"))) == 1


@pytest.mark.slow
def test_what_has_failed_comes_along_until_it_is_done(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy("--results", "a", fail="b")
    (failed,) = Path("a").rglob("run.json")
    (failed.parent / "executing").touch()  # as if another process executed it again
    assert merge(Path("a"), to=Path("there")) == 0
    assert not list(Path("there").rglob("executing"))
    assert "0 copied, 0 already exist, 1 copied without results (failed)" in capsys.readouterr().out
    assert [run.status for run in read_records(Path("there"))] == ["failed"]
    toy("--results", "b")
    assert merge(Path("b"), Path("a"), to=Path("there")) == 0
    assert "b: 1 copied" in capsys.readouterr().out
    assert [run.status for run in read_records(Path("there"))] == ["done"]
    toy("--results", "c", fail="b")
    assert merge(Path("c"), to=Path("there")) == 0
    assert [run.status for run in read_records(Path("there"))] == ["done"]


@pytest.mark.slow
def test_a_run_that_a_process_works_on_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    folder = a / put(b, "rope", [SCORE]).relative_to(b)
    folder.mkdir(parents=True)
    with FileLock(folder / "lock"):
        assert merge(b, to=a) == 1
    assert f"another process is working on it in {folder}" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir() if path.suffix] == []
    assert merge(b, to=a) == 0


def test_references_and_choices_of_learning_rates_come_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    put(a, "alibi", [SCORE], views=TEST)
    put(b, "rope", [SCORE], views=TEST)
    theirs = baselines_path(b, "lm", "5e77")
    theirs.parent.mkdir()
    write_rows(theirs, [SCORE], task="lm", encoding="guessing")
    trial = {"phase": "all", "lr": 0.01, "seed": 1000, "loss": 1.0}
    choices = {
        "task": "lm",
        "encoding": "rope",
        "encoding_version": "1",
        "lr": {"all": 0.01},
        "tried": [trial],
    }
    path = b / "tuning" / "lm" / "rope-1.json"
    write_sealed(path, choices, owner=path.stem)
    assert merge(b, to=a) == 0
    assert baselines_path(a, "lm", "5e77").read_bytes() == theirs.read_bytes()
    copy = a / "tuning" / "lm" / "rope-1.json"
    assert read_sealed(copy, owner=copy.stem) == choices
    # Different seconds do not matter, and trials of another machine are added.
    more = {"phase": "all", "lr": 0.03, "seed": 1000, "loss": 2.0}
    tried = [trial | {"seconds": 1}, more]
    write_sealed(path, {**choices, "tried": tried}, owner=path.stem)
    assert merge(b, to=a) == 0
    assert read_sealed(copy, owner=copy.stem)["tried"] == [trial, more]
    write_sealed(path, {**choices, "lr": {"all": 0.003}}, owner=path.stem)
    write_rows(theirs, [replace(SCORE, value=7)], task="lm", encoding="guessing")
    capsys.readouterr()
    assert merge(b, to=a) == 1
    found = capsys.readouterr().err
    assert f"(all: 3e-3) than in {copy} (all: 1e-2), which stay" in found
    assert f"{theirs} has other baselines than" in found
    assert read_sealed(copy, owner=copy.stem)["lr"] == {"all": 0.01}


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (replace(SCORE, value=SCORE.value * (1 + 1e-13)), 0),
        (replace(SCORE, value=SCORE.value * (1 + 1e-6)), 1),
        (replace(SCORE, subset="other"), 1),
    ],
)
def test_baselines_are_the_same_up_to_rounding(tmp_path: Path, row: Measurement, code: int) -> None:
    """Another processor adds numbers in another order."""
    for folder, rows in ((tmp_path / "a", [SCORE]), (tmp_path / "b", [row])):
        put(folder, "rope", [SCORE], views=TEST)
        path = baselines_path(folder, "lm", "5e77")
        path.parent.mkdir()
        write_rows(path, rows, task="lm", encoding="guessing")
    assert merge(tmp_path / "b", to=tmp_path / "a") == code


def test_of_two_versions_of_references_the_later_one_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, version in ((a, 1), (b, 2)):
        put(folder, "rope", [SCORE], views=TEST)
        path = baselines_path(folder, "lm", "5e77")
        path.parent.mkdir()
        write_rows(path, [replace(SCORE, value=version)], task="lm", encoding="guessing")
        seal = {} if version == 1 else {"version": version}
        write_sealed(path.with_suffix(".json"), seal, owner=path.stem, files=[path])
    later = path.read_bytes()
    older = baselines_path(a, "lm", "5e77").read_bytes()
    c = tmp_path / "c"
    assert merge(a, to=c) == 0
    copy = baselines_path(c, "lm", "5e77")
    assert copy.read_bytes() == older
    for folder in (b, a):  # the newer one wins in either order
        assert merge(folder, to=c) == 0
        assert copy.read_bytes() == later
        read_sealed(copy.with_suffix(".json"), owner=copy.stem)
    assert "other baselines" not in capsys.readouterr().err


def test_damaged_references_are_replaced(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for folder in (a, b):
        put(folder, "rope", [SCORE], views=TEST)
        path = baselines_path(folder, "lm", "5e77")
        path.parent.mkdir()
        write_rows(path, [SCORE], task="lm", encoding="guessing")
        write_sealed(path.with_suffix(".json"), {}, owner=path.stem, files=[path])
    copy = baselines_path(a, "lm", "5e77")
    copy.write_text("damaged")
    merge(b, to=a)
    assert copy.read_bytes() == baselines_path(b, "lm", "5e77").read_bytes()


@pytest.mark.slow
def test_the_committed_runs_can_be_merged(tmp_path: Path) -> None:
    """The runs of two encodings, on all tasks."""
    encodings = ("alibi", "tape")
    command = ["merge", str(COMMITTED), "--results", str(tmp_path), "--encoding", *encodings]
    assert main(command) == 0
    records = [run for run in read_records(COMMITTED) if run.encoding in encodings]
    exported = {run.name: run for run in records}
    merged = read_records(tmp_path)
    assert {run.name for run in merged} == exported.keys() and len(exported) > 100
    for run in merged:
        assert run.to_json() == exported[run.name].to_json()
        assert digest_settings(run.settings) == run.settings_digest
    ours = read_results(tmp_path).sort_values(["run", "encoding"], kind="stable")
    everything = read_results(COMMITTED)
    theirs = everything[everything["encoding"].isin(encodings)]
    theirs = theirs.sort_values(["run", "encoding"], kind="stable")
    assert ours.reset_index(drop=True).equals(theirs.reset_index(drop=True))
    references = {path.name for path in tmp_path.glob("references/*.csv")}
    assert references == {path.name for path in COMMITTED.glob("references/*.csv")}
    chosen = {path.stem for path in tmp_path.glob("tuning/flipflop/*.json")}
    assert len(chosen) == len({run.encoding for run in merged if run.task == "flipflop"})
    assert main(command) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["merge", "absent"], "there are no runs in absent: give a results folder or an export"),
        (["merge", "here", "here"], "here is given twice, or is --results: leave it out"),
        (["merge", "here", "--results", "here"], "is --results: leave it out"),
        (["merge", "rows.csv"], "rows.csv is a table: to send runs, write pe-bench export DIR"),
        (["merge", "here", "--results", "rows.csv"], "cannot write to rows.csv"),
        (["export", "here.xlsx"], "export writes .parquet, .csv, .tex, or a folder, not .xlsx"),
        (["export", "results"], "results is the results folder: give another one"),
        (
            ["export", "a.csv", "--results", "absent"],
            "there are no runs in absent: use pe-bench run",
        ),
        (
            ["export", "there", "--results", "absent"],
            "there are no runs in absent: use pe-bench run",
        ),
        (["export", "rows.csv/a.csv", "--results", "here"], "cannot save rows.csv/a.csv"),
    ],
)
def test_bad_input(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    put(Path("here"), "rope", [SCORE])
    Path("rows.csv").touch()
    assert main(command) == 2
    found = capsys.readouterr()
    assert says in found.err and not found.out


READ: dict[str, Callable[[str], pd.DataFrame]] = {
    "rows.parquet": pd.read_parquet,
    "rows.csv": lambda path: pd.read_csv(path, dtype={"settings": str}),
}


def test_tables_of_all_kinds_have_the_same_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for encoding in ("rope", "alibi"):
        put_scores(tmp_path / "there", "lm", encoding, [0.25, 0.5])
    frames = []
    for ending, read in ((".csv", pd.read_csv), (".parquet", pd.read_parquet)):
        target = tmp_path / f"table{ending}"
        assert main(["export", str(target), "--results", str(tmp_path / "there")]) == 0
        frames.append(read(target))
        columns = len(frames[0].columns)
        assert capsys.readouterr().out == f"{target}: 4 rows of 4 runs, {columns} columns\n"
    names = ["task", "encoding", "seed", "value", "run"]
    assert frames[0][names].to_dict() == frames[1][names].to_dict()
    assert sorted(frames[0]["value"]) == [0.25, 0.25, 0.5, 0.5]
    assert list(frames[0].columns) == list(frames[1].columns)


@pytest.mark.slow
@pytest.mark.parametrize("name", READ)
def test_a_tidy_table_has_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    score = replace(SCORE, metric="f1")
    headline = Headline("f1", "all")
    put(Path("results"), "rope", [score, *CURVE], seconds=1.5, headline=headline)
    put(Path("results"), "rope", [score], encoding_version="1", order=2, headline=headline)
    put(Path("results"), "alibi", [SCORE], status="failed")
    assert main(["export", name]) == 0
    rows = READ[name](name)
    assert len(rows) == 5 and set(rows["encoding"]) == {"rope"}
    assert rows["in_reports"].tolist() == [False] * 4 + [True]
    assert rows["headline"].sum() == 2 and rows["unit"][0] == "%"
    assert rows["higher_is_better"].tolist() == [True, *[False] * 3, True]
    assert set(rows["commit"]) == {"c" * 40}
    assert rows["length"].dropna().tolist() == [8, 16, 32]
    assert rows["seconds"].notna().sum() == 4


@pytest.mark.slow
def test_the_columns_are_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(Path("results"), "rope", [SCORE])
    assert main(["export", "a.parquet"]) == 0
    columns = pd.read_parquet("a.parquet").columns.tolist()
    section = (ROOT / "docs/results.md").read_text().partition("| column |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in section.splitlines()[2:]]
    documented = [name.strip(" `") for cell in cells for name in cell.split(",")]
    assert documented == columns
    assert columns[: len(CSV_COLUMNS)] == list(CSV_COLUMNS)


@pytest.mark.slow
def test_an_unfinished_run_of_another_process_keeps_its_files(toy: Toy, tmp_path: Path) -> None:
    """Records, journals and subsets are copied; other files of the process are not."""
    toy()
    folder = record(tmp_path)[1]
    (folder / "work").mkdir()
    (folder / "work" / "resume.ckpt").touch()
    (folder / "rows.csv.damaged1").touch()
    assert merge(Path("results"), to=Path("there")) == 0
    copy = Path("there") / folder.relative_to(tmp_path / "results")
    inside = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert "subsets/a.csv" in inside and "run.json" in inside
    assert not {"work/resume.ckpt", "rows.csv.damaged1"} & inside
    assert json.loads((copy / "run.json").read_text()) == record(tmp_path)[0]
