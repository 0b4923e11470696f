"""What `pe-bench list` says of encodings and tasks, found by looking at instances of them."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pe_bench.checks.encodings import Subject
from pe_bench.config import ModelConfig
from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.registry.importing import Kind
from pe_bench.registry.options import options_of, show, show_type
from pe_bench.registry.plugins import Plugin
from pe_bench.running.memory import decoder_parameters
from pe_bench.running.options import RunOptions
from pe_bench.running.resolve import ResolvedTask, resolve
from pe_bench.sequences.length_generalization import LengthGeneralizationTask

# Where a hook lets positions in, in the order of a forward pass.
PLACES = {
    "positions": "ids",
    "embed": "embeddings",
    "transform_qk": "q and k",
    "separable_bias": "bias",
    "bias": "bias",
    "rewrite_logits": "logits",
    "extra_values": "values",
    "update_state": "state",
}
FACTS = {"prefix_consistent": "prefix-consistent", "shift_invariant": "shift-invariant"}
SOURCE = re.compile(r"(?P<what>.*?) \((?P<paper>[^()]*?) (?P<year>\d{4})(?P<where>, [^()]*)?\)\.?")
COLUMNS = ("name", "what it does", "paper", "year", "acts on", "parameters per layer")
TRAIN = ("steps", "batch_size", "length", "lr")
MODEL = ("layers", "width", "heads", "mlp_width")


def table(names: Sequence[str]) -> str:
    """Return a table of shipped encodings, a line each."""
    return _align([[*COLUMNS, *FACTS.values()], *(card(name) for name in names)])


def card(name: str) -> list[str]:
    """Return the line of an encoding: one entry for each of COLUMNS and FACTS."""
    plugin = plugins.load("encoding", name)
    what, paper, year = _source(plugins.describe("encoding", name))
    variants = _variants(plugin)
    places = {option: places_of(variant) for option, variant in variants.items()}
    models = {option: Subject(variant.make).model() for option, variant in variants.items()}
    facts = []
    for fact in FACTS:
        values = {o: bool(getattr(model.encoding, fact)) for o, model in models.items()}
        other = [option for option, value in values.items() if value != values[""]]
        word, opposite = ("yes", "no") if values[""] else ("no", "yes")
        facts.append(f"{word} ({opposite} with {other[0]})" if other else word)
    words = [*places[""]] or ["nothing"]
    for place in dict.fromkeys(PLACES.values()):
        options = [option for option, found in places.items() if place in found]
        if options and place not in places[""]:
            words.append(f"{place} by option ({options[0]})")
    return [name, what, paper, year, ", ".join(words), plugin.cls.parameters_per_layer, *facts]


def places_of(plugin: Plugin) -> list[str]:
    """Return where an encoding acts: its hooks that change something in a forward pass."""
    subject = Subject(plugin.make)
    model = subject.model()
    used: set[str] = set()
    for module in model.encodings:
        for hook in PLACES:
            if hasattr(module, hook):
                setattr(module, hook, _watch(module, hook, used))
    with torch.no_grad():
        model(subject.tokens())
    return list(dict.fromkeys(PLACES[hook] for hook in PLACES if hook in used))


def manual(kind: Kind, where: str) -> str:
    """Return all that a plugin says to its users: docstring, options, a task's presets."""
    plugin = plugins.load(kind, where)
    parts = [f"{plugin.label}: {plugins.describe_file(plugin.file)}"]
    parts.append(inspect.getdoc(plugin.cls) or "")
    parts += _choices(plugin.cls)
    parts.append(_options(plugin.cls))
    parts.append(_facts(plugin) if kind == "encoding" else _presets(plugin.cls, where))
    return "\n\n".join(filter(None, parts))


def _variants(plugin: Plugin) -> dict[str, Plugin]:
    """Return the encoding by default, under "", and with each option of its variants."""
    found = {"": plugin}
    for variant in plugin.cls.variants:
        for options in (*variant.split(","), variant):
            try:
                found[options] = plugins.load("encoding", f"{plugin.label}:{options}")
                Subject(found[options].make).model()
            except ValueError:  # an option that needs another one
                found.pop(options, None)
    return found


def _watch(encoding: Any, hook: str, used: set[str]) -> Callable[..., Any]:
    """Return a hook that notes whether its result differs from what the interface would return."""
    own = getattr(encoding, hook)
    interface = next(cls for cls in reversed(type(encoding).__mro__) if hook in vars(cls))
    default = getattr(interface, hook)

    def watched(*args: Any) -> Any:
        result = own(*args)
        if not _equal(result, default(encoding, *args)):
            used.add(hook)
        return result

    return watched


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one is other


def _source(line: str) -> tuple[str, str, str]:
    """Return what an encoding does, its paper, and the year, from its first docstring line."""
    source = SOURCE.fullmatch(line)
    if not source:
        return line, "", ""
    return source["what"], source["paper"] + (source["where"] or ""), source["year"]


def _choices(cls: type[Any]) -> list[str]:
    """Return what there is to say of option values that have options of their own."""
    found = []
    for option, table in getattr(cls, "option_tables", {}).items():
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
    options = options_of(cls)
    lines = [f"  {o.name} = {show(o.default)}  ({show_type(o.annotation)})" for o in options]
    return "\n".join(["Options, with their defaults:", *lines]) if lines else ""


def _facts(plugin: Plugin) -> str:
    model = Subject(plugin.make).model()
    lines = [f"Acts on {', '.join(places_of(plugin)) or 'nothing'} by default."]
    for fact, name in FACTS.items():
        lines.append(f"Declares to be {'' if getattr(model.encoding, fact) else 'not '}{name}.")
    return "\n".join(lines)


def _presets(cls: type[Any], where: str) -> str:
    """Return the numbers of each preset, and what else a task lets its users choose."""
    quick = _resolved(where, next(iter(cls.presets)))
    rows = [["preset", *TRAIN, *MODEL, "parameters", "options"]]
    for name, preset in cls.presets.items():
        # Others may have to download something first.
        makes_its_data = issubclass(cls, LengthGeneralizationTask)
        task = _resolved(where, name) if makes_its_data else None
        model = task.model if task else _model(cls, name, quick)
        train = task.train if task else preset.train
        if task and train.length is None:
            train = replace(train, length=model.train_length)
        rows.append(
            [
                name,
                *(show(getattr(train, key)) for key in TRAIN),
                *(show(getattr(model, key)) for key in MODEL),
                f"{decoder_parameters(model):,}",
                ", ".join(f"{key}={show(value)}" for key, value in preset.options.items()),
            ]
        )
    lines = ["Presets:", _align(rows)]
    if cls.starts_from:
        lines.append(f"The model is that of the task {cls.starts_from}, trained before.")
    lines.append(f"Protocols: {', '.join(cls.protocols)}.")
    if quick:
        lines.append(f"Subsets: {', '.join(quick.task.all_subsets)}.")
    return "\n".join(lines)


def _resolved(where: str, preset: str) -> ResolvedTask | None:
    """Return the task under a preset; None where its data are not at hand."""
    try:
        return resolve(RunOptions(preset=preset), where)
    except InputError:
        return None


def _model(cls: type[Any], preset: str, quick: ResolvedTask | None) -> ModelConfig:
    """Return a preset's shape with the vocabulary of preset quick."""
    start = plugins.load("task", cls.starts_from).cls if cls.starts_from else cls
    model: ModelConfig = start.presets[preset].model or ModelConfig()
    return replace(model, vocab_size=quick.model.vocab_size) if quick else model


def _align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(lines)
