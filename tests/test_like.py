"""`run --like DIR`: other encodings with the settings of finished runs, in the same table."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import CURVE, SCORE, put
from test_runner import Toy
from test_runner import toy as toy  # a fixture

from pe_bench import python_api
from pe_bench.cli import main
from pe_bench.commands.like import Like, find_like
from pe_bench.commands.run import COMMAND
from pe_bench.commands.values import Values
from pe_bench.errors import InputError
from pe_bench.reporting.tables import read_tables
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


def test_tasks_are_needed_in_python_too(folder: Path) -> None:
    with pytest.raises(InputError, match="run needs tasks, or the folder"):
        python_api.run("nope")


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
