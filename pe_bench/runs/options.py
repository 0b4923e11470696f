"""The options of a command, common to all of its runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pe_bench.config import AdaptConfig, ModelConfig, TrainConfig
from pe_bench.errors import InputError, suggest
from pe_bench.option_table import check_names, option, options_of
from pe_bench.registry import catalogue
from pe_bench.registry.importing import entry_points
from pe_bench.runs.tuning import Tuning
from pe_bench.system.files import cache_folder
from pe_bench.train.loggers import LoggerName, check_logger


def read_data(words: Sequence[str]) -> dict[str, Path]:
    """Return the data folder of each task from words such as "DIR" and "task=DIR".

    The key of a folder without a task is "".

    Raises:
        InputError: there is no such task, or a task has two folders.
    """
    found: dict[str, Path] = {}
    for word in words:
        task, folder = _read_data_folder(word)
        if task in found:
            raise InputError(
                f"--data has two folders for {task or 'all tasks'}, {found[task]} and {folder}: "
                "give one of them, or write task=DIR"
            )
        found[task] = folder
    return found


def _read_data_folder(word: str) -> tuple[str, Path]:
    task, equals, folder = word.partition("=")
    if not equals or Path(word).exists():
        return "", Path(word)
    known = [*catalogue.names("task"), *entry_points("task")]
    if task not in known and "." not in task and "/" not in task:
        raise InputError(
            f"there is no task '{task}'{suggest(task, known)}; write --data DIR or --data task=DIR "
            f"(for the task in {task}.py: {task}.py=DIR)"
        )
    return Path(task).name, Path(folder)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `pe-bench run` that apply to every run of a grid, with its defaults.

    `data` maps the name of a task to a folder; the key "" stands for every task of the command.
    `train`, `pretrain`, `model` and `adapt` map fields of a preset's config to changed values.

    Attributes:
        precision: "fp32" or "bf16".
        cache: folder for downloads, tokenizers and checkpoints.
        for_earlier_phase: whether `train` has the values of `pretrain`, as messages say.

    Raises:
        InputError: a field that does not exist, an unknown precision, or the package of the logger
            is not installed.
    """

    preset: str = option(
        "quick",
        "quick (two CPU cores, minutes, no download; default), small, mid (one GPU), paper",
    )
    protocol: str = option("strict", "strict (default) or paper (as published)")
    data: Mapping[str, Path] = option(
        dict,
        "folder with data for the given tasks, or task=DIR",
        metavar="DIR",
        read=read_data,
    )
    subsets: tuple[str, ...] | None = option(
        None, "run only these parts of the task; others can be added later", metavar="NAME"
    )
    tokenizer: str | None = option(
        None, "bytes, bpe:8192, or a tokenizer.json; default: the preset's"
    )
    origin: str | None = option(
        None,
        "encoding or checkpoint whose trained model the other encodings start from, see --adapt.*",
        flag="from",
        metavar="SPEC",
    )
    keep: bool = option(
        False, "keep trained models in the folders of their runs, see pe-bench checkpoint"
    )
    logger: LoggerName | None = option(
        None,
        "also write learning curves to DIR/logs of --results (csv, tensorboard), or to the service "
        "of wandb or mlflow",
    )
    tune: Tuning | None = option(
        None,
        "search the learning rate of each encoding, and a constant that it declares, on samples "
        "that neither training nor evaluation uses; a search costs about six trainings",
        config=Tuning,
    )
    train: Mapping[str, Any] = option(dict, "training of the given tasks", config=TrainConfig)
    pretrain: Mapping[str, Any] = option(
        dict, "training of the model that a task starts from", config=TrainConfig
    )
    model: Mapping[str, Any] = option(dict, "shape of the decoder", config=ModelConfig)
    adapt: Mapping[str, Any] = option(
        dict, "training with another encoding, after --from", config=AdaptConfig
    )
    precision: Literal["fp32", "bf16"] = field(
        default="fp32", metadata={"set_by": "the device and the option --precision"}
    )
    cache: Path = field(
        default_factory=cache_folder, metadata={"set_by": "the environment variable PE_BENCH_CACHE"}
    )
    for_earlier_phase: bool = field(
        default=False, metadata={"set_by": "the task that starts from another one"}
    )

    def for_start(self) -> "RunOptions":
        """Return the options for a task that only provides the start of another one.

        `pretrain` takes the place of `train`. Options for the tasks that the command names do not
        apply: protocol, subsets, the learning rates to try, and data without the name of a task.
        """
        return replace(
            self,
            protocol="strict",
            data={task: folder for task, folder in self.data.items() if task},
            subsets=None,
            tune=replace(self.tune, lr=()) if self.tune else None,
            train=self.pretrain,
            for_earlier_phase=True,
        )

    def __post_init__(self) -> None:
        for one in options_of(type(self)):
            if one.is_changes:
                known = [inner.name for inner in one.inner]
                check_names(one.name, getattr(self, one.name), known)
        if self.logger is not None:
            check_logger(self.logger)
        if self.adapt and self.origin is None:
            raise InputError(
                f"adapt.{next(iter(self.adapt))} has no effect without --from: there is no model "
                "to start from"
            )
        idle = [name for name in self.adapt if name != "steps"]
        if idle and not self.adapt.get("steps"):
            raise InputError(f"adapt.{idle[0]} has no effect without --adapt.steps")
        method = self.adapt.get("method", AdaptConfig.method)
        for name in ("rank", "targets"):
            usual = getattr(AdaptConfig, name)
            if "lora" not in method and self.adapt.get(name, usual) != usual:
                raise InputError(
                    f"adapt.{name} has no effect with adapt.method {method}: use lora, "
                    "encoding+lora or longlora"
                )
        factor = self.adapt.get("encoding_lr_factor", 1)
        if method in ("lora", "none") and factor != 1:
            raise InputError(
                f"adapt.encoding_lr_factor has no effect with adapt.method {method}: use full, "
                "encoding, encoding+lora or longlora"
            )
        if self.tune and self.tune.lr and "lr" in self.train:
            raise InputError("train.lr has no effect together with tune.lr: leave one of them out")
        if self.precision not in ("fp32", "bf16"):
            raise InputError(f"precision must be fp32 or bf16, not '{self.precision}'")


@dataclass(frozen=True)
class MovedPaths:
    """Paths of files and folders that a record names; None: the path has not changed.

    `data` maps the name of a task to a folder; the key "" stands for the run's own task.
    """

    encoding: str | None = option(
        None, "file of your own encoding; not needed if it is shipped", metavar="FILE"
    )
    task: str | None = option(None, "path of the task's file, if it has moved", metavar="FILE")
    data: Mapping[str, Path] = option(
        dict, "path of the data, as in run, if they have moved", metavar="DIR", read=read_data
    )
    origin: Path | None = option(
        None, "path of the checkpoint, if it has moved", flag="from", metavar="DIR"
    )
