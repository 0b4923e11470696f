"""Values of config.json that the decoder cannot compute with."""

from collections.abc import Mapping
from typing import Any

from pe_bench.errors import InputError
from pe_bench.pretrained.families import ACTIVATIONS, OWN, PARTIAL, Family

FLAGS = (
    "tie_word_embeddings",
    "use_sliding_window",
    "attention_bias",
    "mlp_bias",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "add_cross_attention",
)
"""Fields that are true or false."""

NUMBERS = (
    "rope_theta",
    "rope_local_base_freq",
    "factor",
    "embedding_multiplier",
    "residual_multiplier",
    "attention_multiplier",
    "logits_scaling",
    "query_pre_attn_scalar",
    "initializer_range",
)
"""Fields that are numbers, also as part of a rotation."""

NUMBERS_OR_NULL = (
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "partial_rotary_factor",
    "original_max_position_embeddings",
)
"""Fields that are numbers or null, also as part of a rotation."""

COUNTS = ("max_window_layers", "no_rope_layer_interval")
COUNTS_OR_NULL = ("sliding_window", "num_key_value_heads")
"""Fields that are whole numbers, or whole numbers or null."""


def refuse_wrong_types(content: Mapping[str, Any]) -> None:
    """Refuse values of a type that transformers refuses, which could be read as another value.

    Args:
        content: config.json, completed with the defaults of the family, or one of its rotations.

    Raises:
        InputError: a field has such a value; the message names it.
    """
    for fields, right, kinds in (
        (FLAGS, "true or false", bool),
        (NUMBERS, "a number", int | float),
        (NUMBERS_OR_NULL, "a number or null", int | float | None),
        (COUNTS, "a whole number", int),
        (COUNTS_OR_NULL, "a whole number or null", int | None),
    ):
        for field in fields:
            if field not in content:
                continue
            value = content[field]
            is_flag = isinstance(value, bool)  # a bool is an int, too
            if not isinstance(value, kinds) or (is_flag and kinds is not bool):
                raise InputError(f"{field} is {value!r}, but must be {right}")
    for field in ("layer_types", "no_rope_layers"):
        value = content.get(field)
        if value is not None and not value:
            raise InputError(f"{field} is empty, but must have an entry for each layer, or be null")
    for field in ("rope_parameters", "rope_scaling"):
        if not isinstance(content.get(field), dict | None):
            raise InputError(f"{field} is {content[field]!r}, but must be an object or null")


def refuse_what_differs(kind: str, family: Family, content: Mapping[str, Any]) -> None:
    """Refuse fields that describe a computation that the decoder does not implement.

    Args:
        kind: `model_type`.
        family: the family of the model.
        content: config.json, completed with the defaults of the family.

    Raises:
        InputError: a field has such a value; the message names it.
    """
    activation = content[family.activation]
    rotations = content.get("rope_parameters") or content.get("rope_scaling") or {}
    factor = rotations.get(PARTIAL, content.get(PARTIAL))
    proportional = rotations.get("rope_type") == "proportional"
    no_keys = kind not in ("llama", OWN, "phi3", "gpt2", "olmo", "olmo2", "olmo3")
    no_keys = no_keys and content.get("num_key_value_heads") is None
    differences: list[tuple[str, Any, str]] = [
        (
            family.activation,
            activation not in ACTIVATIONS,
            f"the decoder's MLP has {' or '.join(ACTIVATIONS)}",
        ),
        (
            "attention_bias",
            kind != "qwen2" and content.get("attention_bias"),
            "biases of attention are supported for qwen2 and gpt2 only",
        ),
        ("mlp_bias", content.get("mlp_bias"), "biases of the MLP are supported for gpt2 only"),
        ("clip_qkv", content.get("clip_qkv"), "the decoder does not clip queries, keys and values"),
        (
            "scale_attn_weights",
            content.get("scale_attn_weights") is False,
            "the decoder divides query-key products by the root of head_dim",
        ),
        (
            "scale_attn_by_inverse_layer_idx",
            content.get("scale_attn_by_inverse_layer_idx"),
            "the decoder scales query-key products equally in all layers",
        ),
        (
            "add_cross_attention",
            content.get("add_cross_attention"),
            "the decoder has no cross-attention",
        ),
        (
            "use_bidirectional_attention",
            content.get("use_bidirectional_attention"),
            "the decoder attends to earlier tokens only",
        ),
        (
            PARTIAL,
            factor not in (None, 1.0) and not family.partial and not proportional,
            "a Llama rotates all channels",
        ),
        (
            "quantization_config",
            content.get("quantization_config") is not None,
            "the decoder's weights are floating-point numbers",
        ),
        ("num_key_value_heads", no_keys, "it must be a number"),
    ]
    for field, wrong, right in differences:
        if wrong:
            raise InputError(
                f"{field} is {factor if field == PARTIAL else content.get(field)}, but {right}"
            )


def refuse_one_rotation(family: Family, content: Mapping[str, Any]) -> None:
    """Refuse a single rotation that transformers would use in some layers, or not at all.

    Raises:
        InputError: there is one.
    """
    where = f"but {family.architecture} has one rotation for each type of layer"
    if content.get("rope_parameters"):
        raise InputError(f"rope_parameters has no types of layers, {where}: give it by type")
    if "type" in (content.get("rope_scaling") or {}):
        raise InputError("rope_scaling has the old field type: name it rope_type")
    base = family.defaults["rope_theta"]
    if "rope_local_base_freq" not in family.defaults and content["rope_theta"] != base:
        raise InputError(
            f"rope_theta is {content['rope_theta']}, {where}: give rope_parameters by type"
        )
