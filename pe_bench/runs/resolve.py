"""From a task's spec to a task that can be trained: preset, overrides, data, starting point."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pe_bench import decoder
from pe_bench.config import ROUNDING_ONLY, AdaptConfig, ModelConfig, TrainConfig
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError, as_exception, suggest
from pe_bench.pretrained.weights import make_empty
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.options import TaskSpec, plugin_options
from pe_bench.registry.plugins import Plugin
from pe_bench.results.identity import digest_settings
from pe_bench.results.labels import plugin_name
from pe_bench.results.views import Headline
from pe_bench.runs.declared import check_axes, check_declared
from pe_bench.runs.initial_weights import Adapted, load_pretrained
from pe_bench.runs.options import RunOptions
from pe_bench.runs.tuning import Tuning, default_rates
from pe_bench.task import Preset, Task, TaskContext
from pe_bench.text.tokenizer import Tokenizer
from pe_bench.train import training_result

NO_CHECKPOINT = "it needs special tokens, but a checkpoint has only those of its tokenizer"


@dataclass(frozen=True)
class ResolvedTask:
    """A task with its data, ready to be trained and evaluated with any encoding.

    Attributes:
        label: canonical spec.
        task: the task itself, its data opened.
        model: shape of the decoder.
        train: training phase.
        settings: everything that determines a number except encoding and seed. A table never mixes
            rows of different settings, and their digest is part of a run's folder name.
        start: task whose trained model this one starts from, or None. If another encoding continues
            from a model of this task, `start` is the task itself.
        tuning: learning rates that are tried for every encoding, or None.
        adapting: task that makes the training batches instead of `task` if their size or the length
            of their rows differs.
        first_step: step of the first batch; `start` used the batches of earlier steps.
        given: the spec as the user wrote it, with the path of a file.
        words: the options of the command that change it, see `command_words`.
    """

    label: str
    task: Task
    model: ModelConfig
    train: TrainConfig
    settings: Mapping[str, Any]
    start: "ResolvedTask | None"
    tuning: Tuning | None = None
    adapting: Task | None = None
    first_step: int = 0
    given: str = ""
    words: tuple[str, ...] = ()

    @property
    def batches(self) -> Task:
        """The task that makes the batches of the training phase."""
        return self.adapting or self.task

    @property
    def model_subsets(self) -> Sequence[str | None]:
        """The subset of each trained model; None stands for one model for all subsets."""
        return self.task.subsets if self.task.trains_each_subset else (None,)

    @property
    def is_adapted(self) -> bool:
        """Whether an encoding continues from a model of this task that another one has trained."""
        return isinstance(self.train, AdaptConfig)

    def make_encoding(self, encoding: Plugin, layer: int = 0) -> Encoding:
        """Return an instance of an encoding for one layer of this task's model."""
        made: Encoding = encoding.make(self.model, layer)
        return made

    def make_model(self, encoding: Plugin, seed: int) -> Decoder:
        """Return the initial decoder of a training phase, or the decoder of a checkpoint.

        Weights outside the encoding depend on the seed alone.
        """
        if isinstance(encoding, Adapted) and encoding.starts_from_checkpoint:
            return load_pretrained(encoding, self.model, seed, self.settings["precision"])
        torch.manual_seed(seed)
        return Decoder(self.model, encoding.make)

    def make_empty(self, encoding: Plugin) -> Decoder:
        """Return a decoder whose weights take no memory, except those of the encoding."""
        return make_empty(self.model, encoding.make)

    def with_subsets(self, names: Sequence[str]) -> "ResolvedTask":
        """Return the task with other subsets; nothing else changes."""
        task = self.task.with_subsets(names)
        words = self.words
        if words[:1] == ("--subsets",):
            words = words[1 + len(self.task.subsets) :]
        return replace(self, task=task, words=("--subsets", *task.subsets, *words))

    def with_conditions(self, conditions: Mapping[str, Any]) -> "ResolvedTask":
        """Return a task that measures time with the timing conditions in its settings.

        Args:
            conditions: see `pe_bench.runs.timing_context.find_conditions`.
        """
        return replace(self, settings={**self.settings, "conditions": dict(conditions)})

    def digest(self, *more: Any) -> str:
        """Return a digest of the settings and of `more`, eight characters."""
        return digest_settings(self.settings, *more)


def resolve(options: RunOptions, spec: str, *, shape: ModelConfig | None = None) -> ResolvedTask:
    """Return the task of a spec with its data opened, and the task that it starts from.

    Args:
        options: options of the command.
        spec: name or file of the task, with options.
        shape: shape of the checkpoint that models start from; None: they are trained here.

    Raises:
        InputError: an error that the user can correct.
    """
    plugin = plugins.load("task", spec, options.preset)
    preset = preset_of(options, plugin)
    if shape and preset.train.length is None:
        raise InputError(NO_CHECKPOINT)
    start = None if shape else _resolve_start(options, plugin, preset)
    context = _make_context(options, plugin, preset, start)
    if shape and not options.adapt.get("steps"):
        context = replace(context, untrained=True)
    if isinstance(plugin.cls.axes, Mapping):  # otherwise a property
        check_axes(plugin.cls.axes)
    with as_exception():
        task: Task = plugin.cls.make(context, **plugin.options)
    if not isinstance(getattr(task, "headline", None), Headline):
        raise InputError(f"{plugin.label} has no headline, such as Headline('exact_match', 'test')")
    with as_exception():
        check_declared(task, plugin.label)
    task.check_subsets()
    if shape and not isinstance(task.vocabulary, Tokenizer):
        raise InputError(NO_CHECKPOINT)
    model = start.model if start else _make_shape(options, preset, task, shape)
    # The settings describe the task to start from under `start`, not among the options.
    own = {k: v for k, v in plugin.options.items() if not isinstance(v, TaskSpec)}
    settings = {
        "task": plugin.label,
        "versions": {
            "task": plugin.version,
            "decoder": decoder.VERSION,
            "training": training_result.VERSION,
        },
        "options": {**preset.options, **own},
        "preset": context.preset,
        "protocol": context.protocol,
        "data": task.fingerprint,
        "precision": options.precision,
        "model": model.settings,
        "train": {k: v for k, v in asdict(task.train).items() if k not in ROUNDING_ONLY},
        "start": start.settings if start else None,
    }
    tuning = _make_tuning(options, task.train)
    if tuning:
        settings["tune"] = tuning.settings
    return ResolvedTask(plugin.label, task, model, task.train, settings, start, tuning, given=spec)


def spec_of_start(options: RunOptions, plugin: Plugin, preset: Preset) -> str | None:
    """Return the spec of the task that a task starts from: from its option, else from its preset.

    Raises:
        InputError: the option has no effect.
    """
    given = [value for value in plugin.options.values() if isinstance(value, TaskSpec)]
    if given and preset.starts_from is None:
        raise InputError(
            f"start={given[0]} has no effect: the preset {options.preset} trains from scratch"
        )
    return given[0] if given else preset.starts_from


def others_start_from(resolved: ResolvedTask) -> bool:
    """Return whether a shipped task starts from the models of a task under the same preset."""
    if not _is_language_model(resolved):
        return False
    name = plugin_name(resolved.label)
    for other in catalogue.names("task"):
        preset = plugins.load("task", other).cls.presets.get(resolved.task.context.preset)
        if preset and preset.starts_from and plugin_name(preset.starts_from) == name:
            return True
    return False


def _is_language_model(resolved: ResolvedTask) -> bool:
    """Return whether another task can start from the models of a task."""
    task = resolved.task
    return not task.trains_each_subset and isinstance(task.vocabulary, Tokenizer)


def _resolve_start(options: RunOptions, plugin: Plugin, preset: Preset) -> ResolvedTask | None:
    """Return the task that a task starts from.

    Raises:
        InputError: nothing can start from that task, or the option that names it has no effect.
    """
    spec = spec_of_start(options, plugin, preset)
    if spec is None:
        return None
    start = resolve(options.for_start(), spec)
    if not _is_language_model(start):
        raise InputError(
            f"{start.label} is not a language model: name one, such as perplexity:corpus=pg19"
        )
    return start


def _make_tuning(options: RunOptions, config: TrainConfig) -> Tuning | None:
    """Return the rates to try for a task: the user's, or multiples of the preset's rate.

    Raises:
        InputError: there is nothing to try.
    """
    if options.tune is None or not config.steps:
        return None
    tune = replace(options.tune, values=options.tune.values and options.origin is None)
    if tune.lr:
        return tune
    if not config.lr:
        raise InputError("a learning rate of 0 has no multiples to search: give --tune.lr")
    return replace(tune, lr=default_rates(config.lr))


def without_effect(overrides: Mapping[str, Any]) -> list[str]:
    """Return the overrides that have no effect if nothing is trained."""
    return [name for name in overrides if name != "length"]


def preset_of(options: RunOptions, plugin: Plugin) -> Preset:
    """Return the task's preset.

    Raises:
        InputError: the task has no such preset or protocol.
    """
    cls: type[Task] = plugin.cls
    if options.preset not in cls.presets:
        raise InputError(
            f"there is no preset '{options.preset}'{suggest(options.preset, list(cls.presets))}; "
            f"there are {', '.join(cls.presets)}"
        )
    if options.protocol not in cls.protocols:
        raise InputError(
            f"there is no protocol '{options.protocol}'"
            f"{suggest(options.protocol, list(cls.protocols))}; there is "
            f"{', '.join(cls.protocols)}"
        )
    return cls.preset(options.preset, _find_data(options, plugin))


def _find_data(options: RunOptions, plugin: Plugin) -> Path | None:
    """Return the folder that the user gave for a task, if any."""
    name = plugin_name(plugin.label)
    return options.data.get(name, options.data.get(""))


def _make_context(
    options: RunOptions, plugin: Plugin, preset: Preset, start: ResolvedTask | None
) -> TaskContext:
    """Return the context of a task."""
    return TaskContext(
        preset=options.preset,
        protocol=options.protocol,
        train=train_config_of(options, plugin, preset),
        data=_find_data(options, plugin),
        tokenizer=options.tokenizer or preset.tokenizer,
        cache=options.cache,
        subsets=options.subsets,
        start=start.task if start else None,
        hold_out=options.tune is not None,
    )


def train_config_of(options: RunOptions, plugin: Plugin, preset: Preset) -> TrainConfig:
    """Return the training of a task: its preset's, with the overrides of the user.

    Raises:
        InputError: an override has no effect or an impossible value.
    """
    overrides = dict(options.train)
    if preset.train.length is None and "length" in overrides:
        known = ", ".join(option.name for option in plugin_options(plugin.cls))
        flag = "--pretrain.length" if options.for_earlier_phase else "--train.length"
        raise InputError(
            f"{flag} has no effect: options of the task ({known}) set the length of rows"
        )
    if not preset.train.steps:
        for field in without_effect(overrides):
            del overrides[field]
    try:
        return replace(preset.train, **overrides)
    except InputError as error:
        sentence = str(error)
        if options.for_earlier_phase:  # the user has given --pretrain.* for this training
            sentence = sentence.replace("train.", "pretrain.", 1)
        raise InputError(sentence) from None


def _make_shape(
    options: RunOptions, preset: Preset, task: Task, given: ModelConfig | None
) -> ModelConfig:
    """Return the decoder's shape: preset, overrides, then facts of the task's data.

    Args:
        given: shape of a checkpoint; it has the checkpoint's facts, except the meaning of tokens.
    """
    if given:
        vocabulary = task.vocabulary
        return replace(
            given, digit_ids=vocabulary.digit_ids, separator_ids=vocabulary.separator_ids
        )
    shape = (preset.model or ModelConfig()).changed(**options.model)
    return replace(
        shape,
        vocab_size=task.vocabulary.vocab_size,
        train_length=task.train_length,
        digit_ids=task.vocabulary.digit_ids,
        separator_ids=task.vocabulary.separator_ids,
    )
