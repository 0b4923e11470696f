"""A grid that is killed at random moments, or whose files are damaged, ends with the same numbers.

`PE_BENCH_KILLS=30 pytest tests/test_kills.py -s` kills 30 times, prints where, and damages 60
files. With `PE_BENCH_JOBS=2` the killed grids execute two runs in parallel.
"""

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from grid_process import BOTH, prepare, start

from pe_bench.results.item_files import read_items

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("PE_BENCH_KILLS", "3"))
GRID = ("--encoding", "nope", "tape", *BOTH)
WORK = "results/runs/*/*/*/work"
JOBS = ("--jobs", os.environ["PE_BENCH_JOBS"]) if "PE_BENCH_JOBS" in os.environ else ()


def numbers(folder: Path) -> dict[str, Any]:
    """Return all numbers of a grid: rows, items, losses, and its leaderboard if it has one."""
    found: dict[str, Any] = {
        path.name: path.read_bytes() for path in folder.glob("results/leaderboard.csv")
    }
    for path in sorted((folder / "results/runs").glob("*/*/*/run.json")):
        record = json.loads(path.read_text())
        assert record["status"] == "done"
        losses = [cost["training"]["loss"] for cost in record["costs"].values()]
        items = read_items(path.parent / "items.parquet")
        rows = (path.parent / "rows.csv").read_bytes()
        found[path.parent.parent.name] = (rows, items, losses, record["pretraining"]["loss"])
    assert found
    return found


def where(folder: Path) -> str:
    """Return a description of the grid's current work, from its files."""
    records = [json.loads(path.read_text()) for path in folder.glob("results/runs/*/*/*/run.json")]
    if sum(record["status"] == "done" for record in records) == 2:
        return "report"
    for name in BOTH[1:]:  # not /*/, because a folder may vanish while it is listed
        for model in folder.glob(f"{WORK}/{name}/final.safetensors"):
            if not (model.parents[2] / "subsets" / f"{name}.json").exists():
                return "generation"
    if any(list(folder.glob(f"{WORK}/{name}/resume.safetensors")) for name in BOTH[1:]):
        return "fine-tuning"
    if list(folder.glob("cache/checkpoints/*/resume.safetensors")):
        return "pre-training"
    return "between"


def test_kills_at_random_moments_change_no_number(tmp_path: Path) -> None:
    whole = prepare(tmp_path / "whole")
    process = start(whole, *GRID)
    started = time.monotonic()
    process.join(600)
    assert process.exitcode == 0, (whole / "log").read_text()[-3000:]
    expected, duration = numbers(whole), time.monotonic() - started
    assert sorted(expected) == ["leaderboard.csv", "nope", "tape"]
    moments = random.Random(2)  # with 0, the first kills all strike the report
    struck: Counter[str] = Counter()
    grids = 0
    while struck.total() < KILLS or not grids:
        folder = prepare(tmp_path / f"killed{grids}")
        while True:
            process = start(folder, *GRID, *JOBS)
            if struck.total() == KILLS:
                process.join(600)
            elif moments.random() < 0.5:
                process.join(moments.uniform(0, 0.5) * duration)
            else:  # otherwise short phases would rarely be interrupted
                stage = moments.choice(["generation", "report"])
                while process.is_alive() and where(folder) != stage:
                    time.sleep(0.005)
                process.join(moments.uniform(0, 0.5))
            if process.exitcode is not None:
                break
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            struck[where(folder)] += 1
        assert process.exitcode == 0, (folder / "log").read_text()[-3000:]
        assert numbers(folder) == expected
        assert not list(folder.glob("results/**/*.damaged*"))
        grids += 1
    print(
        f"{struck.total()} kills in {grids} grids of {duration:.1f} s, at {dict(struck)}: no change"
    )


def test_any_file_may_be_cut_or_filled_with_garbage(tmp_path: Path) -> None:
    options = ("--encoding", "nope", *BOTH, "--no-report")
    begun, whole = prepare(tmp_path / "begun", 8), tmp_path / "whole"
    process = start(begun, *options)
    while process.is_alive() and not list(begun.glob(f"{WORK}/quality/resume.safetensors")):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    shutil.copytree(begun, whole)
    finish(whole, *options)
    expected = numbers(whole)
    files = [*(begun / "results").rglob("*"), *(begun / "cache").rglob("*")]
    filled = sorted(path for path in files if path.is_file() and path.stat().st_size)
    cases = [(path, cut) for path in filled for cut in (True, False)]
    for path, cut in random.Random(0).sample(cases, min(2 * KILLS, len(cases))):
        content = path.read_bytes()
        folder = tmp_path / "damaged"
        shutil.copytree(begun, folder)
        damaged = content[: len(content) // 2] if cut else b"\x80garbage" * 99
        (folder / path.relative_to(begun)).write_bytes(damaged)
        finish(folder, *options)
        assert numbers(folder) == expected, path
        shutil.rmtree(folder)
    print(f"{min(2 * KILLS, len(cases))} of {len(cases)} damaged files: no change")


def finish(folder: Path, *options: str) -> None:
    process = start(folder, *options)
    process.join(600)
    assert process.exitcode == 0, (folder / "log").read_text()[-3000:]
