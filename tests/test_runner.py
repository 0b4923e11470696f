"""The grid: finished runs are kept, failures are recorded, and other runs continue."""

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from pe_bench.cli import main
from pe_bench.errors import InputError
from pe_bench.registry import catalogue
from pe_bench.registry.importing import Kind
from pe_bench.results.measurement import CSV_COLUMNS
from pe_bench.results.row_files import read_measurements
from pe_bench.runs.options import RunOptions

TASK = '''
"""A task whose evaluation counts its calls."""
import os
from pathlib import Path
import torch
from pe_bench.api import (
    Batch, Column, Evaluation, Headline, InputError, Measurement, ModelConfig, Preset, Task,
    TrainConfig, Vocabulary
)

class Toy(Task):
    headline = Headline("score", "all")
    all_subsets = ("a", "b")
    views = (Column("a", "right"), Column("b", "right"))
    vocabulary = Vocabulary(9)
    presets = {"quick": Preset(TrainConfig(steps=2, batch_size=2, length=8),
                               ModelConfig(layers=2, heads=2, width=16, mlp_width=16))}

    def __init__(self, context):
        super().__init__(context)
        self.max_eval_tokens = 16
        self.unavailable = {"c": "give it a file"} if "TOY_MISSING" in os.environ else {}

    def batch(self, subset, seed, step):
        self.log("batch")
        return Batch(torch.ones(2, 8, dtype=torch.long), torch.ones(2, 8, dtype=torch.long))

    def evaluate(self, model, subset, seed, journal):
        self.log(subset)
        fail = os.environ.get("TOY_FAIL", "").split(",")
        if subset in fail:
            raise ZeroDivisionError("broken on purpose")
        if subset + "!" in fail:
            raise InputError("repair your data")
        if subset + "^C" in fail:
            raise KeyboardInterrupt
        value = float(model(torch.arange(8)[None]).square().mean()) / 10
        return Evaluation([Measurement(subset, "right", value, 5, 0.1, 8)], (f"note on {subset}",))

    def summarize(self, rows):
        return [Measurement("all", "score", sum(r.value for r in rows), len(rows))]

    def log(self, line):
        with Path(os.environ["TOY_LOG"]).open("a") as file:
            file.write(line + "\\n")
'''
TABLE = '''
"""Ten learned positions."""
from torch import nn
from pe_bench.encoding import Encoding

class Short(Encoding):
    max_position = 10
'''
Toy = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untested: None) -> Toy:
    """Run the toy task; return the exit code and the log since the last call."""
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.py").write_text(TASK)

    def run(
        *more: str, fail: str = "", encodings: Sequence[str] = ("nope",)
    ) -> tuple[int, list[str]]:
        monkeypatch.setenv("TOY_FAIL", fail)
        (tmp_path / "log").write_text("")
        command = ["run", "--no-report", "--encoding", *encodings, "--task", "./toy.py", *more]
        code = main(command)
        return code, (tmp_path / "log").read_text().split()

    return run


def record(tmp_path: Path, encoding: str = "nope", seed: int = 0) -> tuple[dict[str, Any], Path]:
    (path,) = (tmp_path / "results/runs/toy.py" / encoding).glob(f"seed{seed}-*/run.json")
    return json.loads(path.read_text()), path.parent


def test_a_run_leaves_rows_and_how_they_came_about(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert toy() == (0, ["batch", "batch", "a", "b"])
    run, folder = record(tmp_path)
    rows = read_measurements(folder / "rows.csv")
    assert [(r.subset, r.metric, r.n) for r in rows] == [
        ("a", "right", 5), ("b", "right", 5), ("all", "score", 2),
    ]  # fmt: skip
    header = (folder / "rows.csv").read_text().splitlines()[0]
    assert header == ",".join(CSV_COLUMNS)
    assert run["status"] == "done"
    assert run["subsets"] == ["a", "b"]
    assert run["notes"] == ["note on a", "note on b"]
    assert run["settings"]["train"]["steps"] == 2
    assert run["costs"]["a"]["training"]["tokens"] == 32
    assert run["environment"]["versions"]["torch"]
    assert run["parameters"] > 1000
    assert not (folder / "work").exists()
    assert f"{rows[2].value:.2f}" in capsys.readouterr().out  # the table at the end


def test_what_is_done_is_not_done_again(toy: Toy) -> None:
    toy()
    assert toy() == (0, [])


DRAWING = '''
"""As if it made random choices in evaluation."""
import torch
from pe_bench.encoding import Encoding

class Drawing(Encoding):
    eval_samples = 3

    def embed(self, x, positions):
        return x + 0.1 * torch.arange(16) * (0 if self.training else self.eval_sample)
'''


@pytest.mark.slow
def test_every_draw_of_an_encoding_is_measured_under_the_seed_of_the_run(
    toy: Toy, tmp_path: Path
) -> None:
    (tmp_path / "drawing.py").write_text(DRAWING)
    value = "float(model(torch.arange(8)[None]).square().mean())"
    (tmp_path / "toy.py").write_text(TASK.replace(value, "model.encoding.eval_sample + 2 * seed"))
    assert toy("--seeds", "5", encodings=("./drawing.py",))[1] == ["batch", "batch", *"aaabbb"]
    rows = read_measurements(record(tmp_path, "drawing.py", 5)[1] / "rows.csv")
    assert [row.value for row in rows] == [2, 2, 4]  # draws 0, 1 and 2


@pytest.mark.slow
def test_seeds_and_encodings_make_a_grid(toy: Toy, tmp_path: Path) -> None:
    code, log = toy("--seeds", "1", "2", encodings=("nope", "rope"))
    assert (code, log.count("a")) == (0, 4)
    values = {
        (encoding, seed): read_measurements(record(tmp_path, encoding, seed)[1] / "rows.csv")[
            0
        ].value
        for encoding in ("nope", "rope")
        for seed in (1, 2)
    }
    assert len(set(values.values())) == 4


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["b", "b^C"])
def test_a_failed_part_is_retried_and_nothing_else(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str], failure: str
) -> None:
    code, _ = toy(fail=failure)
    assert code == (130 if "^C" in failure else 1)
    if failure == "b":
        run, folder = record(tmp_path)
        assert run["status"] == "failed"
        assert "ZeroDivisionError: broken on purpose" in run["reason"]
        assert len(read_measurements(folder / "subsets/a.csv")) == 1
    assert toy() == (0, ["b"])  # neither trained nor measured a again
    assert "\na: done already\n" in capsys.readouterr().out
    assert record(tmp_path)[0]["status"] == "done"


def test_what_is_misspelt_is_refused_before_anything_is_trained(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    assert toy(encodings=("ropee", "./broken.py", "nope")) == (2, [])
    first, second = capsys.readouterr().err.splitlines()
    assert "did you mean 'rope'?" in first
    assert "broken.py cannot be imported (ModuleNotFoundError" in second


@pytest.mark.slow
def test_a_failure_does_not_stop_the_grid(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.py").write_text(TABLE)
    (tmp_path / "crash.py").write_text(TABLE.replace("max_position = 10", "overrides = None"))
    code, log = toy(encodings=("./short.py", "./crash.py", "nope"))
    assert code == 2
    assert log.count("a") == 1  # nope ran
    errors = capsys.readouterr().err
    assert "it has 10 positions, but this task needs 16" in errors
    assert "crash.py · toy.py · seed 0 failed" in errors
    assert "Traceback" not in errors
    assert record(tmp_path, "short.py")[0]["status"] == "skipped"
    assert "Traceback" in record(tmp_path, "crash.py")[0]["traceback"]


HOOK = """
from pe_bench.api import Encoding

class Crash(Encoding):
    def embed(self, x, positions):
        return x / (0 if self.training else 1) if self.layer else 1 / 0
"""


def test_the_first_cause_is_what_is_shown(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "crash.py").write_text(HOOK)
    code, log = toy(encodings=("./crash.py",))
    assert (code, log) == (1, ["batch"])  # not repeated for the other subset
    out, err = capsys.readouterr()
    cause = f"ZeroDivisionError: division by zero ({tmp_path}/crash.py:6)"
    run = record(tmp_path, "crash.py")[0]
    assert run["reason"] == cause
    assert out.count(cause) >= 2  # when it happened, and below the table
    assert f"crash.py · toy.py · seed 0 failed, {cause}; see results/runs/" in err
    assert "ZeroDivisionError" in run["traceback"]


def test_a_summary_that_fails_does_not_hide_what_failed_before(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(TASK.replace("sum(r.value for r in rows)", "rows[1].value"))
    assert toy(fail="a") == (1, ["batch", "batch", "a", "b"])
    first, second = record(tmp_path)[0]["reason"].splitlines()
    assert first.startswith("a: ZeroDivisionError: broken on purpose (")
    assert second.startswith("summary: IndexError: list index out of range (")


EACH = TASK.replace("class Toy(Task):", "class Toy(Task):\n    trains_each_subset = True").replace(
    'self.log("batch")',
    'self.log("batch")\n        raise OSError("no such batch")',
)


def test_a_loss_that_is_not_finite_is_found_once(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "crash.py").write_text(
        HOOK.replace("1 / 0", "x * float('nan') if self.training else x")
    )
    assert toy(encodings=("./crash.py",)) == (1, ["batch", "batch"])
    reason = record(tmp_path, "crash.py")[0]["reason"]
    assert reason.startswith("FloatingPointError: the loss is nan at the first step, before")


def test_each_subset_is_tried_until_one_has_failed_like_the_one_before(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy.py").write_text(EACH.replace('("a", "b")', '("a", "b", "c")'))
    assert toy() == (1, ["batch", "batch"])
    first, second = record(tmp_path)[0]["reason"].splitlines()
    assert first.startswith("a: OSError") and second.startswith("b: OSError")


@pytest.mark.slow
def test_an_encoding_that_all_stands_for_may_not_fit(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = catalogue.names

    def some(kind: Kind) -> list[str]:
        return ["abacus", "nope"] if kind == "encoding" else names(kind)

    monkeypatch.setattr(catalogue, "names", some)
    assert toy(encodings=("all",)) == (0, ["batch", "batch", "a", "b"])
    out, err = capsys.readouterr()
    assert "abacus · toy.py · seed 0: skipped, abacus needs tokens for single digit" in out
    assert not [line for line in err.splitlines() if line.startswith("pe-bench")]
    assert toy(encodings=("abacus", "nope"))[0] == 2


@pytest.mark.slow
def test_a_run_of_another_process_is_left_for_the_end(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toy(encodings=("nope",))
    _, folder = record(tmp_path)
    other = FileLock(folder / "lock")
    other.acquire()
    monkeypatch.setattr("pe_bench.grid.grid.sleep", lambda seconds: other.release())
    assert toy(encodings=("nope", "rope")) == (0, ["batch", "batch", "a", "b"])  # of rope
    assert "waiting for another process: nope · toy.py · seed 0" in capsys.readouterr().out


@pytest.mark.slow
def test_a_task_that_crashes_says_where_and_the_other_task_runs(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crash = "super().__init__(context); 1 / 0"
    (tmp_path / "bad.py").write_text(TASK.replace("super().__init__(context)", crash))
    assert toy("./bad.py") == (1, ["batch", "batch", "a", "b"])
    error = next(line for line in capsys.readouterr().err.splitlines() if "bad.py" in line)
    assert "failed, ZeroDivisionError: division by zero" in error
    assert re.search(r"bad\.py:\d+\)$", error)


@pytest.mark.slow
def test_a_task_whose_data_cannot_be_described_fails_alone(toy: Toy, tmp_path: Path) -> None:
    broken = TASK.replace("    def log", "    def provenance(self):\n        1 / 0\n\n    def log")
    (tmp_path / "other.py").write_text(TASK)
    (tmp_path / "toy.py").write_text(broken)
    code, _ = toy("./other.py")
    assert code == 1
    run, _ = record(tmp_path)
    assert run["status"] == "failed" and "ZeroDivisionError" in run["reason"]
    assert [*(tmp_path / "results/runs/other.py/nope").glob("*/rows.csv")]


@pytest.mark.slow
def test_a_task_without_its_data_does_not_stop_the_others(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = TASK.replace(
        "class Toy(Task)", "from pe_bench.api import DataError\n\nclass Toy(Task)"
    )
    absent = absent.replace(
        "super().__init__(context)",
        'super().__init__(context); raise DataError("no folder pg19: download it")',
    )
    (tmp_path / "absent.py").write_text(absent)
    assert toy("./absent.py") == (2, ["batch", "batch", "a", "b"])
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == last == "pe-bench: absent.py: no folder pg19: download it"
    assert toy("./absent.py", "--data", "nowhere") == (2, [])  # misspelt, perhaps


@pytest.mark.slow
def test_bad_data_in_one_part_is_a_sentence_and_the_other_part_is_kept(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert toy(fail="a!") == (2, ["batch", "batch", "a", "b"])
    assert "a: repair your data" in capsys.readouterr().err
    assert toy() == (0, ["a"])


@pytest.mark.slow
def test_a_missing_part_is_said_once_however_many_encodings(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOY_MISSING", "1")
    assert toy(encodings=("nope", "rope"))[0] == 0  # the other run has finished
    out, err = capsys.readouterr()
    assert err.startswith("pe-bench: toy.py · c: give it a file")  # before anything is trained
    assert "Missing: c (give it a file)." in " ".join(out.split())  # and once more at the end
    assert record(tmp_path)[0]["unavailable"] == {"c": "give it a file"}
    assert record(tmp_path)[0]["status"] == "done"


@pytest.mark.slow
def test_parts_can_be_chosen_and_added_later(toy: Toy) -> None:
    assert toy("--subsets", "b")[1] == ["batch", "batch", "b"]
    assert toy()[1] == ["a"]


@pytest.mark.slow
def test_parts_are_added_to_those_of_an_earlier_run(toy: Toy, tmp_path: Path) -> None:
    toy("--subsets", "a")
    assert toy("--subsets", "b", fail="b") == (1, ["b"])  # its model is in the cache
    assert record(tmp_path)[0]["subsets"] == ["a"] and record(tmp_path)[0]["status"] == "done"
    assert toy("--subsets", "b") == (0, ["b"])
    run, folder = record(tmp_path)
    assert run["subsets"] == ["a", "b"] and run["options"] == ["--subsets", "a", "b"]
    assert [row.subset for row in read_measurements(folder / "rows.csv")] == ["a", "b", "all"]
    for subsets in (["a"], ["b"], ["b", "a"]):
        assert toy("--subsets", *subsets) == (0, [])
    assert record(tmp_path)[0]["subsets"] == ["a", "b"]


@pytest.mark.slow
def test_an_edited_encoding_is_a_new_run(toy: Toy, tmp_path: Path) -> None:
    mine = tmp_path / "short.py"
    mine.write_text(TABLE.replace("= 10", "= 100"))
    assert toy(encodings=["./short.py"])[1] == ["batch", "batch", "a", "b"]
    mine.write_text("# a comment\n" + mine.read_text())
    assert toy(encodings=["./short.py"])[1] == []
    mine.write_text(mine.read_text().replace("= 100", "= 99"))
    assert toy(encodings=["./short.py"])[1] == ["batch", "batch", "a", "b"]
    records = [json.loads(path.read_text()) for path in tmp_path.rglob("run.json")]
    assert len({record["encoding_version"] for record in records}) == 2


@pytest.mark.slow
def test_an_override_is_another_run(toy: Toy, tmp_path: Path) -> None:
    toy()
    assert toy("--train.lr", "0.5")[1] == ["batch", "batch", "a", "b"]
    assert len(list((tmp_path / "results/runs/toy.py/nope").iterdir())) == 2


def test_a_full_disk_stops_everything_with_a_sentence(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, _ = toy(encodings=("nope", "rope"))
    assert code == 1
    errors = capsys.readouterr().err.strip()
    assert "No space left on device" in errors
    assert len(errors.splitlines()[-1:]) == 1
    assert "Traceback" not in errors
    monkeypatch.undo()


def test_options_from_python_are_checked_like_those_of_the_command() -> None:
    assert RunOptions(train={"steps": 2}).preset == "quick"
    with pytest.raises(InputError, match=r"train has no 'stesp' .did you mean 'steps'"):
        RunOptions(train={"stesp": 2})
    with pytest.raises(InputError, match="model has no 'vocab_size'"):
        RunOptions(model={"vocab_size": 2})
    with pytest.raises(InputError, match="precision must be fp32 or bf16, not 'fp16'"):
        RunOptions(precision="fp16")  # type: ignore[arg-type]
