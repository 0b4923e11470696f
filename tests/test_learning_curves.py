"""Learning curves: recording, storage and reading."""

import importlib.util
import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
from helpers import train_model
from made_runs import SCORE, put
from test_adaptation import run as run  # a fixture
from test_runner import TASK, Toy, record
from test_runner import toy as toy  # a fixture
from test_training import CONFIG, batch, make_model

import pe_bench
from pe_bench.cli import main
from pe_bench.config import TrainConfig
from pe_bench.errors import InputError
from pe_bench.results.layout import CURVES
from pe_bench.results.learning_curves import LearningCurve
from pe_bench.results.store import read_records
from pe_bench.runs.options import RunOptions
from pe_bench.system.sealed import DamagedError, read_sealed
from pe_bench.task import Batch
from pe_bench.train.loggers import LoggerName, open_logger
from pe_bench.train.optimizer import scale
from pe_bench.train.training_log import TrainingLog

COLUMNS = ["encoding", "task", "seed", "settings", "phase", "subset", "step", "loss", "lr",
           "grad_norm", "tokens_per_second"]  # fmt: skip


def test_a_point_summarizes_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(0.0, 0.5)  # half a second a step
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    log = TrainingLog(450)
    for step in range(450):
        log.begin(step)
        if step == 100:
            assert log.state_dict(100)["tokens"] == 1000  # reading the clock takes half a second
        norm = torch.tensor(float(step))
        log.record(step, 2 * norm, norm, tokens=10)
    curve = log.curve(450, lambda step: 0.1 * step)
    assert curve.step == tuple(range(3, 451, 3))
    assert curve.grad_norm == tuple(1.0 + 3 * n for n in range(150))
    assert curve.loss == tuple(2 * norm for norm in curve.grad_norm)
    assert curve.lr[-1] == pytest.approx(44.9)  # rate of the last step
    assert curve.tokens_per_second[1] == 30 / 0.5  # the clock is read at marks only
    assert LearningCurve.from_json(curve.to_json()) == curve


def test_a_training_that_ends_early_has_a_last_point() -> None:
    log = TrainingLog(450)
    for step in range(7):
        log.begin(step)
        log.record(step, torch.tensor(float(step)), torch.tensor(1.0), tokens=10)
    assert log.curve(7, float).step == (3, 6, 7)
    assert log.curve(7, float).loss == (1.0, 4.0, 6.0)
    assert not TrainingLog(0).curve(0, float)


@pytest.mark.parametrize("clip", [0.0, 1e-3])
def test_norms_are_those_before_clipping(tmp_path: Path, clip: float) -> None:
    config = TrainConfig(steps=2, batch_size=4, length=8, lr=1e-2, clip=clip)
    curve = train_model(make_model(), batch, config, tmp_path).curve
    model = make_model()
    tokens, targets = batch(0)
    where = (targets != -100).flatten().nonzero().flatten()
    (model.token_losses(tokens, targets, scored=where).sum() / len(where)).backward()
    squares = [p.grad.square().sum() for p in model.parameters() if p.grad is not None]
    assert curve.grad_norm[0] == pytest.approx(float(sum(squares) ** 0.5), rel=1e-5)
    assert curve.lr == tuple(config.lr * scale(step, config) for step in range(2))


@pytest.mark.slow
def test_a_curve_survives_a_kill_and_is_found_later(tmp_path: Path) -> None:
    whole = train_model(make_model(), batch, CONFIG, tmp_path / "whole")

    def until_stopped(step: int) -> Batch:
        if step == 7:
            raise RuntimeError("power cut")
        return batch(step)

    with pytest.raises(RuntimeError, match="power cut"):
        train_model(make_model(), until_stopped, CONFIG, tmp_path / "parts")
    resumed = train_model(make_model(), batch, CONFIG, tmp_path / "parts")
    again = train_model(make_model(), until_stopped, CONFIG, tmp_path / "parts")
    assert again.curve == resumed.curve
    assert whole.curve.step == tuple(range(1, 13))
    assert all(speed > 0 for speed in resumed.curve.tokens_per_second)
    for name in ("step", "loss", "lr", "grad_norm"):
        column = getattr(resumed.curve, name)
        assert column == pytest.approx(getattr(whole.curve, name), rel=1e-6)
    assert whole.curve.loss[-1] == pytest.approx(whole.loss)  # a tenth of 12 steps: the last


@pytest.mark.slow
def test_a_run_keeps_its_curve_also_where_its_model_was_there(toy: Toy, tmp_path: Path) -> None:
    assert toy(fail="b") == (1, ["batch", "batch", "a", "b"])
    assert toy() == (0, ["b"])  # nothing is trained
    _, folder = record(tmp_path)
    frame = pe_bench.read_curves("results")
    assert list(frame.columns) == COLUMNS
    assert frame["phase"].eq("task").all() and frame["subset"].eq("").all()  # one for both subsets
    assert frame["step"].tolist() == [1, 2] and frame["loss"].notna().all()
    read_sealed(folder / "run.json", owner="/".join(folder.parts[-3:]))
    (folder / CURVES).write_bytes(b"else")
    with pytest.raises(DamagedError, match=f"{CURVES} has changed since it was written"):
        read_sealed(folder / "run.json", owner="/".join(folder.parts[-3:]))


@pytest.mark.slow
def test_curves_go_into_exports_and_come_back(toy: Toy, tmp_path: Path) -> None:
    toy("--seeds", "0", "1", encodings=["nope", "rope"])
    frame = pe_bench.read_curves("results")
    assert len(frame) == 2 * 2 * 2
    assert main(["export", "sent"]) == 0
    assert main(["merge", "sent", "--results", "there"]) == 0
    sent, there = pe_bench.read_curves("sent"), pe_bench.read_curves("there")
    order = ["encoding", "seed", "step"]
    expected = frame.sort_values(order).reset_index(drop=True)
    for found in (sent, there):
        again = found.sort_values(order).reset_index(drop=True)
        pd.testing.assert_frame_equal(again, expected, rtol=2**-12)
    for one in read_records(Path("there")):
        assert one.status == "done" and one.folder is not None  # the seal is intact
        assert (one.folder / CURVES).exists()
    assert main(["export", "once-more", "--results", "there"]) == 0
    assert (Path("once-more") / CURVES).read_bytes() == (Path("sent") / CURVES).read_bytes()


def test_a_phase_before_has_its_curve_too(run: Callable[..., pd.DataFrame], tmp_path: Path) -> None:
    run("nope", origin="rope", adapt={"steps": 2})
    frame = pe_bench.read_curves(tmp_path / "results")
    assert frame["phase"].tolist() == ["start"] * 3 + ["task"] * 2
    assert frame["step"].tolist() == [1, 2, 3, 1, 2]


@pytest.mark.slow
def test_each_subset_that_is_trained_by_itself_has_its_curve(toy: Toy, tmp_path: Path) -> None:
    each = "    trains_each_subset = True\n    headline"
    (tmp_path / "toy.py").write_text(TASK.replace("    headline", each, 1))
    toy()
    assert pe_bench.read_curves("results")["subset"].tolist() == ["a", "a", "b", "b"]


def test_results_of_earlier_versions_have_no_curves(tmp_path: Path) -> None:
    put(tmp_path, "rope", [SCORE])
    frame = pe_bench.read_curves(tmp_path)
    assert frame.empty and list(frame.columns) == COLUMNS
    assert main(["export", str(tmp_path / "sent"), "--results", str(tmp_path)]) == 0
    assert not (tmp_path / "sent" / CURVES).exists()
    assert pe_bench.read_curves(tmp_path / "sent").empty


def read_logs(folder: Path) -> list[pd.DataFrame]:
    """Return the CSV log of each training, in the order of file names."""
    return [pd.read_csv(path) for path in sorted(folder.rglob("metrics.csv"))]


@pytest.mark.slow
def test_a_logger_gets_the_points_of_the_curve(toy: Toy, tmp_path: Path) -> None:
    assert toy("--seeds", "0", "1", "--logger", "csv")[0] == 0
    curves = pe_bench.read_curves("results")
    logs = read_logs(tmp_path / "results/logs/toy.py/nope")
    assert len(logs) == 2
    for seed, logged in enumerate(logs):
        curve = curves[curves["seed"] == seed]
        for name in ("step", "loss", "lr", "grad_norm", "tokens_per_second"):
            assert logged[name].tolist() == pytest.approx(curve[name].tolist(), rel=1e-6)
    assert toy("--seeds", "0", "1", "--logger", "csv") == (0, [])  # nothing is trained
    assert len(read_logs(tmp_path / "results/logs")) == 2


@pytest.mark.slow
def test_a_logger_changes_no_run(toy: Toy, tmp_path: Path) -> None:
    toy("--logger", "csv", "--results", "logged")
    toy("--results", "plain")
    names = [
        {path.name for path in Path(place).glob("runs/*/*/*")} for place in ("logged", "plain")
    ]
    assert names[0] == names[1]


@pytest.mark.slow
def test_a_training_that_goes_on_is_logged_from_its_first_step(tmp_path: Path) -> None:
    def until_stopped(step: int) -> Batch:
        if step == 7:
            raise RuntimeError("power cut")
        return batch(step)

    logged = partial(open_logger, "csv", tmp_path / "logs", "rope")
    with pytest.raises(RuntimeError, match="power cut"):
        train_model(make_model(), until_stopped, CONFIG, tmp_path / "parts", logged=logged)
    curve = train_model(make_model(), batch, CONFIG, tmp_path / "parts", logged=logged).curve
    first, second = read_logs(tmp_path / "logs")
    assert first["step"].tolist() == list(range(1, 8))
    assert tuple(second["step"]) == curve.step
    assert second["loss"].tolist() == pytest.approx(list(curve.loss))


def test_a_log_is_on_disk_after_every_step(tmp_path: Path) -> None:
    with open_logger("csv", tmp_path, "rope") as logger:
        assert logger is not None
        logger.log_metrics({"loss": 0.5}, step=1)
        (log,) = read_logs(tmp_path)
        assert log["loss"].tolist() == [0.5]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_logger_without_its_package_is_refused(
    name: LoggerName, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=f"needs a package: run pip install {name}"):
        RunOptions(logger=name)
    assert toy("--logger", name) == (2, [])
