"""`--timeout`: a run that takes too long fails with a message, and the next call continues it."""

from pathlib import Path

import pytest
from test_runner import TASK, Toy, record
from test_runner import toy as toy  # a fixture

from pe_bench.errors import TimedOut
from pe_bench.grid.executors import execute_run
from pe_bench.results.journal import Journal
from pe_bench.system.time_limit import TimeLimit

MEASURE = """
        for item in ("one", "two"):
            if item not in journal.items:
                journal.add({item: 1})
"""
JOURNALS = TASK.replace("        self.log(subset)\n", f"        self.log(subset){MEASURE}")


class Clock:
    """A clock that advances by one minute whenever it is read."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 60
        return self.seconds


@pytest.fixture
def a_minute_per_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run has its own clock."""
    monkeypatch.setattr(execute_run, "TimeLimit", lambda minutes: TimeLimit(minutes, Clock()))


def test_the_limit_begins_with_start() -> None:
    clock = Clock()
    limit = TimeLimit(2, clock)
    clock.seconds = 1e9
    limit.check("before the start")
    limit.start()
    limit.check("after one minute")
    message = r"timed out after 2 min \(--timeout\), at the end: the same command continues"
    with pytest.raises(TimedOut, match=message):
        limit.check("at the end")


def test_items_are_saved_before_the_evaluation_ends(tmp_path: Path) -> None:
    limit = TimeLimit(1, Clock())
    limit.start()
    with pytest.raises(TimedOut, match="in evaluation after 1 item"):
        Journal(tmp_path / "journal", limit=limit).add({"one": 1})
    assert Journal(tmp_path / "journal").items == {"one": 1}


@pytest.mark.slow
def test_repeated_calls_finish_a_run_with_the_same_numbers(
    toy: Toy, tmp_path: Path, a_minute_per_look: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "toy.py").write_text(JOURNALS)
    assert toy("--results", "whole")[0] == 0
    (whole,) = (tmp_path / "whole").glob("runs/*/*/*/rows.csv")
    capsys.readouterr()
    reasons = []
    while toy("--timeout", "1")[0] == 1:
        run, folder = record(tmp_path)
        assert run["status"] == "failed" and run["traceback"] is None
        assert f"nope · toy.py · seed 0 failed, {run['reason']}" in capsys.readouterr().err
        reasons.append(run["reason"])
        assert len(reasons) < 9
    assert [reason.split(", ")[1].split(":")[0] for reason in reasons] == [
        "in training after step 1 of 2",
        "in evaluation after 1 item",
        "in evaluation after 2 items",
        "in evaluation after 1 item",
        "in evaluation after 2 items",
    ]
    run, folder = record(tmp_path)
    assert run["status"] == "done"
    assert (folder / "rows.csv").read_text() == whole.read_text()


@pytest.mark.slow
def test_other_runs_go_on_and_a_larger_limit_suffices(
    toy: Toy, tmp_path: Path, a_minute_per_look: None
) -> None:
    (tmp_path / "toy.py").write_text(JOURNALS.replace("steps=2", "steps=4"))
    assert toy("--timeout", "2", encodings=("nope", "rope"))[0] == 1
    for encoding in ("nope", "rope"):
        assert "after step 2 of 4" in record(tmp_path, encoding)[0]["reason"]
    code, log = toy("--timeout", "60", encodings=("nope", "rope"))
    assert code == 0 and log.count("batch") == 2 * 2
    assert toy(encodings=("nope", "rope")) == (0, [])


@pytest.mark.slow
def test_a_finished_run_has_no_limit(toy: Toy, a_minute_per_look: None) -> None:
    assert toy()[0] == 0
    assert toy("--timeout", "0.001") == (0, [])


@pytest.mark.parametrize("minutes", ["0", "-1"])
def test_a_limit_is_positive(toy: Toy, minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert toy("--timeout", minutes)[0] == 2
    assert "timeout" in capsys.readouterr().err
