"""The config.json of a decoder that a class of transformers computes without code of this package.

A family of models fits if its config, read again, describes the same decoder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pe_bench.config import ModelConfig
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.pretrained.families import (
    ACTIVATIONS,
    FAMILIES,
    FULL,
    OWN,
    SCALES,
    SLIDING,
    Family,
    complete_fields,
)
from pe_bench.pretrained.layer_plan import find_rotating, find_windows
from pe_bench.pretrained.llama_config import FACTS, NEEDED, parse_config

UNUSED_ROTATION: Mapping[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
"""Rotation that no layer uses."""

SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Fields whose defaults in transformers are ids of released models."""


@dataclass(frozen=True)
class LayerKind:
    """How a layer finds positions.

    Attributes:
        window: number of last keys that are visible; None: all.
        rotation: `rope_parameters` of its rotation; empty: it has no positions.
        length: `max_position_embeddings` of its rotation.
    """

    window: int | None
    rotation: Mapping[str, Any]
    length: int


def plain_config(model: Decoder) -> dict[str, Any] | None:
    """Return the config.json of a plain model of transformers; None: no family fits.

    Args:
        model: the decoder, with its encoding.
    """
    layers = _find_layers(model)
    if layers is None:
        return None
    for kind, family in FAMILIES.items():
        if not family.can_be_written:
            continue
        content = _make_content(kind, family, model.config, layers)
        if content is not None and _describes(content, family, model.config, layers):
            return content
    return None


def _find_layers(model: Decoder) -> list[LayerKind] | None:
    """Return the kind of each layer; None if a layer has any other encoding."""
    found = []
    for layer in range(model.config.layers):
        encoding = model.encoding_of(layer)
        fields = encoding.llama_fields()
        visible = encoding.visible
        if fields is None or visible.chunk is not None or visible.first:
            return None
        length = fields.get("max_position_embeddings", 0)
        found.append(LayerKind(visible.window, fields.get("rope_parameters", {}), length))
    return found


def _make_content(
    kind: str, family: Family, model: ModelConfig, layers: Sequence[LayerKind]
) -> dict[str, Any] | None:
    """Return a config.json of a family; None if it cannot express the windows and rotations."""
    rotations = _rotations(family, layers)
    sizes = {layer.window for layer in layers} - {None}
    if rotations is None or len(sizes) > 1 or (sizes and not family.windows):
        return None
    if 1 in sizes:  # the cache of transformers keeps window - 1 keys, but all of them for 0
        return None
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    content = {field: getattr(model, name) for field, name in NEEDED.items()}
    facts = {name: value for name, value in asdict(model).items() if name in FACTS}
    content |= {
        "model_type": kind,
        "architectures": [family.architecture],
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        family.activation: activations[model.block.activation],
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tied_embeddings,
        "max_position_embeddings": max(one.length for one in layers) or model.train_length,
        "rope_parameters": rotations,
        OWN: facts,
    }
    content |= dict.fromkeys(SPECIAL)
    content |= _scales(family, model)
    if family.windows and (sizes or "use_sliding_window" not in family.defaults):
        unused = content["max_position_embeddings"] if family.needs_window else None
        content["sliding_window"] = sizes.pop() if sizes else unused
        if "layer_types" not in family.unread:
            content["layer_types"] = [FULL if one.window is None else SLIDING for one in layers]
        if "use_sliding_window" in family.defaults:
            content["use_sliding_window"] = True
    if family.without_rotation == "listed":
        content["no_rope_layers"] = [int(bool(one.rotation)) for one in layers]
    return content


def _rotations(family: Family, layers: Sequence[LayerKind]) -> dict[str, Any] | None:
    """Return `rope_parameters`; None if the family cannot express those of the layers."""
    full = _only([one.rotation for one in layers if one.window is None])
    local = _only([one.rotation for one in layers if one.window is not None])
    every = _only([one.rotation for one in layers])
    if family.two_rotations and full is not None and local is not None:
        return {FULL: dict(full), SLIDING: dict(local)}
    return None if every is None else dict(every)


def _only(rotations: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the rotation of layers that rotate; None if there are several."""
    different: list[Mapping[str, Any]] = []
    for one in rotations:
        if one and one not in different:
            different.append(one)
    if len(different) > 1:
        return None
    return different[0] if different else UNUSED_ROTATION


def _scales(family: Family, model: ModelConfig) -> dict[str, Any]:
    """Return the factors and caps that a family has fields for."""
    block = model.block
    found: dict[str, Any] = {}
    for name, own in SCALES.items():
        if name in family.defaults:
            found[name] = getattr(block, own)
            if name.endswith("softcapping"):  # transformers would divide by 0
                found[name] = found[name] or None
    if "logits_scaling" in family.defaults:
        found["logits_scaling"] = 1 / block.logit_scale
    if "query_pre_attn_scalar" in family.defaults and block.score_scale:
        found["query_pre_attn_scalar"] = round(block.score_scale**-2)
    return found


def _describes(
    content: Mapping[str, Any], family: Family, model: ModelConfig, layers: Sequence[LayerKind]
) -> bool:
    """Return whether a config.json, read again, describes the same decoder."""
    try:
        if parse_config(content).model != model:
            return False
    except InputError:
        return False
    complete = complete_fields(family, content)
    windows = find_windows(family, complete)
    same_windows = windows == [one.window is not None for one in layers]
    rotating = find_rotating(family, complete, windows)
    return same_windows and rotating == [bool(one.rotation) for one in layers]
