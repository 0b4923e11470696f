"""Several processes train a run as one process does, and end together."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from test_grid import rows
from test_runner import TASK, Toy, record
from test_runner import toy as toy  # a fixture

import pe_bench
from pe_bench.config import IGNORE
from pe_bench.errors import InputError
from pe_bench.grid.execution import ExecutionOptions
from pe_bench.grid.grid import run_grid
from pe_bench.grid.spec import GridSpec
from pe_bench.results.row_files import read_measurements
from pe_bench.runs.options import RunOptions
from pe_bench.train import sharding
from pe_bench.train.process_group import ProcessGroup

BATCH = '''
    def batch(self, subset, seed, step):
        """Three rows; the first ones have few targets."""
        if str(step) == os.environ.get("TOY_STOP"):
            raise ZeroDivisionError("stopped on purpose")
        generator = torch.Generator().manual_seed((97 * seed + step) % 2**31)
        tokens = torch.randint(9, (3, 9), generator=generator)
        targets = tokens[:, 1:].clone()
        targets[0, 1:] = -100
        targets[1, :3] = -100
        return Batch(tokens[:, :-1], targets)

    def evaluate('''
DIES = """
import os
import torch.distributed as dist
from pe_bench.api import Encoding

class Dies(Encoding):
    def embed(self, x, positions):
        if dist.is_initialized() and dist.get_rank() == RANK:
            os.kill(os.getpid(), 9)
        return x
"""
RANDOM = "rope:train_positions=random,max_train_position=40"
DIVERGES = ("--tune", "--tune.lr", "1e-3", "1e30", "--tune.seeds", "1000")
SLICES = ("--train.micro_batch", "2", "--train.steps", "8", "--train.save_every", "0")


@pytest.fixture
def uneven(toy: Toy, tmp_path: Path) -> Toy:
    """Run a task whose rows cannot be divided evenly."""
    (tmp_path / "toy.py").write_text(TASK.replace("\n    def evaluate(", BATCH))
    return toy


def loss(path: Path) -> float:
    """Return the training loss of the run in a results folder."""
    (file,) = path.glob("runs/*/*/*/run.json")
    found: float = json.loads(file.read_text())["costs"]["a"]["training"]["loss"]
    return found


def same_numbers(one: Path, other: Path) -> bool:
    """Return whether all rows of two results folders are equal up to rounding."""
    assert list(rows(one)) == list(rows(other)) and rows(one)
    pairs = [(read_measurements(one / name), read_measurements(other / name)) for name in rows(one)]
    return all(
        a.value == pytest.approx(b.value, rel=1e-4)
        for first, second in pairs
        for a, b in zip(first, second, strict=True)
    )


def environment_of(path: Path) -> dict[str, Any]:
    """Return the entries of a run's record about the training processes."""
    (file,) = path.glob("runs/*/*/*/run.json")
    found = json.loads(file.read_text())["environment"]
    return {name: found[name] for name in ("devices", "strategy")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "encoding", "tune"),
    [("ddp", RANDOM.replace("rope", "fire"), DIVERGES), ("fsdp", RANDOM, ())],
)
def test_two_processes_train_as_one_does(
    uneven: Toy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    strategy: str,
    encoding: str,
    tune: tuple[str, ...],
) -> None:
    """Ids are drawn for each slice, and the second process has no row of the last slice.

    A rate that makes the model diverge ends one phase, and the processes that trained it.
    """
    one, two = tmp_path / "one", tmp_path / "two"
    command = (*SLICES, *tune)
    assert uneven(*command, "--results", "one", encodings=(encoding,))[0] == 0
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path / "cache2"))
    capsys.readouterr()
    more = ("--results", "two", "--devices", "2", "--strategy", strategy)
    assert uneven(*command, *more, encodings=(encoding,))[0] == 0
    out, err = capsys.readouterr()
    assert "Warning" not in out + err and "toy.py · train: 8/8 steps" in err
    assert loss(two) == pytest.approx(loss(one), rel=1e-5)
    assert same_numbers(one, two)
    measured = ["loss", "grad_norm"]
    curves = [pe_bench.read_curves(folder)[measured] for folder in (one, two)]
    pd.testing.assert_frame_equal(curves[0], curves[1], rtol=1e-4)
    assert len(curves[0]) == 8
    assert environment_of(one) == {"devices": 1, "strategy": None}
    assert environment_of(two) == {"devices": 2, "strategy": strategy}


@pytest.mark.slow
def test_a_run_goes_on_with_other_processes(
    uneven: Toy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert uneven(*SLICES, "--results", "whole")[0] == 0
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path / "cache2"))
    together = ("--devices", "2", "--strategy", "fsdp")
    for stop, more, begins in (("3", together, 0), ("5", (), 3), ("", together, 5)):
        monkeypatch.setenv("TOY_STOP", stop)
        capsys.readouterr()
        code, _ = uneven(*SLICES, "--results", "parts", *more)
        out = capsys.readouterr().out
        assert code == (1 if stop else 0)
        assert f"resumes from step {begins} of 8" in out or not begins
        if stop:
            reason = json.loads(next(tmp_path.glob("parts/**/run.json")).read_text())["reason"]
            assert reason.startswith("ZeroDivisionError: stopped on purpose")
    assert loss(tmp_path / "parts") == pytest.approx(loss(tmp_path / "whole"), rel=1e-5)
    assert same_numbers(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_a_process_that_dies_ends_its_cell(
    uneven: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        (tmp_path / f"dies{rank}.py").write_text(DIES.replace("RANK", str(rank)))
    encodings = ("./dies1.py", "./dies0.py", "nope")
    assert uneven("--devices", "2", encodings=encodings)[0] == 1
    assert "3 runs" in capsys.readouterr().out
    for name, process in (("dies1.py", "process 2 of 2"), ("dies0.py", "its process")):
        run, _ = record(tmp_path, name)
        assert run["status"] == "failed"
        assert run["reason"].startswith(f"ProcessDied: {process} was killed by SIGKILL")
    assert record(tmp_path)[0]["status"] == "done"


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_process_gets_whole_weights(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shard:
        def full_tensor(self) -> torch.Tensor:
            return torch.arange(4)

    monkeypatch.setattr(sharding, "DTensor", Shard)
    tree = {"weight": Shard(), "moments": [Shard(), {"step": 3}]}
    found = sharding.gather_tree(tree, ProcessGroup(rank, 2, "fsdp"))
    whole = [0, 1, 2, 3] if rank == 0 else None
    for tensor in (found["weight"], found["moments"][0]):
        assert (tensor if tensor is None else tensor.tolist()) == whole
    assert found["moments"][1] == {"step": 3}


def test_rows_are_shared_out() -> None:
    tokens = torch.arange(10).view(5, 2)
    shares = [ProcessGroup(rank, 2).shard_rows(tokens, tokens) for rank in range(2)]
    assert [len(own) for own, _ in shares] == [3, 2]
    assert torch.cat([targets for _, targets in shares]).equal(tokens)
    own, targets = ProcessGroup(2, 3).shard_rows(tokens[:2], tokens[:2])
    assert own.shape == targets.shape == (1, 2) and (targets == IGNORE).all()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"devices": 0}, "devices must be at least 1, not 0"),
        ({"strategy": "ddp"}, "--strategy ddp has no effect without --devices 2 or more"),
        ({"devices": 2, "strategy": "dp"}, "strategy must be one of auto, ddp, fsdp, not 'dp'"),
        ({"devices": 2, "jobs": 2}, "--devices 2 is for one run at a time, and --jobs 2 for"),
        ({"devices": 2, "executor": "ray"}, "--devices 2 is for one machine, and --executor ray"),
    ],
)
def test_what_does_not_go_together_is_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ExecutionOptions(**how)


@pytest.mark.parametrize(
    ("device", "strategy", "shards"),
    [("cuda", "fsdp", 3), ("cuda", "auto", 1), ("cuda", "ddp", 1), ("cpu", "fsdp", 1)],
)
def test_weights_are_sharded_over_gpus(device: str, strategy: Any, shards: int) -> None:
    execution = ExecutionOptions(devices=3, strategy=strategy)
    options = RunOptions()
    spec = GridSpec(options=options, encodings=[], tasks=[], device=device, execution=execution)
    assert spec.weight_shards == shards


def test_more_gpus_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="--devices 2 needs 2 GPUs, but torch finds 1"):
        run_grid(
            GridSpec(
                options=RunOptions(),
                encodings=["nope"],
                tasks=["mqar"],
                device="cuda",
                execution=ExecutionOptions(devices=2),
            )
        )


@pytest.mark.slow
def test_single_numbers_cannot_be_shared_out(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert toy("--devices", "2", "--strategy", "fsdp", encodings=("fire",)) == (2, [])
    assert "fire has weights that are single numbers" in capsys.readouterr().err
