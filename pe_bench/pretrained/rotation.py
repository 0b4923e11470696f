"""Transfer of a trained model's rotation to other encodings."""

import re
from dataclasses import fields
from typing import Any

import torch

from pe_bench.config import ModelConfig
from pe_bench.errors import InputError
from pe_bench.pretrained.llama_config import LlamaConfig
from pe_bench.registry import plugins
from pe_bench.registry.options import EncodingSpec, convert, show, split_spec
from pe_bench.registry.plugins import Plugin

FILE = re.compile(r"[/\\]|\.py\b")
OF_LLAMA = "rope"
"""The encoding of a plain Llama."""

BASE = "base"
SCALING = "scaling"
"""Option that has sub-options. A spec that sets it replaces these as well."""


def with_rotation(spec: str, config: LlamaConfig) -> tuple[str, list[str]]:
    """Complete a spec with the base and the scaling of a trained model.

    Returns:
        The spec, and a sentence for each encoding in it that rotates queries and keys with other
        frequencies than the model although the spec does not give them.

    Raises:
        InputError: the spec is wrong, or the encoding does not support the rotation.
    """
    where, given = split_spec(spec)
    plugin = plugins.load("encoding", spec)
    notes: list[str] = []
    parts = {}
    for option in plugins.options_of(plugin.cls):
        if option.annotation is EncodingSpec:
            inside = EncodingSpec(given.get(option.name, option.default))
            parts[option.name], of_part = with_rotation(inside, config.of_part(option.name))
            notes += of_part
    full = _join(spec, given | parts)
    own = plugin.cls.options_of_llama(config.rotation, config.length)
    if own or (not parts and _rotates(plugin, config.model)):
        taken, notes = _choose_options(spec, plugin, own, config)
        full = _join(spec, given | parts | taken)
    if where in plugins.names("encoding"):
        full = type(spec)(plugins.load("encoding", full).label)
    return (full.replace(",", ":") if isinstance(spec, EncodingSpec) else full), notes


def _choose_options(
    spec: str, plugin: Plugin, own: dict[str, Any], config: LlamaConfig
) -> tuple[dict[str, str], list[str]]:
    """Return options for as much of the rotation as an encoding supports, and notes on the rest.

    Args:
        spec: spec of the encoding.
        plugin: the encoding.
        own: return value of the encoding's `options_of_llama`.
        config: config of the trained model.
    """
    _, given = split_spec(spec)
    rotation = _rotation_of(config)
    known = {option.name: option for option in plugins.options_of(plugin.cls)}
    scales = SCALING in getattr(plugin.cls, "option_tables", {})
    taken = {}
    for name, value in (own or rotation).items():
        wanted = name == BASE or (SCALING not in given and (own or scales))
        fits = name in known and _is_value(show(value), known[name].annotation)
        if wanted and fits and name not in given:
            taken[name] = show(value)
    if not own and not _can_be_made(_join(spec, given | taken), config.model):
        taken = {}
    missing = []
    for name in (BASE, SCALING):
        if name in rotation and name not in taken and name not in given and not own:
            missing.append(f"{name} {show(rotation[name])}")
    if not missing:
        return taken, []
    of_model = " and the ".join(missing)
    return taken, [f"{plugin.label} rotates with its own frequencies, not the model's {of_model}"]


def _rotation_of(config: LlamaConfig) -> dict[str, Any]:
    """Return the rotation of a trained model as options of Llama's encoding."""
    if not config.encoding:
        cls = plugins.load("encoding", OF_LLAMA).cls
        rotation: dict[str, Any] = cls.options_of_llama(config.rotation, config.length)
        return rotation
    if not is_shipped(config.encoding):
        return {}
    origin = plugins.load("encoding", config.encoding)
    found = {}
    for option in plugins.options_of(origin.cls):
        if option.name == BASE and option.annotation is float:
            found[BASE] = origin.options.get(BASE, option.default)
    if SCALING in origin.options:
        kind = origin.options[SCALING]
        names = [field.name for field in fields(origin.cls.option_tables[SCALING][kind])]
        found |= {
            name: origin.options[name] for name in (SCALING, *names) if name in origin.options
        }
    return found


def _rotates(plugin: Plugin, model: ModelConfig) -> bool:
    """Return whether an encoding changes queries and keys; False if it does not fit the model."""
    try:
        with torch.random.fork_rng(devices=[]):
            encoding = plugin.make(model, 0)
    except InputError:
        return False
    return any(lead.overrides("transform_qk") for lead in encoding.leads)


def is_shipped(spec: str) -> bool:
    """Return whether a spec names only shipped encodings, and no file with code."""
    return split_spec(spec)[0] in plugins.names("encoding") and not FILE.search(spec)


def _can_be_made(spec: str, model: ModelConfig) -> bool:
    try:
        with torch.random.fork_rng(devices=[]):
            plugins.load("encoding", spec).make(model, 0)
    except InputError:
        return False
    return True


def _is_value(text: str, annotation: Any) -> bool:
    try:
        convert(text, annotation)
    except ValueError:
        return False
    return True


def _join(spec: str, options: dict[str, str]) -> str:
    """Return a spec with its options replaced."""
    where, _ = split_spec(spec)
    separator = ":" if isinstance(spec, EncodingSpec) else ","
    pairs = separator.join(f"{name}={value}" for name, value in options.items())
    return type(spec)(f"{where}:{pairs}" if pairs else where)
