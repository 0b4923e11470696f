"""Runs on a real Ray cluster on this machine; one of its workers is killed."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_grid import rows
from test_runner import Toy
from test_runner import toy as toy  # a fixture

DIES = """
import os
from pathlib import Path
from pe_bench.api import Encoding

class Dies(Encoding):
    def embed(self, x, positions):
        log = Path(os.environ["TOY_LOG"])
        if "died" not in log.read_text() or ALWAYS:
            log.write_text(log.read_text() + "died\\n")
            os.kill(os.getpid(), 9)
        return x
"""


@pytest.fixture
def cluster(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start a Ray cluster with two cores, whose workers have the environment of the test."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'pe-bench[ray]'")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_cell_whose_worker_is_killed_is_tried_again(
    cluster: Any,
    toy: Toy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("pe_bench.grid.executors.cluster.RETRIES", 1)
    (tmp_path / "once.py").write_text(DIES.replace("ALWAYS", "False"))
    (tmp_path / "always.py").write_text(DIES.replace("ALWAYS", "True"))
    command = ("--executor", "ray", "--results", "cluster")
    code, log = toy(*command, encodings=("./once.py", "nope"))
    assert code == 0
    assert (log.count("died"), log.count("a"), log.count("b")) == (1, 2, 2)
    assert capsys.readouterr().out.count("once.py · toy.py · seed 0: done in") == 1
    assert toy(*command, encodings=("./always.py", "nope"))[0] == 1
    assert "its worker on the Ray cluster has died 2 times" in capsys.readouterr().err
    runs = tmp_path / "cluster/runs/toy.py"
    status = {p.parts[-3]: json.loads(p.read_text())["status"] for p in runs.glob("*/*/run.json")}
    assert status == {"once.py": "done", "always.py": "failed", "nope": "done"}
    assert toy("--results", "here")[0] == 0
    here = rows(tmp_path / "here")
    there = rows(tmp_path / "cluster")
    assert here.items() <= there.items() and here


def test_without_ray_or_a_cluster_there_is_a_sentence(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert toy("--executor", "ray") == (2, [])
    assert "needs Ray: run pip install 'pe-bench[ray]'" in capsys.readouterr().err
    assert toy("--executor", "ray", "--jobs", "2") == (2, [])
    assert "--jobs has no effect with --executor ray" in capsys.readouterr().err
