"""Conversion between config.json of a Hugging Face model and the shape and rotation of a decoder.

Unsupported values raise an error that names the field.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pe_bench.config import BlockConfig, ModelConfig
from pe_bench.errors import InputError
from pe_bench.pretrained.families import (
    ACTIVATIONS,
    FAMILIES,
    FULL,
    OWN,
    PARTIAL,
    SLIDING,
    Family,
    block_fields,
    complete_fields,
)
from pe_bench.pretrained.layer_plan import LOCAL, plan_layers
from pe_bench.pretrained.refusals import (
    refuse_one_rotation,
    refuse_what_differs,
    refuse_wrong_types,
)
from pe_bench.pretrained.tensor_names import TensorNames
from pe_bench.registry.plugins import Plugin

NEEDED = {
    "vocab_size": "vocab_size",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "hidden_size": "width",
    "intermediate_size": "mlp_width",
    "rms_norm_eps": "norm_eps",
}
"""Field of config.json -> field of `ModelConfig`."""

LARGEST = {
    "vocab_size": 10**8,
    "num_hidden_layers": 10**4,
    "num_attention_heads": 10**5,
    "hidden_size": 10**7,
    "head_dim": 10**5,
}
"""Fields of config.json that are sizes, and the largest plausible ones."""

WRONG_VALUES = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What a computation with a wrong value in config.json raises."""

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
        encoding: spec of the encoding whose parameters the files contain, of a checkpoint of
            pe-bench or of learned positions; empty: the encoding of Llama, or `layers`.
        encoding_version: version of its code when the model was saved; empty: unknown.
        layers: spec of an encoding whose layers differ, without rotations, or of learned positions;
            empty: equal layers, which rotate.
        local_rotation: like `rotation`, for layers with a window; None: the same rotation.
        family: family of the model, with the names of its tensors.
    """

    model: ModelConfig
    rotation: Mapping[str, Any]
    length: int
    encoding: str = ""
    encoding_version: str = ""
    layers: str = ""
    local_rotation: Mapping[str, Any] | None = None
    family: Family = FAMILIES["llama"]

    def of_part(self, option: str) -> "LlamaConfig":
        """Return the config for an encoding that is an option of another encoding."""
        if option == LOCAL and self.local_rotation is not None:
            return replace(self, rotation=self.local_rotation)
        return self

    @property
    def names(self) -> TensorNames:
        """Names of the tensors in the files and the order of their rows."""
        factor = self.rotation.get(PARTIAL) if self.family.partial else None
        turning = None if factor is None else int(self.model.head_dim * factor)
        return TensorNames(self.family, turning)


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
        raise InputError(f"{path} is not JSON ({error}): download it again") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a JSON object: download it again")
    try:
        return parse_config(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except WRONG_VALUES as error:  # such as a string instead of a number
        raise InputError(f"{path} has a value of the wrong type or size ({error})") from None


def parse_config(content: Mapping[str, Any]) -> LlamaConfig:
    """Parse the content of a config.json.

    Raises:
        InputError: the decoder does not support the model; the message names the field.
    """
    kind = content.get("model_type")
    if kind not in (*FAMILIES, OWN):
        raise InputError(
            f"model_type is '{kind}', and only {', '.join(FAMILIES)} have the decoder's "
            "architecture"
        )
    family = FAMILIES.get(kind, FAMILIES["llama"])
    content = complete_fields(family, content)
    for field in (*NEEDED, "max_position_embeddings"):
        if content.get(field) is None:
            raise InputError(f"{field} is missing, but the config of every Llama has it")
        kinds = int | float if field == "rms_norm_eps" else int
        if not isinstance(content[field], kinds) or isinstance(content[field], bool):
            raise InputError(f"{field} is '{content[field]}', but must be a number")
    for field, largest in LARGEST.items():
        size = content.get(field)
        if size is not None and not (isinstance(size, int) and 0 < size <= largest):
            raise InputError(f"{field} is {size!r}, but must be from 1 to {largest:,}")
    refuse_wrong_types(content)
    content.setdefault(family.activation, next(iter(ACTIVATIONS)))
    refuse_what_differs(kind, family, content)
    own = content.get(OWN) or {}
    rotation: dict[str, Any] = {}
    local: dict[str, Any] | None = None
    layers = encoding = ""
    if kind == OWN:
        encoding = own.get("encoding", "")
    else:
        layers = plan_layers(family, content)
    if family.learned_positions:
        encoding = layers
    elif kind != OWN:
        rotation, local = _rotations(family, content)
    length = content["max_position_embeddings"]
    shape: dict[str, Any] = {name: content[field] for field, name in NEEDED.items()}
    shape |= {
        "kv_heads": content.get("num_key_value_heads") or 0,
        "init_std": content.get("initializer_range", 0.02),
        "tied_embeddings": bool(content.get("tie_word_embeddings", False)),
        "qkv_bias": bool(own.get("qkv_bias")),
        "qk_norm": own.get("qk_norm", "none"),
        "train_length": int(own.get("train_length") or rotation.get(ORIGINAL) or length),
        "digit_ids": tuple(own.get("digit_ids", ())),
        "separator_ids": tuple(own.get("separator_ids", ())),
        "block": BlockConfig(**(own.get("block") or block_fields(family, content))),
        **family.model,
    }
    return LlamaConfig(
        model=ModelConfig(**shape),
        rotation=rotation,
        length=length,
        encoding=encoding,
        encoding_version=own.get("encoding_version", ""),
        layers=layers,
        local_rotation=local,
        family=family,
    )


def make_config(model: ModelConfig, encoding: Plugin) -> dict[str, Any]:
    """Return the content of the config.json of a model that needs this package.

    Args:
        model: shape of the decoder.
        encoding: the encoding.
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
    facts |= {"encoding": encoding.spec, "encoding_version": encoding.version}
    facts |= {"qkv_bias": model.qkv_bias, "qk_norm": model.qk_norm}
    if model.block != BlockConfig():
        facts["block"] = asdict(model.block)
    return {**content, "model_type": OWN, "auto_map": AUTO_MAP, OWN: facts}


def _rotations(
    family: Family, content: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return `rope_parameters`, and separate ones for layers with a window if there are any.

    Before transformers 5, these fields were `rope_theta`, `rope_scaling` and
    `rope_local_base_freq`.
    """
    parts = content.get("rope_parameters") or {}
    by_type = parts.keys() & {FULL, SLIDING}
    if not by_type:
        rotation = _rotation(content)
        if not family.two_rotations:
            return rotation, None
        refuse_one_rotation(family, content)
        base = content.get("rope_local_base_freq") or rotation["rope_theta"]
        return rotation, {"rope_type": "default", "rope_theta": base}
    if not family.two_rotations:
        raise InputError(
            "rope_parameters differ between layers, but this model_type has one rotation"
        )
    own = {name: value for name, value in content.items() if name != "rope_parameters"}
    full = _rotation({**own, "rope_parameters": parts.get(FULL) or {}})
    local = _complete_rotation(
        parts.get(SLIDING) or {},
        {**own, "rope_theta": content.get("rope_local_base_freq") or content["rope_theta"]},
    )
    return full, local


def _rotation(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return `rope_parameters` in the format of transformers 5."""
    forms = []
    for name in ("rope_parameters", "rope_scaling"):
        if content.get(name):
            forms.append(_complete_rotation(content[name], content))
    if len(forms) == 2 and forms[0] != forms[1]:
        raise InputError(
            "rope_parameters and rope_scaling both exist and differ: keep one of them, with "
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
            f"rope_parameters are for {', '.join(rotation)}, which are not layer types"
        )
    refuse_wrong_types(rotation)
    rotation.setdefault("rope_type", rotation.pop("type", "default"))
    rotation.pop("type", None)
    if rotation.get("rope_theta") is None:
        rotation["rope_theta"] = content.get("rope_theta") or 10_000.0
    if content.get(ORIGINAL) is not None:
        rotation[ORIGINAL] = content[ORIGINAL]
    if rotation["rope_type"] in WITHOUT_ORIGINAL:
        rotation.pop(ORIGINAL, None)
    if rotation.get(PARTIAL) is None and content.get(PARTIAL) is not None:
        rotation[PARTIAL] = content[PARTIAL]
    if rotation.get(PARTIAL) == 1:
        del rotation[PARTIAL]
    return rotation
