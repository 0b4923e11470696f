"""The options of a command, common to all of its runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from pe_bench.config import AdaptConfig, ModelConfig, TrainConfig
from pe_bench.errors import InputError, suggest
from pe_bench.runs.tuning import Tuning
from pe_bench.system.files import cache_folder


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `pe-bench run` that apply to every run of a grid, with its defaults.

    Attributes:
        preset: "quick", "small", "mid" or "paper".
        protocol: "strict" or "paper".
        tokenizer: spec of the tokenizer, for tasks on text; None: the preset's.
        precision: "fp32" or "bf16".
        data: folder by name of a task; the key "" stands for every task that is named in the
            command.
        subsets: subsets to run, None for all.
        train: changed fields of the preset's `TrainConfig`.
        pretrain: the same for the task that another one starts from.
        model: changed fields of the preset's `ModelConfig`.
        origin: spec of the encoding whose trained models others go on from, or None.
        adapt: changed fields of the task's `AdaptConfig`.
        tune: how learning rates are chosen for each encoding; None: they are the preset's.
        keep: trained models are left in the folders of their runs.
        cache: folder for downloads, tokenizers and checkpoints.

    Raises:
        InputError: a field that does not exist, or another precision.
    """

    preset: str = "quick"
    protocol: str = "strict"
    tokenizer: str | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    data: Mapping[str, Path] = field(default_factory=dict)
    subsets: tuple[str, ...] | None = None
    train: Mapping[str, Any] = field(default_factory=dict)
    pretrain: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    origin: str | None = None
    adapt: Mapping[str, Any] = field(default_factory=dict)
    tune: Tuning | None = None
    keep: bool = False
    cache: Path = field(default_factory=cache_folder)

    def __post_init__(self) -> None:
        _check_fields("train", self.train, TrainConfig)
        _check_fields("pretrain", self.pretrain, TrainConfig)
        _check_fields("model", self.model, ModelConfig)
        _check_fields("adapt", self.adapt, AdaptConfig)
        if self.adapt and self.origin is None:
            raise InputError(
                f"adapt.{next(iter(self.adapt))} has no effect without --from: there is no model "
                "to go on from"
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
        if self.tune and self.tune.lr and "lr" in self.train:
            raise InputError("train.lr has no effect beside tune.lr: leave one of them out")
        if self.precision not in ("fp32", "bf16"):
            raise InputError(f"precision must be fp32 or bf16, not '{self.precision}'")


def _check_fields(name: str, changes: Mapping[str, Any], config: type[Any]) -> None:
    known = [field.name for field in fields(config) if "help" in field.metadata]
    for wrong in changes.keys() - set(known):
        raise InputError(
            f"{name} has no '{wrong}'{suggest(wrong, known)}; it has {', '.join(known)}"
        )
