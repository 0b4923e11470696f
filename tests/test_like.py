"""`run --like DIR`: other encodings with the settings of finished runs, in the same table."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_runs import CURVE, SCORE, put
from test_runner import Toy
from test_runner import toy as toy  # a fixture

from pe_bench import python_api
from pe_bench.cli import main
from pe_bench.commands.like import Like, _check_given, bring, find_like
from pe_bench.commands.like_tables import PlannedTable, find_tables, tables_to_continue
from pe_bench.commands.run import COMMAND
from pe_bench.commands.values import Values
from pe_bench.errors import InputError, InputErrors
from pe_bench.option_table import Option, options_of
from pe_bench.reporting.tables import read_tables
from pe_bench.results.record import RunRecord
from pe_bench.results.store import read_records
from pe_bench.runs.factory import RunFactory
from pe_bench.runs.options import RunOptions

MINE = '''
"""No positions at all."""
from pe_bench.encoding import Encoding

class Mine(Encoding):
    pass
'''
GRID = """
device = "cpu"
jobs = 2
results = "elsewhere"
task = "./toy.py"
encoding = ["nope", "rope"]
seeds = "1-2"

[[grid]]
train.steps = 1

[[grid]]
train.steps = 3
"""


def digest(steps: int) -> str:
    options = RunOptions(train={"steps": steps})
    return RunFactory(options).task("./toy.py").digest()


def put_table(folder: Path, steps: int, finished: str, missing: int = 0) -> None:
    """Write the runs of one of the grids, without the last `missing` ones."""
    runs = [(encoding, seed) for encoding in ("nope", "rope") for seed in (1, 2)]
    for encoding, seed in runs[: len(runs) - missing]:
        put(folder, encoding, [SCORE, *CURVE], seed, task="toy.py",
            settings_digest=digest(steps), finished=finished)  # fmt: skip


def like(**given: object) -> Like:
    usual = {"like": "table", "encodings": ("./mine.py",), "tasks": ("./toy.py",)}
    return find_like(Values({**usual, **given}), COMMAND)


@pytest.fixture
def folder(toy: Toy, tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "grid.toml").write_text(GRID)
    return tmp_path / "table"


@pytest.mark.slow
def test_new_rows_are_in_the_table_of_the_folder(
    toy: Toy, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ("--seeds", "1-2", "--train.steps", "1", "--results", "made")
    assert toy(*made, encodings=["nope", "rope"])[0] == 0
    assert main(["export", "table", "--results", "made"]) == 0
    run = ["run", "--no-report", "--like", "table", "--results", "there", "--encoding", "rope"]
    run += ["./mine.py", "--task", "./toy.py"]
    capsys.readouterr()
    assert main([*run, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "4 runs: 2 done, 2 to do" in out and "4 runs of 2 encodings on toy.py, seeds 1-2" in out
    assert not Path("there").exists()
    Path("log").write_text("")
    assert main(run) == 0
    assert Path("log").read_text().split().count("a") == 2  # evaluated with two seeds
    (table,) = read_tables("there")
    assert table.encodings == ["mine.py", "nope", "rope"]
    assert {(record.seed, record.settings_digest) for record in table.records} == {
        (1, digest(1)), (2, digest(1)),
    }  # fmt: skip
    assert "4 copied into there" in capsys.readouterr().out
    Path("log").write_text("")
    assert main(run) == 0 and Path("log").read_text() == ""
    assert "0 copied into there, 4 exist" in capsys.readouterr().out


@pytest.mark.slow
def test_an_export_inside_the_results_folder_counts_too(
    toy: Toy, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert toy("--seeds", "1-2", "--train.steps", "1", "--results", "made")[0] == 0
    assert main(["export", "results/table", "--results", "made"]) == 0
    Path("results/table/grid.toml").write_text(GRID)
    run = ["run", "--no-report", "--like", "results/table", "--encoding", "nope"]
    run += ["--task", "./toy.py"]
    assert main(run) == 0
    assert "2 runs: 2 done, 0 to do" in capsys.readouterr().out


def test_the_latest_complete_rows_are_continued(folder: Path) -> None:
    put_table(folder, 1, "2026-01-01")
    put_table(folder, 3, "2026-01-02", missing=1)
    found = like()
    assert {record.settings_digest for record in found.records} == {digest(1)}
    (grid,) = found.grids
    assert grid.given["train"] == {"steps": 1} and grid.given["seeds"] == (1, 2)
    assert "jobs" not in grid.given and "results" not in grid.given
    put_table(folder, 3, "2026-01-02")
    assert like().grids[0].given["train"] == {"steps": 3}


def test_incomplete_rows_are_better_than_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_table(folder, 3, "2026-01-02", missing=1)
    assert like(seeds=(2,)).grids[0].given["seeds"] == (2,)
    assert "toy.py: 1 runs of the table are not in table" in capsys.readouterr().err


def test_rows_of_other_settings_are_not_continued(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = RunFactory(RunOptions(train={"steps": 7})).task("./toy.py").settings
    old = {"lr": [0.1, 0.2], "seeds": [9]}  # a search without a version
    rows = [SCORE, *CURVE]
    put(folder, "nope", rows, task="toy.py", settings_digest="0", settings=settings)
    with pytest.raises(InputError, match=r"train\.steps 3 instead of 7"):
        like()
    put(folder, "rope", rows, task="toy.py", settings_digest="1", finished="2026",
        settings={**settings, "tune": old})  # fmt: skip
    with pytest.raises(InputError, match="learning rates of an earlier search"):
        like()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"like": "tabel"}, "there is no folder tabel"),
        ({"like": "."}, ". has no grid.toml, the grid of its runs"),
        ({"preset": "quick"}, "--preset contradicts --like, which takes it from table/grid.toml"),
        ({"train": {"steps": 5}}, "--train contradicts --like"),
        ({"precision": "bf16"}, "--precision contradicts --like"),
        ({"tasks": ("toi.py",)}, "there are no runs of 'toi.py' in table (did you mean 'toy.py'?)"),
        ({"seeds": (1, 3)}, "toy.py has no runs with seed 3"),
        ({"encodings": ("./other.py",)}, "'rope' is the name of a shipped encoding"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused(
    folder: Path, tmp_path: Path, given: dict[str, object], sentence: str
) -> None:
    put_table(folder, 1, "2026-01-01")
    (tmp_path / "other.py").write_text(MINE.replace("pass", "name = 'rope'"))
    with pytest.raises(InputError) as error:
        like(**given)
    assert sentence in str(error.value)


def test_a_folder_without_runs_or_with_another_grid_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="no finished runs in table"):
        like()
    (folder / "grid.toml").write_text("encoding = 'nope'\nlike = 'quick'")
    with pytest.raises(InputError, match="from another folder"):
        like()
    (folder / "grid.toml").write_text("encoding = 'nope'\nflask = 'quick'")
    with pytest.raises(InputError, match="not a grid file that this version can read"):
        like()


def test_code_that_the_grid_names_is_not_run(folder: Path, tmp_path: Path) -> None:
    put_table(folder, 1, "2026-01-01")
    (tmp_path / "code.py").write_text("open('EXECUTED', 'w').close()")
    with pytest.raises(InputError, match=r"names code in toy.py, which is run only if you give it"):
        like(tasks=("all",))
    text = (folder / "grid.toml").read_text().replace('"rope"', '"./code.py"')
    (folder / "grid.toml").write_text(text)
    assert like().records
    (folder / "grid.toml").write_text(text + "from = './code.py'")
    with pytest.raises(InputError, match=r"names code in code.py"):
        like()
    assert not (tmp_path / "EXECUTED").exists()


def recorded(task: str, digest: str, finished: str, seed: int = 0) -> RunRecord:
    about: dict[str, Any] = {
        "task": task,
        "encoding": "nope",
        "settings_digest": digest,
        "finished": finished,
    }
    return RunRecord(status="done", seed=seed, **about)


@pytest.mark.parametrize("option", options_of(RunOptions), ids=lambda option: option.flag)
def test_what_the_folder_decides_is_refused(option: Option) -> None:
    values = Values({option.name: "given"})
    if option.name in ("data", "keep", "logger"):  # no number depends on them
        _check_given(values, Path("table"))
        return
    sentence = f"--{option.flag} contradicts --like, which takes it from table/grid.toml: leave one"
    with pytest.raises(InputError, match=sentence):
        _check_given(values, Path("table"))


@pytest.mark.parametrize(
    ("given", "changed", "made"),
    [
        ({}, {}, "quick fp32 cpu there"),
        ({"preset": "mid", "precision": "bf16"}, {"device": "cuda:1"}, "mid bf16 cuda there"),
        ({"preset": "mid", "device": "cpu"}, {"data": {"": Path("here")}}, "mid fp32 cpu here"),
    ],
)
def test_the_settings_of_a_grid_are_those_of_its_options(
    given: dict[str, Any], changed: dict[str, Any], made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without seeds in the grid, seed 0 is planned."""

    class Factory:
        def __init__(self, options: RunOptions, *, device: str) -> None:
            found.append(f"{options.preset} {options.precision} {device} {options.data['']}")

        def task(self, spec: str) -> Any:
            task = SimpleNamespace(measures_time=spec == "efficiency")
            return SimpleNamespace(task=task, digest=lambda: f"digest of {spec}")

        def encoding(self, spec: str) -> Any:
            if spec == "absent":
                raise InputError("the file of another user")
            return SimpleNamespace(label=spec)

        def adapted(self, encoding: Any, task: Any) -> Any:
            return SimpleNamespace(label=f"rope -> {encoding.label}")

    found: list[str] = []
    monkeypatch.setattr("pe_bench.runs.factory.RunFactory", Factory)
    usual = {"data": {"": Path("there")}, "encodings": ("nope", "absent", "tape")}
    grid = Values({**usual, "tasks": ("mqar", "copying", "efficiency"), **given})
    finished = enumerate(("mqar", "efficiency", "mqar"))
    records = [recorded(task, f"digest of {task}", f"{day}") for day, task in finished]
    asked = ["mqar", "efficiency"]
    timed, table = sorted(find_tables(grid, records, asked, changed), key=lambda one: one.task)
    assert found == [made]
    assert (table.spec, table.digest, table.records) == ("mqar", "digest of mqar", records[::2])
    assert table.planned == {("rope -> nope", 0), ("rope -> tape", 0)} and table.latest == "2"
    assert timed.reason == "times of different machines cannot be compared" and not timed.records
    seeds = Values({**grid.given, "seeds": (4, 5)})
    table = next(find_tables(seeds, records, asked, changed))
    assert table.planned == {(f"rope -> {name}", n) for name in ("nope", "tape") for n in (4, 5)}


def test_finished_runs_are_copied_except_into_their_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (3, 4):
        put(Path("table"), "rope", [SCORE, *CURVE], seed)
    records = read_records(Path("table"))
    found = Like(Path("table"), [], records)
    assert bring(found, Path("table")) == [] and capsys.readouterr().out == ""
    assert bring(found, Path("new/there")) == []
    about = "from table: 2 runs of 1 encodings on lm, seeds 3-4"
    assert capsys.readouterr().out == f"{about}; 2 copied into new/there, 0 exist\n"
    assert bring(replace(found, records=records[:1]), Path("new/there")) == []
    about = about.replace("2 runs", "1 runs").replace("3-4", "3")
    assert capsys.readouterr().out == f"{about}; 0 copied into new/there, 1 exist\n"
    assert len(read_records(Path("new/there"))) == 2


def test_tables_are_chosen_for_each_task(capsys: pytest.CaptureFixture[str]) -> None:
    def table(task: str, digest: str, day: int, seeds: int = 1, reason: str = "") -> PlannedTable:
        every = [recorded(task, digest, f"2026-01-0{day}", seed) for seed in range(seeds)]
        records = every if day else []
        planned = {("nope", seed) for seed in range(2)}
        return PlannedTable(task, Values({}), f"{task} {day}", digest, records, planned, reason)

    complete, later = table("a", "x", 1, seeds=2), table("a", "y", 2, seeds=1)
    same = table("a", "x", 1, seeds=2)
    begun, older = table("b", "z", 4, seeds=1), table("b", "w", 3, seeds=1)
    refused, also = table("c", "v", 0, reason="no data"), table("d", "u", 0, reason="no data")
    tables = [later, complete, older, begun, refused, same, also]
    folder = Path("table")
    found = tables_to_continue(tables, ["a", "b"], named=True, folder=folder)
    assert [*map(id, found)] == [*map(id, (complete, same, begun))]
    assert capsys.readouterr().err == "pe-bench: b: 1 runs of the table are not in table\n"
    found = tables_to_continue(tables, ["a", "c", "d"], named=False, folder=folder)
    assert [one.task for one in found] == ["a", "a"]
    sentence = "c, d: new rows would not be in the table of table: no data"
    assert capsys.readouterr().err == f"pe-bench: left out: {sentence}\n"
    for asked, named in ((["a", "c", "d"], True), (["c", "d"], False)):
        with pytest.raises(InputErrors, match=sentence):
            tables_to_continue(tables, asked, named=named, folder=folder)
    with pytest.raises(InputErrors, match="of table: its grid has no such task"):
        tables_to_continue(tables, ["e"], named=True, folder=folder)


def test_tasks_are_needed_in_python_too(folder: Path) -> None:
    with pytest.raises(InputError, match="run needs tasks, or the folder"):
        python_api.run("nope")


@pytest.mark.slow
def test_a_run_with_other_numbers_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_table(folder, 1, "2026-01-01")
    put(tmp_path / "there", "nope", [replace(SCORE, value=2.0), *CURVE], 1, task="toy.py",
        settings_digest=digest(1))  # fmt: skip
    run = ["run", "--no-report", "--like", "table", "--results", "there", "--encoding", "./mine.py"]
    run += ["--task", "./toy.py"]
    assert main(run) == 2
    assert "other numbers in table" in capsys.readouterr().err
