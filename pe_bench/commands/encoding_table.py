"""The table of `pe-bench list encodings`. Its facts come from instances of the encodings."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pe_bench.checks.subject import CONFIG, Subject
from pe_bench.decoder.attention import Backend
from pe_bench.decoder.layer import AttentionLayer
from pe_bench.errors import InputError
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.plugins import Plugin

# The place where a hook changes the model, in the order of a forward pass.
PLACES = {
    "positions": "ids",
    "draw_positions": "ids",
    "embed": "embeddings",
    "transform_qk": "q and k",
    "temperature": "temperature",
    "separable_bias": "bias",
    "bias": "bias",
    "distance_bias": "bias",
    "product": "logits",
    "rewrite_logits": "logits",
    "sink": "softmax",
    "normalise": "softmax",
    "extra_values": "values",
    "update_state": "state",
}
FACTS = {"prefix_consistent": "prefix-consistent", "shift_invariant": "shift-invariant"}
SOURCE = re.compile(r"(?P<what>.*?) \((?P<paper>[^()]*?) (?P<year>\d{4})(?P<where>, [^()]*)?\)\.?")
COLUMNS = (
    "name",
    "what it does",
    "paper",
    "year",
    "acts on",
    "training runs on",
    "parameters per layer",
)


BRIEF = ("name", "acts on", *FACTS.values())
BY_OPTION = re.compile(r",? ?\b[a-z ]+ by option \([^()]*\)| \((?:yes|no) with [^()]*\)")


def encoding_table(names: Sequence[str], *, wide: bool = True) -> str:
    """Return a table with one line for each shipped encoding in `names`.

    Args:
        names: names of the encodings.
        wide: whether the table has all columns; otherwise only columns that fit into 80 characters,
            for the default options.
    """
    header = [*COLUMNS, *FACTS.values()]
    rows = [card(name) for name in names]
    if wide:
        return align([header, *rows])
    indices = [header.index(name) for name in BRIEF]
    brief = []
    for row in rows:
        brief.append([BY_OPTION.sub("", row[index]) for index in indices])
    hint = "By default; what options change, papers and more: --wide, or pe-bench list NAME."
    return f"{align([BRIEF, *brief])}\n\n{hint}"


def card(name: str) -> list[str]:
    """Return the line of an encoding: one entry for each of COLUMNS and FACTS."""
    plugin = plugins.load("encoding", name)
    what, paper, year = _source(catalogue.describe("encoding", name))
    variants = _variants(plugin)
    facts = [_fact(fact, variants) for fact in FACTS]
    return [
        name,
        what,
        paper,
        year,
        _acts_on(variants),
        " ".join(backends_of(plugin)),
        plugin.cls.parameters_per_layer,
        *facts,
    ]


def list_actions(plugin: Plugin) -> list[str]:
    """Return the places where an encoding acts: hooks that change a forward pass."""
    subject = Subject(plugin.make)
    model = subject.model()
    used: set[str] = set()
    served = map(model.encoding_of, range(model.config.layers))
    for module in dict.fromkeys([*model.encoding.layer_kinds, *served]):
        for hook in PLACES:
            if hasattr(module, hook):
                setattr(module, hook, _watch(module, hook, used))
    with torch.no_grad():
        model(subject.tokens())
    return list(dict.fromkeys(PLACES[hook] for hook in PLACES if hook in used))


def backends_of(plugin: Plugin) -> list[Backend]:
    """Return the attention backends that can train an encoding in float32; flex only on CUDA."""
    layer = AttentionLayer(CONFIG, plugin.make)
    tokens = Subject(plugin.make).tokens()  # (B, T)
    x = torch.randn(*tokens.shape, CONFIG.width)
    return layer.backends(x, tokens=tokens)


def _acts_on(variants: Mapping[str, Plugin]) -> str:
    """Return the places where an encoding acts by default, then those that need an option."""
    places = {option: list_actions(variant) for option, variant in variants.items()}
    words = [*places[""]] or ["nothing"]
    for place in dict.fromkeys(PLACES.values()):
        options = [option for option, found in places.items() if place in found]
        if options and place not in places[""]:
            words.append(f"{place} by option ({options[0]})")
    return ", ".join(words)


def _fact(fact: str, variants: Mapping[str, Plugin]) -> str:
    """Return whether an encoding declares a fact, and the option that changes it."""
    values = {o: bool(getattr(variant.make(CONFIG, 0), fact)) for o, variant in variants.items()}
    other = [option for option, value in values.items() if value != values[""]]
    word, opposite = ("yes", "no") if values[""] else ("no", "yes")
    return f"{word} ({opposite} with {other[0]})" if other else word


def _variants(plugin: Plugin) -> dict[str, Plugin]:
    """Return the encoding with default options (key "") and with each option of its variants."""
    found = {"": plugin}
    for variant in plugin.cls.variants:
        alone = variant.split(",")
        for options in (*alone, variant):
            if options == variant and found.keys() >= set(alone):
                continue  # the options have been tried separately
            changed = plugins.load("encoding", f"{plugin.label}:{options}")
            try:
                changed.make(CONFIG, 0)
            except InputError:  # the option needs another option
                continue
            found[options] = changed
    return found


def _watch(encoding: Any, hook: str, used: set[str]) -> Callable[..., Any]:
    """Return a hook that records whether its result differs from the result of the interface."""
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
    """Return a summary of an encoding, its paper, and the year, from its first docstring line."""
    source = SOURCE.fullmatch(line)
    if not source:
        return line, "", ""
    return source["what"], source["paper"] + (source["where"] or ""), source["year"]


def align(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text with their columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(lines)
