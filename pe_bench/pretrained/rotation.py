"""Transfer of a trained model's rotation to other encodings."""

import re
from dataclasses import fields
from typing import Any

import torch

from pe_bench.config import ModelConfig
from pe_bench.errors import InputError
from pe_bench.pretrained.llama_config import LlamaConfig
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.options import (
    TABLES,
    EncodingSpec,
    convert,
    plugin_options,
    show,
    split_spec,
)
from pe_bench.registry.plugins import Plugin

FILE = re.compile(r"[/\\]|\.py\b")
OF_LLAMA = "rope"
"""The encoding of a plain Llama."""

BASE = "base"
SCALING = "scaling"
"""Option that has sub-options. A spec that sets it replaces these as well."""


def with_rotation(
    spec: str, config: LlamaConfig, origin: Plugin | None = None
) -> tuple[str, list[str]]:
    """Complete a spec with the base and the scaling of a trained model.

    Args:
        spec: spec of an encoding.
        config: config of the trained model.
        origin: encoding of the trained model; None: the encoding in `config`, if it is shipped.

    Returns:
        The spec, and a sentence for each encoding in it that rotates queries and keys with other
        frequencies than the model although the spec does not give them.

    Raises:
        InputError: the spec is wrong, or the encoding does not support the rotation.
    """
    where, given = split_spec(spec)
    plugin = plugins.load("encoding", spec)
    if origin is None and names_only_shipped(config.encoding):
        origin = plugins.load("encoding", config.encoding)
    notes: list[str] = []
    parts = {}
    for option in plugin_options(plugin.cls):
        if option.annotation is EncodingSpec:
            inside = EncodingSpec(given.get(option.name, option.default))
            parts[option.name], of_part = with_rotation(inside, config.of_part(option.name), origin)
            notes += of_part
    full = _join(spec, given | parts)
    own = plugin.cls.options_of_llama(config.rotation, config.length)
    if own or (not parts and _rotates(plugin, config.model)):
        taken, notes = _choose_options(spec, plugin, own, config, origin)
        full = _join(spec, given | parts | taken)
    if where in catalogue.names("encoding"):
        full = type(spec)(plugins.load("encoding", full).label)
    return (full.replace(",", ":") if isinstance(spec, EncodingSpec) else full), notes


def describe_rotation(encoding: Plugin, origin: Plugin, model: ModelConfig) -> list[str]:
    """Return sentences if an encoding does not rotate as the trained model that it is put into.

    For a model that is trained here: the encoding keeps its options, unlike in a checkpoint.

    Args:
        encoding: encoding that is put into the trained model.
        origin: encoding of the trained model.
        model: shape of the trained model.
    """
    config = LlamaConfig(model, rotation={}, length=model.train_length, encoding=origin.spec)
    full, notes = with_rotation(encoding.spec, config, origin)
    if plugins.load("encoding", full).options != encoding.options:
        of_origin = f"not those of {origin.label}: write {full} to take them over"
        notes.append(f"{encoding.label} rotates with its own frequencies, {of_origin}")
    return notes


def _choose_options(
    spec: str,
    plugin: Plugin,
    own: dict[str, Any],
    config: LlamaConfig,
    origin: Plugin | None,
) -> tuple[dict[str, str], list[str]]:
    """Return options for as much of the rotation as an encoding supports, and notes on the rest.

    Args:
        spec: spec of the encoding.
        plugin: the encoding.
        own: return value of the encoding's `options_of_llama`.
        config: config of the trained model.
        origin: encoding of the trained model; None: of Llama, or of a file.
    """
    _, given = split_spec(spec)
    rotation = _rotation_of(config, origin)
    if BASE not in given and not own and not rotation and _may_differ(plugin, config, origin):
        of_model = f"which may differ from those of {config.encoding}"
        return {}, [f"{plugin.label} rotates with its own frequencies, {of_model}"]
    known = {option.name: option for option in plugin_options(plugin.cls)}
    scales = SCALING in getattr(plugin.cls, TABLES, {})
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


def _rotation_of(config: LlamaConfig, origin: Plugin | None) -> dict[str, Any]:
    """Return the rotation of a trained model as options of Llama's encoding; empty if unknown."""
    if not config.encoding:
        cls = plugins.load("encoding", OF_LLAMA).cls
        rotation: dict[str, Any] = cls.options_of_llama(config.rotation, config.length)
        return rotation
    return {} if origin is None else _options_of_rotation(origin)


def _options_of_rotation(encoding: Plugin) -> dict[str, Any]:
    """Return base and scaling of an encoding, or of its parts if all that have a base agree."""
    found: dict[str, Any] = {}
    of_parts: list[dict[str, Any]] = []
    for option in plugin_options(encoding.cls):
        value = encoding.options.get(option.name, option.default)
        if option.name == BASE and option.annotation is float:
            found[BASE] = value
        if option.annotation is EncodingSpec:
            part = plugins.load("encoding", value)
            of_parts += filter(None, [_options_of_rotation(part)])
    if SCALING in encoding.options:
        kind = encoding.options[SCALING]
        names = [field.name for field in fields(encoding.cls.option_tables[SCALING][kind])]
        found |= {
            name: encoding.options[name] for name in (SCALING, *names) if name in encoding.options
        }
    if found or not of_parts:
        return found
    return of_parts[0] if all(part == of_parts[0] for part in of_parts) else {}


def _may_differ(plugin: Plugin, config: LlamaConfig, origin: Plugin | None) -> bool:
    """Return whether an encoding's rotation may differ from a model's unknown rotation."""
    if origin is None:
        return bool(config.encoding) and plugin.spec != config.encoding
    return plugin.cls is not origin.cls and _rotates(origin, config.model)


def _rotates(plugin: Plugin, model: ModelConfig) -> bool:
    """Return whether an encoding changes queries and keys; False if it does not fit the model."""
    try:
        with torch.random.fork_rng(devices=[]):
            encoding = plugin.make(model, 0)
    except InputError:
        return False
    return any(each.overrides("transform_qk") for each in encoding.layer_kinds)


def names_only_shipped(spec: str) -> bool:
    """Return whether a spec names only shipped encodings, and no file with code."""
    return split_spec(spec)[0] in catalogue.names("encoding") and not FILE.search(spec)


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
