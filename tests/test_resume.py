"""A run that is stopped at any moment continues and ends with the same numbers."""

import os
import signal
import time
from pathlib import Path

import pytest
from grid_process import BOTH, prepare, start

pytestmark = pytest.mark.slow

OPTIONS = ("--encoding", "tape", *BOTH, "--no-report")


def stop_when(folder: Path, pattern: str, how: int) -> int:
    """Start a run, send it a signal as soon as a file exists, and return its exit code."""
    process = start(folder, *OPTIONS)
    while not list(folder.glob(pattern)):
        assert process.is_alive(), (folder / "log").read_text()[-3000:]
        time.sleep(0.01)
    os.kill(process.pid, how)
    process.join()
    code: int = process.exitcode
    return code


def finish(folder: Path) -> str:
    """Run to the end and return the rows."""
    process = start(folder, *OPTIONS)
    process.join()
    assert process.exitcode == 0, (folder / "log").read_text()[-3000:]
    (path,) = folder.glob("results/runs/scrolls/tape/*/rows.csv")
    return path.read_text()


def test_stopped_in_training_and_between_subsets(tmp_path: Path) -> None:
    whole, stopped = prepare(tmp_path / "whole", 8), prepare(tmp_path / "stopped", 8)
    expected = finish(whole)
    in_pretraining = "cache/checkpoints/*/resume.safetensors"
    in_fine_tuning = "results/runs/scrolls/tape/*/work/qasper/resume.safetensors"
    between = "results/runs/scrolls/tape/*/subsets/qasper.csv"
    assert stop_when(stopped, in_pretraining, signal.SIGINT) == 130
    log = (stopped / "log").read_text()
    assert "the same command continues from here" in log and "Traceback" not in log
    for pattern in (in_fine_tuning, between):
        assert stop_when(stopped, pattern, signal.SIGKILL) == -signal.SIGKILL
    checkpoints = list(stopped.glob("cache/checkpoints/*/final.safetensors"))
    trained = {path: path.stat().st_mtime_ns for path in checkpoints}
    before = (stopped / "log").read_text()
    assert finish(stopped) == expected
    after = (stopped / "log").read_text().removeprefix(before)
    for trained_once in ("perplexity · train", "qasper · train"):
        assert trained_once in before and trained_once not in after
    assert trained
    assert all(path.stat().st_mtime_ns == when for path, when in trained.items())
