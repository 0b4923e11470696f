"""Grid files have the same options, and errors name the file and the key."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from test_runner import Toy
from test_runner import toy as toy  # a fixture

from pe_bench.cli import COMMANDS, main
from pe_bench.commands.parser import parse
from pe_bench.grid.shard import Shard

FULL = """
encoding = ["rope:base=500000", "./mine.py"]
task = "mqar"
seeds = ["0-2", 7]
data = ["one", "mqar=two"]
precision = "fp32"
wide = true
dry-run = false
shard = "2/8"
jobs = 2
train.lr = 1e-3

[train]
steps = 20
schedule = "linear"
micro_batch = "none"

[tune]
lr = [1e-3, 3e-3]
"""
WORDS = [
    *("--encoding", "rope:base=500000", "./mine.py", "--task", "mqar", "--seeds", "0-2", "7"),
    *("--data", "one", "mqar=two", "--precision", "fp32", "--wide", "--shard", "2/8"),
    *("--jobs", "2", "--train.lr", "1e-3", "--train.steps", "20", "--train.schedule", "linear"),
    *("--train.micro_batch", "none", "--tune", "--tune.lr", "1e-3", "3e-3"),
]


SEEDS = ("seed0", "seed1")


def given(*words: str) -> Mapping[str, Any]:
    """Return the values that a command of one grid gives."""
    _, (values,) = parse(COMMANDS, ["run", *words])
    return values.given


def write(folder: Path, text: str) -> str:
    (folder / "grid.toml").write_text(text)
    return str(folder / "grid.toml")


def test_a_file_says_what_options_say(tmp_path: Path) -> None:
    text = FULL.replace("train.lr = 1e-3\n", "").replace("[train]", "[train]\nlr = 1e-3")
    assert given(write(tmp_path, text)) == given(*WORDS)
    dotted = FULL[: FULL.index("[train]")]
    assert given(write(tmp_path, dotted)) == given(*WORDS[: WORDS.index("--train.steps")])
    table = FULL[: FULL.index("train.lr")].replace('data = ["one", "mqar=two"]\n', "")
    assert given(write(tmp_path, f'{table}[data]\nmqar = "two"'))["data"] == {"mqar": Path("two")}


def test_options_of_the_command_line_replace_those_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, FULL.replace("train.lr = 1e-3\n", ""))
    found = given(path, "--seeds", "9", "--train.steps=3", "--shard", "1/8")
    assert (found["seeds"], found["train"]["steps"], found["shard"]) == ((9,), 3, Shard(1, 8))
    assert found["encodings"] == ("rope:base=500000", "./mine.py")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("encodings = ['rope']", "no option 'encodings' (did you mean 'encoding'?)"),
        ("[train]\nlrr = 1", "no option 'train.lrr' (did you mean 'train.lr'?)"),
        ("[trian]\nlr = 1", "no option 'trian'"),
        ("help = true", "no option 'help'"),
        ("encoding = 3", "encoding must be a text, or a list of such, not 3"),
        ("encoding = ['rope', 1]", "encoding must be a text, or a list of such, not ['rope', 1]"),
        ("encoding = []", "encoding must be a text, or a list of such, not []"),
        ("preset = ['quick']", "preset must be a text, not ['quick']"),
        ("train = 3", "train must be a table with options such as train.steps"),
        ("train.lr = [1]", "train.lr must be a number or a text, not [1]"),
        ("[encoding]\nname = 'rope'", "encoding must be a text, or a list of such, not {"),
        ("wide = 'yes'", "wide must be true or false, not yes"),
        ("encoding = 'rope", "is not TOML: "),
        ("train.lr = 'x'", "train.lr must be a number, not 'x'"),
        ("train.steps = true", "train.steps must be a whole number, not 'true'"),
        ("shard = '9/8'", "shard must be a shard such as 2/8, from 1/8 to 8/8, not '9/8'"),
        ("task = 'mqar'", "grid.toml: the following arguments are required: --encoding"),
        ("[[grid]]\n[[grid]]\nseeds = 1.5", "grid.toml, grid 1: the following arguments are"),
        ("[[grid]]\nencoding = 'rope'\nseeds = 1.5", "grid.toml: seeds must be a whole number"),
        ("grid = 3", "grid must be tables, each below a line [[grid]]"),
        ("[grid]\ntask = 'mqar'", "grid must be tables, each below a line [[grid]]"),
        ("grid = [1]", "grid must be tables, each below a line [[grid]]"),
        ("grid = []", "grid must be tables, each below a line [[grid]]"),
        ("[[grid]]\ndry-run = true", "dry-run applies to all grids: write it above [[grid]]"),
        ("[[grid]]\n[[grid]]\nresults = 'x'", "results applies to all grids: write it above"),
        ("encoding = ['rope', '--tune']", "encoding must be a text that does not begin with"),
        ("results = ''", "results must be the name of a folder, not ''"),
        ("[[grid]]\ntaks = 'mqar'", "no option 'taks' (did you mean 'task'?)"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    with pytest.raises(SystemExit) as error:
        main(["run", write(tmp_path, text)])
    assert error.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "absent.toml"])
    assert "absent.toml cannot be read (No such file or directory)" in capsys.readouterr().err


SEVERAL = """
task = "./toy.py"
seeds = [0, 1]
train.steps = 1

[[grid]]
encoding = ["nope", "rope"]

[[grid]]
encoding = "alibi"
seeds = 5
"""


def test_a_file_may_hold_several_grids(tmp_path: Path) -> None:
    path = write(tmp_path, SEVERAL)
    _, grids = parse(COMMANDS, ["run", path, "--jobs", "2"])
    found = [grid.given for grid in grids]
    assert [grid["encodings"] for grid in found] == [("nope", "rope"), ("alibi",)]
    assert [grid["seeds"] for grid in found] == [(0, 1), (5,)]
    assert all(grid["jobs"] == 2 and grid["tasks"] == ("./toy.py",) for grid in found)
    assert {grid.file for grid in grids} == {Path(path)}


def test_a_table_of_a_grid_changes_options_of_the_common_table(tmp_path: Path) -> None:
    common = 'task = "mqar"\nencoding = "rope"\n[train]\nsteps = 5\nlr = 0.007\n'
    tune = "[tune]\nseeds = [7]\n"
    grids = (
        '[[grid]]\n[grid.train]\nsteps = 6\n[[grid]]\n"train.lr" = 1.0\n[[grid]]\ntune = false\n'
    )
    _, found = parse(COMMANDS, ["run", write(tmp_path, common + tune + grids)])
    assert [grid.given["train"] for grid in found] == [
        {"steps": 6, "lr": 0.007}, {"steps": 5, "lr": 1.0}, {"steps": 5, "lr": 0.007}
    ]  # fmt: skip
    assert ["tune" in grid.given for grid in found] == [True, True, False]
    dotted = 'tune = true\n"tune.seeds" = [7]\n'
    _, found = parse(COMMANDS, ["run", write(tmp_path, dotted + common + grids)])
    assert ["tune" in grid.given for grid in found] == [True, True, False]


@pytest.mark.slow
def test_several_grids_are_checked_and_shown_before_one_is_run(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, SEVERAL.replace("seeds = 5", "seeds = 5\ntrain.beta2 = 3"))
    assert main(["run", path]) == 2
    assert not (tmp_path / "results/runs").exists()  # nothing is trained
    path = write(tmp_path, SEVERAL)
    capsys.readouterr()
    assert main(["run", path, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "grid 1 of 2: ./toy.py" in out and "4 runs: 0 done, 4 to do" in out
    assert "1 run: 0 done, 1 to do" in out and "time of all 2 grids" in out
    assert main(["run", path, "--no-report"]) == 0
    runs = [path.parts[-2:] for path in (tmp_path / "results/runs/toy.py").glob("*/seed*")]
    assert sorted((encoding, name[:5]) for encoding, name in runs) == [
        ("alibi", "seed5"), *((name, seed) for name in ("nope", "rope") for seed in SEEDS),
    ]  # fmt: skip


@pytest.mark.slow
def test_time_is_known_from_runs_beside_the_file(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy()
    assert main(["export", "sent"]) == 0
    path = write(tmp_path / "sent", "task = './toy.py'\nencoding = 'rope'\nseeds = [1, 2]")
    capsys.readouterr()
    assert main(["run", path, "--dry-run", "--results", "elsewhere"]) == 0
    assert "from 1 earlier run on such a device" in capsys.readouterr().out
    assert (
        main(
            [
                "run",
                "--encoding",
                "rope",
                "--task",
                "./toy.py",
                "--seeds",
                "3",
                "--dry-run",
                "--results",
                ".",
            ]
        )
        == 0
    )  # a folder with the export "sent"
    assert "from 1 earlier run on such a device" in capsys.readouterr().out
    assert main(["run", path, "--dry-run"]) == 0  # the exported run is in the same folder
    assert "from 1 earlier run on such a device" in capsys.readouterr().out


@pytest.mark.slow
def test_a_file_is_run(toy: Toy, tmp_path: Path) -> None:
    grid = "encoding = 'nope'\ntask = './toy.py'\nseeds = [0, 1]\n[train]\nsteps = 1\n"
    toy("--train.steps", "1")
    assert main(["run", write(tmp_path, grid)]) == 0
    runs = list((tmp_path / "results/runs/toy.py/nope").glob("*/run.json"))
    assert len(runs) == 2  # the first is that of the command line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('task = "a\\u0000b"', "task must be a text without the character NUL"),
        ('task = ["a", "a\\u0000b"]', "task must be a text without the character NUL"),
        (f"a = {'[' * 5000}{']' * 5000}", "its values are nested too deeply"),
    ],
)
def test_what_no_option_can_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    with pytest.raises(SystemExit) as error:
        main(["run", write(tmp_path, text)])
    assert error.value.code == 2
    assert says in capsys.readouterr().err


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text('encoding = "nope"\ntask = "mqar"\n', encoding="utf-8-sig")
    assert given(str(path)) == given("--encoding", "nope", "--task", "mqar")


def test_a_pipe_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "grid.toml")
    with pytest.raises(SystemExit):
        main(["run", str(tmp_path / "grid.toml")])
    assert "not a regular file" in capsys.readouterr().err
