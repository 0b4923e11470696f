"""Cells on a real Ray cluster of this machine, one of its workers killed on purpose."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_grid import rows
from test_runner import Toy
from test_runner import toy as toy  # a fixture

ONCE = """
import os
from pathlib import Path
from pe_bench.api import Encoding

class Once(Encoding):
    '''Kills its process at the second step, once.'''

    def embed(self, x, positions):
        with Path(os.environ["TOY_LOG"]).open("a") as log:
            log.write("step\\n")
        steps = Path(os.environ["TOY_LOG"]).read_text().count("step")
        if steps == 2:
            os.kill(os.getpid(), 9)
        return x
"""
ALWAYS = ONCE.replace("steps == 2", "True").replace("Once", "Always")


@pytest.fixture
def cluster(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray cluster with two cores, whose workers have the environment of the test."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'pe-bench[ray]'")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_cells_on_a_cluster_and_a_worker_that_is_killed(
    cluster: Any, toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "once.py").write_text(ONCE)
    command = ("--executor", "ray", "--results", "cluster")
    code, log = toy(*command, encodings=("./once.py", "nope"))
    assert code == 0
    assert log.count("a") == log.count("b") == 2  # nothing measured twice
    out = capsys.readouterr().out
    assert out.count("once.py · toy.py · seed 0: done in") == 1
    assert out.count("] once.py · toy.py · seed 0") == 2  # it began again
    assert toy(*command, encodings=("./once.py", "nope")) == (0, [])
    assert toy(encodings=("./once.py", "nope"))[0] == 0  # its own run is never killed again
    assert rows(tmp_path / "cluster") == rows(tmp_path / "results")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cell_whose_workers_always_die_fails_alone(
    cluster: Any, toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "always.py").write_text(ALWAYS)
    assert toy("--executor", "ray", encodings=("./always.py", "nope"))[0] == 1
    assert "its worker on the Ray cluster has died 4 times" in capsys.readouterr().err
    runs = tmp_path / "results/runs/toy.py"
    status = {p.parts[-3]: json.loads(p.read_text())["status"] for p in runs.glob("*/*/run.json")}
    assert status == {"always.py": "failed", "nope": "done"}


def test_without_ray_or_a_cluster_there_is_a_sentence(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    assert toy("--executor", "ray") == (2, [])
    assert "needs Ray: run pip install 'pe-bench[ray]'" in capsys.readouterr().err
    assert toy("--executor", "ray", "--jobs", "2") == (2, [])
    assert "--jobs has no effect with --executor ray" in capsys.readouterr().err
