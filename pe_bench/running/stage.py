"""Resolving what the user asked for: a task with its preset, overrides and starting point.

A stage knows everything that decides a number except the encoding and the seed. Its settings are
what a table may not mix, and their digest names the runs.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pe_bench import __version__
from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.registry.plugins import Plugin
from pe_bench.task import Setup, Task


@dataclass(frozen=True)
class Request:
    """What the command line asks for, common to all cells of the grid.

    Attributes:
        data: folder per task name; the key "" stands for every task named on the command line.
        train, pretrain, model: overrides of the preset's fields; `pretrain` is for the task that
            another one starts from.
        subsets: parts to run, None for all.
    """

    preset: str
    protocol: str
    tokenizer: str
    precision: str
    cache: Path
    data: Mapping[str, Path]
    train: Mapping[str, Any]
    pretrain: Mapping[str, Any]
    model: Mapping[str, Any]
    subsets: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Stage:
    """A task, ready to be trained and evaluated with any encoding.

    Attributes:
        label: the task's canonical spec.
        task: the task itself, data opened.
        model: shape of the decoder.
        train: its training phase.
        settings: everything that decides its numbers except encoding and seed.
        start: the stage whose trained model this one starts from, or None.
    """

    label: str
    task: Task
    model: ModelConfig
    train: TrainConfig
    settings: Mapping[str, Any]
    start: "Stage | None"

    def make_encoding(self, encoding: Plugin, layer: int = 0) -> Encoding:
        """An instance of an encoding for this stage's model."""
        made: Encoding = encoding.make(self.model, layer)
        return made

    def make_model(self, encoding: Plugin, seed: int) -> Decoder:
        """An untrained decoder; its weights outside the encoding depend on the seed alone."""
        import torch

        torch.manual_seed(seed)
        return Decoder(self.model, encoding.make)

    def digest(self, *more: Any) -> str:
        """Eight characters that stand for the settings and whatever else is given."""
        return digest(self.settings, *more)


def digest(*parts: Any) -> str:
    """Eight hexadecimal characters of the SHA-256 of JSON."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def resolve(request: Request, spec: str, *, asked: bool = True) -> Stage:
    """Builds the stage of a task and of what it starts from.

    Args:
        request: the command line.
        spec: the task, with options.
        asked: named by the user, as opposed to being the start of one that is.

    Raises:
        InputError: anything the user can mend.
    """
    plugin = plugins.load("task", spec, request.preset)
    cls: type[Task] = plugin.cls
    if request.preset not in cls.presets:
        raise InputError(
            f"{plugin.label} has no preset '{request.preset}'; it has {', '.join(cls.presets)}"
        )
    if asked and request.protocol not in cls.protocols:
        raise InputError(
            f"{plugin.label} has no protocol '{request.protocol}'; it has "
            f"{', '.join(cls.protocols)}"
        )
    preset = cls.presets[request.preset]
    start = resolve(request, cls.starts_from, asked=False) if cls.starts_from else None
    try:
        train = replace(preset.train, **(request.train if asked else request.pretrain))
    except InputError as error:
        raise InputError(str(error) if asked else f"pre{error}") from None
    name = plugin.label.partition(":")[0]
    data = request.data.get(name, request.data.get("") if asked else None)
    setup = Setup(
        preset=request.preset,
        protocol=request.protocol if asked else "strict",
        train=train,
        data=data,
        tokenizer=request.tokenizer,
        cache=request.cache,
        subsets=request.subsets if asked else None,
    )
    options = {**preset.options, **plugin.options}
    task = cls(setup, start.task if start else None, **options)
    if start:
        model = start.model
    else:
        shape = replace(preset.model or ModelConfig(), **request.model)
        model = replace(
            shape,
            vocab_size=task.vocab_size,
            train_length=task.train_length,
            digit_ids=task.digit_ids,
            separator_ids=task.separator_ids,
        )
    settings = {
        "task": plugin.label,
        "source": plugin.source,
        "options": options,
        "preset": setup.preset,
        "protocol": setup.protocol,
        "data": task.fingerprint,
        "precision": request.precision,
        "model": asdict(model),
        # How often it saves and how it slices a batch changes no number beyond rounding.
        "train": {k: v for k, v in asdict(train).items() if k not in ("save_every", "micro_batch")},
        "start": start.settings if start else None,
        "version": __version__,
    }
    return Stage(plugin.label, task, model, train, settings, start)


def check_used(request: Request, stages: Sequence[Stage]) -> None:
    """Makes sure that nothing on the command line is without effect.

    Raises:
        InputError: something is.
    """
    starts = [stage.start for stage in stages if stage.start]
    if request.pretrain and not starts:
        raise InputError("--pretrain.* has no effect: none of the tasks starts from another one")
    names = dict.fromkeys(stage.label.partition(":")[0] for stage in (*stages, *starts))
    for name in request.data:
        if name and name not in names:
            raise InputError(f"--data {name}=... has no effect: the tasks are {', '.join(names)}")
