"""The end of a run: its table beside earlier runs, a new report, and the next command."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from helpers import some_slow
from made_runs import CURVE, SCORE, put

from pe_bench.cli import main
from pe_bench.commands import summary
from pe_bench.errors import InputErrors, SavingError
from pe_bench.grid.estimate import Estimates
from pe_bench.reporting import report
from pe_bench.reporting.new_runs import summarize
from pe_bench.reporting.report import write_report
from pe_bench.results.record import RunRecord
from pe_bench.results.store import read_records
from pe_bench.system import environment
from pe_bench.system.files import write_json

ROOT = Path(__file__).parents[1]
SMALL = ["--train.batch_size", "2", "--model.layers", "1", "--model.width", "16"]
RUN = ["run", "--task", "flipflop:samples=2", "--train.steps", "1", *SMALL]


def run(*more: str) -> int:
    return main([*RUN, *more])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_a_run_ends_with_its_report_and_what_comes_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--encoding", "nope") == 0
    out = capsys.readouterr().out
    assert "; rows are in results/runs\n" in out and "\ntook " in out
    assert "tables and figures are in results/leaderboard.md, index.html and plots (" in out
    assert "\nnext: pe-bench run --encoding rope --task flipflop:samples=2\n" in out
    assert "nope" in Path("results/leaderboard.md").read_text()
    assert "nope" in Path("results/index.html").read_text(encoding="utf-8")
    assert list(Path("results/plots").glob("flipflop*.png"))

    assert run("--encoding", "alibi") == 0
    out = capsys.readouterr().out
    assert "Measured before: nope." in " ".join(out.split())
    assert "\nnext: pe-bench compare alibi nope\n" in out


@pytest.mark.slow
def test_baselines_that_were_exported_stand_beside(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--encoding", "rope", "--no-report") == 0
    assert main(["export", "results/baselines"]) == 0
    shutil.rmtree("results/runs")
    capsys.readouterr()
    assert run("--encoding", "nope", "--no-report") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Measured before: rope." in out and "guessing" in out
    assert "next: pe-bench compare nope rope" in out


@pytest.mark.slow
def test_tuned_baselines_stand_below(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--encoding", "rope", "--tune", "--no-report") == 0
    assert run("--encoding", "alibi", "--train.lr", "0.1", "--no-report") == 0
    capsys.readouterr()
    assert run("--encoding", "nope", "--no-report") == 0
    own, words, below = capsys.readouterr().out.partition("Measured before with the same settings")
    assert words and "but with a learning rate tuned" in below
    assert "nope" in own and "rope" not in own.partition("next:")[0]
    assert "rope" in below.partition("took")[0] and "alibi" not in own + below.partition("took")[0]


def test_memory_is_that_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PEAK_RESET", tmp_path / "clear_refs")
    monkeypatch.setattr(environment, "STATUS", tmp_path / "status")
    environment.reset_peak_memory("cpu")
    assert (tmp_path / "clear_refs").read_text() == "5"
    (tmp_path / "status").write_text("VmPeak:\t  99 kB\nVmHWM:\t  12 kB\nVmRSS:\t  7 kB\n")
    assert environment.peak_memory("cpu") == 12 * 1024
    (tmp_path / "status").unlink()  # other systems report the peak of the whole process
    assert environment.peak_memory("cpu") > 2**20


@pytest.mark.slow
def test_no_report_leaves_it_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--encoding", "nope", "--no-report", "--results", "here") == 0
    assert sorted(path.name for path in Path("here").iterdir()) == ["references", "runs"]
    assert "for tables and figures: pe-bench report --results here\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ZeroDivisionError("no ink"), "no report, ZeroDivisionError: no ink ("),
        (SavingError("the disk\nis full"), "report: the disk\npe-bench: report: is full\n"),
        (InputErrors(["of damaged runs"]), ""),  # the end of the command names them
    ],
)
def test_a_failure_of_the_report_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    says: str,
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(report, "write_report", fail)
    summary._refresh([], Path("results"))
    found = capsys.readouterr()
    assert found.err.startswith(f"pe-bench: {says}") if says else not found.err
    assert ("tables and figures are in results/" in found.out) == (not says)


@pytest.mark.slow
@pytest.mark.usefixtures("real_figures")
def test_only_what_ran_is_drawn_and_only_once(tmp_path: Path) -> None:
    first = put(tmp_path, "rope", [SCORE, *CURVE])
    other = put(tmp_path, "rope", [SCORE, *CURVE], settings_digest="0ther", task="other")
    write_report(tmp_path, ran=[first])
    (figure,) = (tmp_path / "plots").glob("*.png")
    assert figure.name.startswith("lm") and "lm-" in (tmp_path / "leaderboard.md").read_text()
    shown = figure.stat().st_ino
    write_report(tmp_path, ran=[first])
    assert figure.stat().st_ino == shown  # the present figure is kept
    put(tmp_path, "rope", [replace(SCORE, value=9.0), *CURVE])
    write_report(tmp_path, ran=[other])
    assert figure.stat().st_ino == shown
    assert len(list((tmp_path / "plots").glob("*.png"))) == 2
    assert (tmp_path / "leaderboard.md").read_text().count("![") == 2
    write_report(tmp_path, ran=[first])
    assert figure.stat().st_ino != shown


@pytest.mark.slow
def test_a_damaged_run_beside_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    write_json(Path("results/runs/flipflop/rope/seed0-1/run.json"), {"status": 1})
    assert run("--encoding", "nope") == 2
    found = capsys.readouterr()
    assert "pe-bench: results/runs/flipflop/rope/seed0-1/run.json" in found.err
    assert "next: " in found.out


@pytest.mark.parametrize(
    ("encodings", "says"),
    [
        (["a b", "rope"], "pe-bench compare 'a b' rope"),
        (["a", "b", "c"], "pe-bench compare --all"),
        (["rope"], "the same command with another encoding"),
    ],
)
def test_what_to_type_next(encodings: list[str], says: str) -> None:
    assert summary._suggest(encodings, "lm", "").startswith(says)


def test_a_summary_is_about_what_ran(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other tables of the folder decide nothing, however large they are."""
    here = Path("my results")
    rows = [SCORE, *CURVE]
    folders = [put(here, name, rows) for name in ("tape", "rope")]
    for name in ("nope", "fire", "alibi"):
        put(here, name, rows, settings_digest="another", preset="small")
    (put(here, "t5", rows) / "rows.csv").write_text("damaged")
    calls: list[object] = []

    def summarize(ran: object, earlier: list[RunRecord], *, wide: bool) -> str:
        calls.append((ran, len(earlier), wide))
        return "THE TABLE"

    def write(results: Path, *, ran: object) -> None:
        calls.append((results, ran))

    monkeypatch.setattr("pe_bench.reporting.new_runs.summarize", summarize)
    monkeypatch.setattr(report, "write_report", write)
    monkeypatch.setattr(summary, "time", SimpleNamespace(monotonic=iter([100, 140]).__next__))
    found = summary.summarize_runs(folders[:1], here, seconds=600.0, wide=True, report=True)
    assert len(found) == 1 and "rows.csv" in found[0]
    assert calls == [(folders[:1], 6, True), (here, folders[:1])]
    assert capsys.readouterr().out.splitlines() == [
        "", "THE TABLE", "", "took 10 min; rows are in my results/runs", "writing the report",
        "tables and figures are in my results/leaderboard.md, index.html and plots (40 s)",
        "next: pe-bench compare rope tape --results 'my results'",
    ]  # fmt: skip
    summary.summarize_runs(folders, here, seconds=9.0, wide=False, report=False)
    assert calls[2:] == [(folders, 6, False)]
    line = "for tables and figures: pe-bench report --results 'my results'"
    assert capsys.readouterr().out.splitlines()[3:5] == [
        "took 9 s; rows are in my results/runs",
        line,
    ]


@pytest.mark.parametrize(
    ("changed", "simple"),
    [
        ({"sources": {"tokenizer": "bytes"}}, True),
        ({"sources": {"task": "lm.py"}}, False),
        ({"preset": "small"}, False),
        ({"settings": {"from": {"encoding": "rope"}}}, False),
    ],
)
def test_the_next_command_is_whole_where_nothing_else_was_given(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, Any],
    simple: bool,
) -> None:
    monkeypatch.setattr("pe_bench.reporting.new_runs.summarize", lambda *_, **__: "")
    folder = put(Path("results"), "tape", [SCORE, *CURVE], **changed)
    summary.summarize_runs([folder], Path("results"), seconds=1.0, wide=False, report=False)
    whole = "next: pe-bench run --encoding rope --task lm"
    part = "next: the same command with --encoding rope, for comparison"
    assert capsys.readouterr().out.splitlines()[-1] == (whole if simple else part)


@pytest.mark.slow
def test_a_clone_stays_clean(tmp_path: Path) -> None:
    git = ["git", "-c", "safe.directory=*", "-c", "user.name=a", "-c", "user.email=a@b"]
    shutil.copy(ROOT / ".gitignore", tmp_path)
    committed = tmp_path / "results" / "theirs" / "leaderboard.md"
    committed.parent.mkdir(parents=True)
    committed.touch()
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    assert run("--encoding", "nope", "rope") == 0
    assert main(["report"]) == 0 and main(["compare", "nope", "rope"]) == 0
    status = subprocess.run(
        [*git, "status", "--porcelain"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert status.stdout == ""
    committed.write_text("changed")  # committed files are not ignored
    changed = subprocess.run([*git, "diff", "--quiet"], cwd=tmp_path)
    assert changed.returncode == 1


def test_other_options_than_the_defaults_are_not_left_out() -> None:
    assert (
        summary._suggest(["tape"], None, "")
        == "the same command with --encoding rope, for comparison"
    )
    assert summary._suggest(["tape"], "lm", " --results r").endswith("--task lm --results r")


PARTS = {
    "task": "lm",
    "preset": "quick",
    "protocol": "strict",
    "precision": "fp32",
    "versions": {"task": "1"},
    "model": {"layers": 1, "heads": 2, "width": 16},
    "train": {"steps": 1, "lr": 0.5, "batch_size": 2},
    "start": None,
}


@pytest.mark.parametrize(
    "absent", some_slow([*PARTS, *(f"start.{name}" for name in PARTS)], ["start.model"])
)
def test_settings_of_a_record_may_be_incomplete(absent: str, tmp_path: Path) -> None:
    """No command ends with a traceback because of a record from elsewhere."""
    settings: dict[str, Any] = {name: part for name, part in PARTS.items() if name != absent}
    if absent.startswith("start."):
        start = {name: part for name, part in PARTS.items() if absent != f"start.{name}"}
        settings["start"] = start
    tuned = settings | {"tune": {"lr": [0.5], "seeds": [7]}}
    folders = [
        put(tmp_path, "rope", [SCORE], seed, settings=settings, settings_digest="a")
        for seed in (0, 1)
    ]
    put(tmp_path, "nope", [SCORE], settings=tuned, settings_digest="b")
    records = read_records(tmp_path)
    text = summarize(folders, records)
    assert "rope" in text and "nope" in text  # the table with tuned rates stands below
    estimated = Estimates(records, None).durations.values()
    assert sum(len(costs) for known in estimated for costs in known.values()) in (0, 3)
    if not absent.startswith("start."):
        assert main(["report", str(tmp_path)]) == 0
