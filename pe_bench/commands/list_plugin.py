"""`pe-bench list NAME`: docstring and options, facts of an encoding, presets of a task."""

import inspect
import re
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

from pe_bench.checks.subject import CONFIG
from pe_bench.commands.encoding_table import FACTS, align, list_actions
from pe_bench.config import ModelConfig
from pe_bench.errors import CRASHES, InputError, describe_error
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.importing import Kind
from pe_bench.registry.options import TABLES, option_of, plugin_options, show, show_type
from pe_bench.registry.plugins import Plugin
from pe_bench.runs.factory import RunFactory
from pe_bench.runs.memory import decoder_parameters
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.sequences.length_generalization import LengthGeneralizationTask

ENTRY = re.compile(r"^ {4}(?P<name>\w+):.*(?:\n {8}.*)*", re.MULTILINE)
"""An option and its description, in the Args of a docstring."""

TRAIN = ("steps", "batch_size", "length", "lr")
MODEL = ("layers", "width", "heads", "mlp_width")


def show_plugin(kind: Kind, where: str) -> str:
    """Return the description of a plugin: docstring, options, and facts or presets."""
    plugin = plugins.load(kind, where, complete=False)
    parts = [f"{plugin.label}: {catalogue.describe_file(plugin.file)}"]
    parts.append(inspect.cleandoc(plugin.cls.__doc__ or ""))
    parts += _inherited(plugin.cls)
    parts += _choices(plugin.cls)
    parts.append(_options(plugin.cls))
    parts.append(_facts(plugin) if kind == "encoding" else _describe_task(plugin.cls, where))
    return "\n\n".join(filter(None, parts))


def _inherited(cls: type[Any]) -> list[str]:
    """Return the documentation of inherited options, from the classes that define them."""
    names = {option.name for option in plugin_options(cls)}
    found = []
    for part in cls.__mro__:
        said = ENTRY.finditer(inspect.cleandoc(part.__doc__ or ""))
        lines = [entry[0] for entry in said if entry["name"] in names]
        if lines and part is not cls:
            found.append("\n".join([f"Of {part.__name__}:", *lines]))
        if "__init__" in vars(part):
            names -= set(inspect.signature(vars(part)["__init__"]).parameters)
    return found


def _choices(cls: type[Any]) -> list[str]:
    """Return the documentation of option values that have further options."""
    found = []
    for option, table in getattr(cls, TABLES, {}).items():
        for value, choice in table.items():
            lines = [f"{option}={value}: {(choice.__doc__ or '').partition(chr(10))[0]}"]
            for part in choice.__mro__:
                lines += _own_options(part)
            found.append("\n".join(lines))
    return found


def _own_options(part: type[Any]) -> list[str]:
    """Return the documentation of the options that a dataclass adds to its parent's."""
    if not is_dataclass(part):
        return []
    own = vars(part).get("__annotations__", ())
    if not any(field.name in own and field.default is not MISSING for field in fields(part)):
        return []
    _, _, attributes = (inspect.getdoc(part) or "").partition("Attributes:\n")
    return attributes.splitlines()


def _options(cls: type[Any]) -> str:
    options = plugin_options(cls)
    lines = [
        f"  {option_of(o.name)} = {show(o.default)}  ({show_type(o.annotation)})" for o in options
    ]
    return "\n".join(["Options, with their defaults:", *lines]) if lines else ""


def _facts(plugin: Plugin) -> str:
    """Return the hooks and declared facts of an encoding, or the error if it cannot be made."""
    try:
        encoding = plugin.make(CONFIG, 0)
        lines = [f"Acts on {', '.join(list_actions(plugin)) or 'nothing'} by default."]
    except Exception as error:
        return f"It cannot be run: {describe_error(error)}."
    declared = []
    for fact, name in FACTS.items():
        declared.append(name if getattr(encoding, fact) else f"not {name}")
    lines.append(f"Declared properties: {', '.join(declared)}.")
    return "\n".join(lines)


def _describe_task(cls: type[Any], where: str) -> str:
    """Return the presets of a task, or the error if they are wrong."""
    try:
        return _presets(cls, where)
    except CRASHES as error:
        return f"It cannot be run: {describe_error(error)}."


def _presets(cls: type[Any], where: str) -> str:
    """Return the numbers of each preset, the protocols and the subsets of a task."""
    quick = _resolved(where, next(iter(cls.presets)))
    rows = [["preset", *TRAIN, *MODEL, "parameters", "options"]]
    for name, preset in cls.presets.items():
        # Other tasks may have to download data first.
        makes_its_data = issubclass(cls, LengthGeneralizationTask) and not preset.starts_from
        task = _resolved(where, name) if makes_its_data else None
        model = task.model if task else _model(cls, name, quick)
        train = task.train if task else preset.train
        if task and train.length is None:
            train = replace(train, length=model.train_length)
        training = [show(getattr(train, key)) for key in TRAIN]
        sizes = [show(getattr(model, key)) for key in MODEL]
        parameters = f"{decoder_parameters(model):,}"
        options = ", ".join(f"{key}={show(value)}" for key, value in preset.options.items())
        rows.append([name, *training, *sizes, parameters, options])
    lines = ["Presets:", align(rows)]
    lines += _facts_of_presets(cls)
    lines.append(f"Protocols: {', '.join(cls.protocols)}.")
    if quick:
        lines.append(f"Subsets: {', '.join(quick.task.all_subsets)}.")
    return "\n".join(lines)


def _facts_of_presets(cls: type[Any]) -> list[str]:
    """Return a sentence for each start and each tokenizer, with the presets that have it."""
    sentences: dict[str, list[str]] = {}
    for name, preset in cls.presets.items():
        if preset.starts_from:
            start = f"from the model of the task {preset.starts_from} under the same preset"
            sentences.setdefault(start, []).append(name)
        elif preset.tokenizer != "bytes":
            sentences.setdefault(f"with the tokenizer {preset.tokenizer}", []).append(name)
        if preset.train.recompute:
            sentences.setdefault("with activation checkpointing", []).append(name)
    return [f"Trained {what}: {', '.join(names)}." for what, names in sentences.items()]


def _resolved(where: str, preset: str) -> ResolvedTask | None:
    """Return the task under a preset, or None if its data are missing."""
    try:
        return RunFactory(RunOptions(preset=preset)).task(where)
    except InputError:
        return None


def _model(cls: type[Any], preset: str, quick: ResolvedTask | None) -> ModelConfig:
    """Return a preset's shape, with the vocabulary of its tokenizer or of the preset quick."""
    base = cls.presets[preset].starts_from
    start = plugins.load("task", base).cls if base else cls
    model: ModelConfig = start.presets[preset].model or ModelConfig()
    _, _, size = start.presets[preset].tokenizer.partition("bpe:")
    if size:
        return replace(model, vocab_size=int(size))
    return replace(model, vocab_size=quick.model.vocab_size) if quick else model
