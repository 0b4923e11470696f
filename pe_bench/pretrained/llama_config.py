"""Conversion between config.json of a Hugging Face Llama and the shape and rotation of a decoder.

Unsupported values raise an error that names the field.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pe_bench.config import ModelConfig
from pe_bench.errors import InputError

OWN = "pe_bench"
"""`model_type` of a decoder that no class of transformers supports, and the key of fields that
transformers does not have."""

KINDS = ("llama", "mistral", "qwen2")
NEEDED = {
    "vocab_size": "vocab_size",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "hidden_size": "width",
    "intermediate_size": "mlp_width",
    "rms_norm_eps": "norm_eps",
}
"""Field of config.json -> field of `ModelConfig`."""

ORIGINAL = "original_max_position_embeddings"
WITHOUT_ORIGINAL = ("default", "linear", "dynamic")
"""Types of rotation that do not depend on the length before scaling."""

AUTO_MAP = {
    "AutoConfig": "modeling_pe_bench.PeBenchConfig",
    "AutoModelForCausalLM": "modeling_pe_bench.PeBenchForCausalLM",
}
FACTS = ("train_length", "digit_ids", "separator_ids")
"""Fields of `ModelConfig` that configs of transformers do not have."""


@dataclass(frozen=True)
class LlamaConfig:
    """Content of a config.json.

    Attributes:
        model: shape of the decoder, with the training length before any scaling.
        rotation: `rope_parameters` in the format of transformers 5, including the base.
        length: `max_position_embeddings`.
        encoding: spec of the encoding in a checkpoint of pe-bench; empty: a plain Llama.
    """

    model: ModelConfig
    rotation: Mapping[str, Any]
    length: int
    encoding: str = ""


def read_config(path: Path) -> LlamaConfig:
    """Read a config.json.

    Raises:
        InputError: the file cannot be read, or the decoder does not support the model.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"{path.parent} has no {path.name} ({error.strerror}): give the folder of a Hugging "
            "Face checkpoint"
        ) from None
    except ValueError as error:
        raise InputError(f"{path} is no JSON ({error}): download it again") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is no JSON object: download it again")
    try:
        return parse_config(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (AttributeError, TypeError, ValueError) as error:  # such as a string instead of a number
        raise InputError(f"{path} has a value of the wrong type ({error})") from None


def parse_config(content: Mapping[str, Any]) -> LlamaConfig:
    """Parse the content of a config.json.

    Raises:
        InputError: the decoder does not support the model; the message names the field.
    """
    kind = content.get("model_type")
    if kind not in (*KINDS, OWN):
        raise InputError(
            f"model_type is '{kind}', and only {', '.join(KINDS)} have the decoder's architecture"
        )
    for field in (*NEEDED, "max_position_embeddings"):
        if content.get(field) is None:
            raise InputError(f"{field} is missing, which every Llama's config has")
        kinds = int | float if field == "rms_norm_eps" else int
        if not isinstance(content[field], kinds):
            raise InputError(f"{field} is '{content[field]}', and it should be a number")
    _refuse_what_differs(kind, content)
    own = content.get(OWN) or {}
    rotation = _rotation(content) if kind != OWN else {}
    length = content["max_position_embeddings"]
    shape: dict[str, Any] = {name: content[field] for field, name in NEEDED.items()}
    shape |= {
        "kv_heads": content.get("num_key_value_heads") or 0,
        "init_std": content.get("initializer_range", 0.02),
        "tied_embeddings": bool(content.get("tie_word_embeddings", False)),
        "qkv_bias": kind == "qwen2" or bool(own.get("qkv_bias")),
        "train_length": int(own.get("train_length") or rotation.get(ORIGINAL) or length),
        "digit_ids": tuple(own.get("digit_ids", ())),
        "separator_ids": tuple(own.get("separator_ids", ())),
    }
    encoding = own.get("encoding", "") if kind == OWN else ""
    return LlamaConfig(ModelConfig(**shape), rotation, length, encoding)


def make_config(
    model: ModelConfig, fields: Mapping[str, Any] | None, encoding: str
) -> dict[str, Any]:
    """Return the content of a config.json.

    Args:
        model: shape of the decoder.
        fields: return value of `Encoding.llama_fields`.
        encoding: spec of the encoding, which is written if `fields` is None.
    """
    content = {field: getattr(model, name) for field, name in NEEDED.items()}
    content |= {
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tied_embeddings,
        "max_position_embeddings": model.train_length,
    }
    facts = {name: value for name, value in asdict(model).items() if name in FACTS}
    if fields is None:
        facts |= {"encoding": encoding, "qkv_bias": model.qkv_bias}
        return {**content, "model_type": OWN, "auto_map": AUTO_MAP, OWN: facts}
    kind, architecture = ("llama", "LlamaForCausalLM")
    if model.qkv_bias:
        kind, architecture = ("qwen2", "Qwen2ForCausalLM")
    return {**content, **fields, "model_type": kind, "architectures": [architecture], OWN: facts}


def _rotation(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return `rope_parameters`; until transformers 5 they were `rope_theta` and `rope_scaling`."""
    forms = []
    for name in ("rope_parameters", "rope_scaling"):
        if content.get(name):
            forms.append(_complete_rotation(content[name], content))
    if len(forms) == 2 and forms[0] != forms[1]:
        raise InputError(
            "rope_parameters and rope_scaling are both there and differ: keep one of them, with "
            "the base as its rope_theta"
        )
    return forms[0] if forms else _complete_rotation({}, content)


def _complete_rotation(given: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rotation in the format of transformers 5, completed from top-level fields.

    Fields that do not affect logits are omitted.
    """
    rotation = dict(given)
    if any(isinstance(value, dict) for value in rotation.values()):
        raise InputError(
            "rope_parameters differ between layers, and the decoder has one rotation for all layers"
        )
    rotation.setdefault("rope_type", rotation.pop("type", "default"))
    rotation.pop("type", None)
    if rotation.get("rope_theta") is None:
        rotation["rope_theta"] = content.get("rope_theta") or 10_000.0
    if content.get(ORIGINAL) is not None:
        rotation[ORIGINAL] = content[ORIGINAL]
    if rotation["rope_type"] in WITHOUT_ORIGINAL:
        rotation.pop(ORIGINAL, None)
    if rotation.get("partial_rotary_factor") == 1:
        del rotation["partial_rotary_factor"]
    return rotation


def _refuse_what_differs(kind: str, content: Mapping[str, Any]) -> None:
    """Refuse fields that describe another computation than that of the decoder."""
    heads = content["num_attention_heads"]
    width = content["hidden_size"]
    head_dim = content.get("head_dim")
    window = content.get("sliding_window", 4096)  # transformers' default in Mistral and Qwen2
    windowed = kind == "mistral" or (kind == "qwen2" and content.get("use_sliding_window"))
    layers = set(content.get("layer_types") or ()) - {"full_attention"}
    full = content.get("partial_rotary_factor") in (None, 1.0)
    no_keys = kind != "llama" and content.get("num_key_value_heads") is None
    differences: list[tuple[str, Any, str]] = [
        ("hidden_act", content.get("hidden_act", "silu") != "silu", "the decoder's MLP has silu"),
        (
            "attention_bias",
            kind == "llama" and content.get("attention_bias"),
            "the decoder's attention has biases of q, k and v or none",
        ),
        ("mlp_bias", content.get("mlp_bias"), "the decoder's MLP has no biases"),
        (
            "head_dim",
            head_dim is not None and head_dim * heads != width,
            f"the decoder has hidden_size / num_attention_heads, {width}/{heads}",
        ),
        (
            "sliding_window",
            windowed and window is not None,
            "the decoder attends to all earlier tokens",
        ),
        ("layer_types", layers, "the decoder has full_attention in all layers"),
        ("partial_rotary_factor", not full, "a Llama rotates all channels"),
        (
            "quantization_config",
            content.get("quantization_config") is not None,
            "the decoder's weights are floating-point numbers",
        ),
        ("num_key_value_heads", no_keys, "it should be a number"),
    ]
    for field, wrong, right in differences:
        if wrong:
            value = window if field == "sliding_window" else content.get(field)
            raise InputError(f"{field} is {value}, and {right}")
