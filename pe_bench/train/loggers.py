"""Lightning loggers, which show a learning curve during training."""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from pe_bench.errors import InputError
from pe_bench.results.learning_curves import LearningCurve

if TYPE_CHECKING:  # reading options must not import Lightning
    from lightning.fabric.loggers.logger import Logger

LoggerName = Literal["csv", "tensorboard", "wandb", "mlflow"]

FOLDER = "logs"  # subfolder of a results folder
PROJECT = "pe-bench"  # name of the project (Weights & Biases) or experiment (MLflow)


def check_logger(name: LoggerName) -> None:
    """Check that a logger exists and that its package is installed.

    Raises:
        InputError: the logger is unknown or its package is missing.
    """
    if name not in get_args(LoggerName):
        known = ", ".join(get_args(LoggerName))
        raise InputError(f"there is no logger '{name}': use one of {known}")
    if name != "csv" and importlib.util.find_spec(name) is None:
        raise InputError(f"--logger {name} needs a package: run pip install {name}")


@contextmanager
def open_logger(name: LoggerName | None, folder: Path, title: str) -> "Iterator[Logger | None]":
    """Open a logger for one training, and close it at the end.

    Args:
        name: name of the logger; None: no logger.
        folder: folder for the logger's files.
        title: title of the training; slashes make groups.
    """
    if name is None:
        yield None
        return
    logger = _make_logger(name, folder, title)
    status = "failed"
    try:
        yield logger
        status = "success"
    finally:
        logger.finalize(status)
        if name == "wandb":  # otherwise the next training would continue this log
            logger.experiment.finish()  # type: ignore[attr-defined]


def _make_logger(name: LoggerName, folder: Path, title: str) -> "Logger":
    # Import loggers late, because `lightning.pytorch` takes seconds.
    if name == "csv":
        from lightning.fabric.loggers.csv_logs import CSVLogger

        return CSVLogger(folder, title, flush_logs_every_n_steps=1)
    if name == "tensorboard":
        from lightning.fabric.loggers.tensorboard import TensorBoardLogger

        return TensorBoardLogger(folder, title)
    folder.mkdir(parents=True, exist_ok=True)
    if name == "wandb":
        from lightning.pytorch.loggers import WandbLogger

        return WandbLogger(title, folder, project=PROJECT)
    from lightning.pytorch.loggers import MLFlowLogger

    address = os.environ.get("MLFLOW_TRACKING_URI")
    return MLFlowLogger(PROJECT, title, address, save_dir=str(folder / "mlruns"))


def log_curve(logger: "Logger", curve: LearningCurve) -> None:
    """Send the points of a curve to a logger, under the names of `LearningCurve`."""
    for index, step in enumerate(curve.step):
        values = {
            "loss": curve.loss[index],
            "lr": curve.lr[index],
            "grad_norm": curve.grad_norm[index],
            "tokens_per_second": curve.tokens_per_second[index],
        }
        logger.log_metrics(values, step)
