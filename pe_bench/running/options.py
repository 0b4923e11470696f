"""The options of a command, common to all of its runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pe_bench.system.files import cache_folder


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `pe-bench run` that apply to every run of a grid, with its defaults.

    Attributes:
        preset: "quick", "small" or "paper".
        protocol: "strict" or "paper".
        tokenizer: spec of the tokenizer, for tasks on text.
        precision: "fp32" or "bf16".
        data: folder by name of a task; the key "" stands for every task that is named in the
            command.
        subsets: subsets to run, None for all.
        train: changed fields of the preset's `TrainConfig`.
        pretrain: the same for the task that another one starts from.
        model: changed fields of the preset's `ModelConfig`.
        cache: folder for downloads, tokenizers and checkpoints.
    """

    preset: str = "quick"
    protocol: str = "strict"
    tokenizer: str = "bytes"
    precision: Literal["fp32", "bf16"] = "fp32"
    data: Mapping[str, Path] = field(default_factory=dict)
    subsets: tuple[str, ...] | None = None
    train: Mapping[str, Any] = field(default_factory=dict)
    pretrain: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    cache: Path = field(default_factory=cache_folder)
