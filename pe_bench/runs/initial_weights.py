"""Initial weights: from a model that is trained here with another encoding, or a checkpoint."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pe_bench.config import AdaptConfig, ModelConfig
from pe_bench.decoder.model import Decoder
from pe_bench.errors import ChangedError, InputError
from pe_bench.pretrained.checkpoint import Checkpoint, open_checkpoint
from pe_bench.pretrained.weights import load_files, make_empty
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.plugins import Plugin
from pe_bench.results.labels import plugin_name
from pe_bench.runs.options import RunOptions
from pe_bench.train.adaptation_methods import trains_all


@dataclass(frozen=True)
class Pretrained(Plugin):
    """The encoding of a checkpoint, under the name of its folder.

    Attributes:
        checkpoint: the checkpoint in that folder.
    """

    checkpoint: Checkpoint


@dataclass(frozen=True)
class Adapted(Plugin):
    """An encoding that is put into a model that was trained with another one.

    Attributes:
        encoding: the new encoding.
        origin: the encoding that the model was trained with.
        config: configuration of the training with the new encoding.
        label: "origin -> encoding", with the training in brackets.
    """

    encoding: Plugin
    origin: Plugin
    config: AdaptConfig

    @property
    def spec(self) -> str:
        """The canonical spec of the new encoding alone."""
        return self.encoding.spec

    @property
    def starts_from_checkpoint(self) -> bool:
        """Whether its models are those of a pretrained checkpoint."""
        return isinstance(self.origin, Pretrained)


def load_origin(spec: str) -> Plugin:
    """Return the encoding of the models to start from.

    Args:
        spec: spec of an encoding, or folder of a checkpoint.

    Raises:
        InputError: there is no such encoding, or the model in the folder cannot be used.
    """
    folder = Path(spec)
    where = plugin_name(spec)
    if "/" in where and not Path(where).exists():
        raise InputError(f"there is no {where}: give the folder of a checkpoint, or an encoding")
    if folder.is_file() and folder.suffix != ".py":
        raise InputError(f"{folder} is a file: give the folder of a checkpoint, or an encoding")
    if not folder.is_dir() or (folder / "encoding.py").is_file():
        try:
            return plugins.load("encoding", spec)
        except InputError as error:
            if where in catalogue.names("encoding") or Path(where).exists():
                raise
            raise InputError(f"{error}, or the folder of a checkpoint") from None
    checkpoint = open_checkpoint(folder)
    checkpoint.tokenizer()  # refuses a folder without one
    checkpoint.check_files()
    own = plugins.load("encoding", checkpoint.encoding)
    return Pretrained(
        kind="encoding",
        label=re.sub(r"[:,=/\\\s]+", "-", folder.resolve().name),
        options=own.options,
        cls=own.cls,
        version=checkpoint.fingerprint[:12],
        file=own.file,
        given=spec,
        checkpoint=checkpoint,
    )


def options_from(options: RunOptions, checkpoint: Checkpoint) -> RunOptions:
    """Return the options of a command for models that start from a checkpoint.

    The checkpoint determines tokenizer and shape, and replaces the task's training.

    Raises:
        InputError: an option has no effect on a checkpoint.
    """
    for name in options.train:
        if name not in ("length", "micro_batch"):
            raise InputError(f"--train.{name} has no effect on a trained model: use --adapt.*")
    for name, given in (("pretrain", options.pretrain), ("model", options.model)):
        if given:
            raise InputError(
                f"--{name}.{next(iter(given))} has no effect: the checkpoint determines the model"
            )
    if options.tokenizer != RunOptions.tokenizer:
        raise InputError("--tokenizer has no effect: the checkpoint has its own")
    if options.tune and not options.adapt.get("steps"):
        raise InputError("--tune has no effect without --adapt.steps: nothing is trained")
    length = options.train.get("length", checkpoint.model.train_length)
    train = {**options.train, "length": length, "steps": 0}
    return replace(options, tokenizer=str(checkpoint.folder), train=train)


def load_pretrained(adapted: Adapted, model: ModelConfig, seed: int, precision: str) -> Decoder:
    """Return the model of a checkpoint with another encoding.

    Frozen weights have the run's precision, trained weights are float32.

    Args:
        adapted: the new encoding, with the checkpoint as `origin`.
        model: shape of the model.
        seed: seed of the encoding's own weights.
        precision: "fp32" or "bf16".
    """
    assert isinstance(adapted.origin, Pretrained)
    checkpoint = adapted.origin.checkpoint
    narrow = precision == "bf16" and not trains_all(adapted.config)
    torch.manual_seed(seed)
    decoder = make_empty(model, adapted.make)
    load_files(
        decoder,
        checkpoint.folder,
        dtype=torch.bfloat16 if narrow else torch.float32,
        with_encoding=checkpoint.contains(adapted.encoding),
        names=checkpoint.config.names,
    )
    if checkpoint.fingerprint[:12] != adapted.origin.version:
        raise ChangedError(checkpoint.folder)
    return decoder
