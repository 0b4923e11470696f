"""Adaptation of a trained model to another encoding: the task, the label, and the weights."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from pe_bench.config import ROUNDING_ONLY, AdaptConfig, show_rate
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.registry.plugins import Plugin
from pe_bench.results.identity import digest
from pe_bench.results.labels import ARROW
from pe_bench.runs.initial_weights import Adapted, Pretrained
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.runs.tuning import Tuning, default_rates
from pe_bench.task import Task
from pe_bench.train.adaptation_methods import check_libraries

ADDED = ("also", "encoding_lr_factor")
"""Options that are not in digests of earlier adaptations."""


def adapt(encoding: Plugin, origin: Plugin, task: ResolvedTask) -> Adapted:
    """Return an encoding in a model of `origin`, for a task of `continue_from_origin`."""
    config = task.train
    assert isinstance(config, AdaptConfig)
    version = f"{encoding.version}<{origin.version}"
    if config.steps:
        version += f"<{digest(_deciding(config))}"
    return Adapted(
        kind=encoding.kind,
        label=f"{origin.label}{ARROW}{encoding.label}{_bracket(config, task)}",
        options=encoding.options,
        cls=encoding.cls,
        version=version,
        file=encoding.file,
        given=encoding.given,
        encoding=encoding,
        origin=origin,
        config=config,
    )


def continue_from_origin(task: ResolvedTask, origin: Plugin, options: RunOptions) -> ResolvedTask:
    """Return a task that starts from its own model, trained with `origin`.

    The evaluation is the same. Training continues with new batches, with longer rows if
    `options.adapt` asks for them.

    Raises:
        InputError: the task or its model does not support an option of `options.adapt`, or an
            option has no effect.
    """
    if not (task.train.steps or task.start or isinstance(origin, Pretrained)):
        raise InputError("--from has no effect: the task trains nothing")
    kept = asdict(task.train)
    config = AdaptConfig(**{**kept, "steps": AdaptConfig.steps, **options.adapt})
    if config.low_rank and config.rank > task.model.width:
        raise InputError(
            f"adapt.rank must be at most the model's width {task.model.width}, not {config.rank}"
        )
    if config.low_rank and "gate_proj" in config.targets and not task.model.block.gated:
        raise InputError("adapt.targets has gate_proj, but the MLP of this model has no gate")
    check_libraries(config)
    settings = {**task.settings, "from": {"encoding": origin.label, "version": origin.version}}
    tuning = _make_tuning(options, config, origin)
    if tuning and isinstance(origin, Pretrained):  # others have it from the training of the origin
        settings["tune"] = tuning.settings
    return replace(
        task,
        train=config,
        settings=settings,
        start=task,
        tuning=tuning,
        adapting=_adapting(task, config),
        first_step=task.train.steps,
    )


def _make_tuning(options: RunOptions, config: AdaptConfig, origin: Plugin) -> Tuning | None:
    """Return the search for the learning rate of further training, or None.

    If the origin is a checkpoint, `tune.lr` has the rates to try. Otherwise `tune.lr` is for the
    training of the origin, and the rates to try are multiples of `adapt.lr`.

    Raises:
        InputError: `adapt.lr` is given, but the search does not use it.
    """
    if options.tune is None or not config.steps:
        return None
    rates = options.tune.lr if isinstance(origin, Pretrained) else ()
    if rates and "lr" in options.adapt:
        raise InputError("adapt.lr has no effect together with tune.lr: leave one of them out")
    return replace(options.tune, lr=rates or default_rates(config.lr), values=False)


def copy_shared_weights(
    model: Decoder, weights: Mapping[str, Tensor], encoding: Adapted
) -> dict[str, Tensor]:
    """Return the weights of a new model, copied from a trained model where the names agree.

    The parameters of the encoding are copied only if both encodings have the same class: in
    another class, a bias of the same name and shape has another meaning.

    Args:
        model: the new model, with the new encoding.
        weights: weights of the trained model.
        encoding: the new encoding.
    """
    found: dict[str, Tensor] = dict(model.state_dict())
    related = issubclass(encoding.cls, encoding.origin.cls)
    for name, weight in weights.items():
        if name.startswith("encodings.") and not related:
            continue
        if name in found and found[name].shape == weight.shape:
            found[name] = weight
    return found


def _adapting(task: ResolvedTask, config: AdaptConfig) -> Task | None:
    """Return the task with batches of the size and length in `config`; None if they do not differ.

    Vocabulary and evaluation do not change.

    Raises:
        InputError: the task has no rows of that length.
    """
    train = replace(task.train, length=config.length, batch_size=config.batch_size)
    if train == task.train:
        return None
    if task.train.length is None and config.length is not None:
        raise InputError(
            "--adapt.length has no effect: options of the task set the length of its rows"
        )
    made = task.task.with_training(train)
    if made.vocabulary.vocab_size != task.task.vocabulary.vocab_size:
        raise InputError("--adapt.length has no effect: longer rows would have other tokens")
    return made


def _deciding(config: AdaptConfig) -> dict[str, Any]:
    """Return the settings of a training phase that determine its numbers."""
    usual = {name: getattr(AdaptConfig, name) for name in ROUNDING_ONLY}
    found = asdict(replace(config, **usual))
    del found["recompute"]  # the others stay, so that digests of earlier versions stay valid
    for name in ADDED:  # digests from before these options stay valid
        if found[name] == getattr(AdaptConfig, name):
            del found[name]
    return found


def _bracket(config: AdaptConfig, task: ResolvedTask) -> str:
    """Return trained parameters, steps, and settings that differ from the task's, in brackets."""
    if not config.steps:
        return ""
    assert task.start is not None
    usual = {**asdict(AdaptConfig()), **asdict(task.start.train)}
    trained = [part for part in (config.method, config.also) if part not in ("none", None)]
    parts: list[str] = [] if config.method == "full" else ["+".join(trained)]
    parts.append(f"{config.steps} steps")
    for name, value in asdict(config).items():
        if name in ("method", "also", "steps", *ROUNDING_ONLY) or value == usual[name]:
            continue
        parts.append(f"{name} {show_rate(value) if name == 'lr' else value}")
    return f" [{', '.join(parts)}]"
