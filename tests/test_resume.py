"""A run that is stopped at any moment continues and ends with the same numbers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pe_bench.cli import main
from pe_bench.tasks.scrolls import miniature
from pe_bench.tasks.scrolls.documents import write_split
from pe_bench.tasks.scrolls.subsets import SUBSETS

pytestmark = pytest.mark.slow

COMMAND = [
    *(sys.executable, "-m", "pe_bench", "run", "--encoding", "tape", "--task", "scrolls"),
    *("--subsets", "qasper", "quality", "--model.layers", "2", "--model.width", "32"),
    *("--model.heads", "2", "--model.mlp_width", "32", "--pretrain.steps", "15"),
    *("--pretrain.save_every", "0", "--train.steps", "15", "--train.save_every", "0"),
]


def command(folder: Path) -> list[str]:
    """Return the command with documents and a results folder."""
    for name in ("qasper", "quality"):
        for split, n in (("train", 40), ("validation", 8)):
            path = folder / "documents" / name / f"{split}.jsonl"
            write_split(path, miniature.rows(SUBSETS[name].miniature, split, n, 100))
    return [*COMMAND, "--data", str(folder / "documents"), "--results", str(folder / "results")]


def start(folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PE_BENCH_CACHE": str(folder / "cache")}
    return subprocess.Popen(
        command(folder),
        env=environment,
        text=True,
        # A run in the background ignores Ctrl-C, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def stop_when(folder: Path, pattern: str, how: int) -> tuple[int, str]:
    """Start a run and send it a signal as soon as a file exists."""
    process = start(folder)
    while not list(folder.glob(pattern)):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    process.send_signal(how)
    _, errors = process.communicate()
    return process.returncode, errors


def rows(folder: Path) -> str:
    (path,) = folder.glob("results/runs/scrolls/tape/*/rows.csv")
    return path.read_text()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PE_BENCH_CACHE", str(folder / "cache"))
        assert main(command(folder)[3:]) == 0
    return rows(folder)


def test_stopped_in_training_and_between_subsets(tmp_path: Path, uninterrupted: str) -> None:
    in_pretraining = "cache/checkpoints/*/resume.safetensors"
    in_fine_tuning = "results/runs/scrolls/tape/*/work/qasper/resume.safetensors"
    between = "results/runs/scrolls/tape/*/subsets/qasper.csv"
    code, errors = stop_when(tmp_path, in_pretraining, signal.SIGINT)
    assert code == 130 and "the same command continues from here" in errors
    assert "Traceback" not in errors
    for pattern in (in_fine_tuning, between):
        assert stop_when(tmp_path, pattern, signal.SIGKILL)[0] == -signal.SIGKILL
    trained_before = {
        p: p.stat().st_mtime_ns for p in tmp_path.glob("cache/checkpoints/*/final.safetensors")
    }
    process = start(tmp_path)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "perplexity · train" not in errors  # the shared checkpoint was there
    assert "qasper · train" not in errors
    assert rows(tmp_path) == uninterrupted
    assert all(path.stat().st_mtime_ns == when for path, when in trained_before.items())
