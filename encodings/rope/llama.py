"""Convert between options of RoPE and the config of a Hugging Face Llama.

| rope_type | scaling |
|---|---|
| default | none |
| linear | pi |
| dynamic | dynamic-ntk, original_length is max_position_embeddings |
| yarn, llama3, longrope | as there |
| proportional | none, `proportional` is partial_rotary_factor |

Otherwise partial_rotary_factor is `rotary`.
"""

import math
from collections.abc import Mapping
from typing import Any

from pe_bench.api import InputError
from pe_bench.encodings.rope.scalings import (
    DynamicNTK,
    Llama3,
    LongRoPE,
    PositionInterpolation,
    Scaling,
    YaRN,
)

L0 = "original_max_position_embeddings"
KNOWN = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", L0, "low_freq_factor", "high_freq_factor"),
    "yarn": (
        "factor",
        L0,
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
    "longrope": ("factor", L0, "attention_factor", "long_factor", "short_factor"),
    "proportional": (),
}
"""Allowed keys of rope_parameters for each rope_type, in addition to the base."""

PARTIAL = "partial_rotary_factor"
ALWAYS = ("rope_type", "rope_theta", "finetuned", PARTIAL)


def options_of(rotation: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Return the options of RoPE for the `rope_parameters` of a config.

    Args:
        rotation: `rope_parameters` as in transformers 5, which include the base.
        length: the config's `max_position_embeddings`.

    Raises:
        InputError: RoPE here does not support the type of rotation or one of its parameters.
    """
    kind = rotation.get("rope_type", "default")
    if kind not in KNOWN:
        raise InputError(f"rope_type '{kind}' is not one of {', '.join(KNOWN)}")
    given = {key: value for key, value in rotation.items() if value is not None}
    for key in given:
        if key not in (*KNOWN[kind], *ALWAYS):
            raise InputError(f"rope_parameters has '{key}', which rope_type {kind} does not have")
    found: dict[str, Any] = {}
    if "rope_theta" in given:
        found["base"] = float(given["rope_theta"])
    if PARTIAL in given:
        found["proportional" if kind == "proportional" else "rotary"] = float(given[PARTIAL])
    if kind in ("default", "proportional"):
        return found
    original = int(given.get(L0, length))
    factor = float(given.get("factor", length / original))
    if kind == "linear":
        return found | {"scaling": "pi", "factor": factor}
    if kind == "dynamic":
        return found | {"scaling": "dynamic-ntk", "factor": factor, "original_length": length}
    found |= {"scaling": kind, "factor": factor, "original_length": original}
    if kind == "llama3":
        found["beta_slow"] = float(_needed(given, "low_freq_factor"))
        found["beta_fast"] = float(_needed(given, "high_freq_factor"))
        return found
    if kind == "yarn":
        found["beta_fast"] = float(given.get("beta_fast") or 32)
        found["beta_slow"] = float(given.get("beta_slow") or 1)
        found["truncate"] = bool(given.get("truncate", True))
        if given.get("mscale") and given.get("mscale_all_dim"):
            gains = [_gain(factor, given[name]) for name in ("mscale", "mscale_all_dim")]
            found["attention_factor"] = gains[0] / gains[1]
    else:
        found["factors"] = _text(_needed(given, "long_factor"))
        found["short_factors"] = _text(_needed(given, "short_factor"))
    if "attention_factor" in given:
        found["attention_factor"] = float(given["attention_factor"])
    return found


def fields_of(scaling: Scaling) -> dict[str, Any] | None:
    """Return the fields of a config for a scaling; None: transformers does not have it.

    These are `rope_parameters`, with the base, and `max_position_embeddings`.
    """
    parameters = _parameters_of(scaling)
    if parameters is None:
        return None
    length = scaling.train_length
    if isinstance(scaling, DynamicNTK):
        length = scaling.l0
    elif L0 in parameters:
        length = int(parameters["factor"] * parameters[L0])
    parameters["rope_theta"] = scaling.base
    return {"rope_parameters": parameters, "max_position_embeddings": length}


def _parameters_of(scaling: Scaling) -> dict[str, Any] | None:
    if type(scaling) is Scaling:
        return {"rope_type": "default"}
    if isinstance(scaling, PositionInterpolation):
        return {"rope_type": "linear", "factor": scaling.factor}
    if isinstance(scaling, DynamicNTK):
        if scaling.train_length > scaling.l0:  # here shorter sequences count as train_length tokens
            return None
        return {"rope_type": "dynamic", "factor": scaling.factor or 1.0}
    if isinstance(scaling, Llama3):
        return {
            "rope_type": "llama3",
            "factor": scaling.factor or 8.0,
            L0: scaling.l0,
            "low_freq_factor": scaling.beta_slow,
            "high_freq_factor": scaling.fast,
        }
    if isinstance(scaling, YaRN) and scaling.ramp == "index":
        return {
            "rope_type": "yarn",
            "factor": scaling.factor,
            L0: scaling.l0,
            "attention_factor": scaling.gain(0),
            "beta_fast": scaling.fast,
            "beta_slow": scaling.beta_slow,
            "truncate": scaling.truncate,
        }
    if isinstance(scaling, LongRoPE):
        if scaling.dynamic and scaling.train_length > scaling.l0:
            return None
        return {
            "rope_type": "longrope",
            "factor": scaling.factor,
            L0: scaling.l0,
            "attention_factor": scaling.gain(0),
            "long_factor": scaling.long,
            "short_factor": scaling.short or scaling.long,
        }
    return None


def _needed(given: Mapping[str, Any], key: str) -> Any:
    if key not in given:
        raise InputError(f"rope_parameters has no '{key}', which its rope_type needs")
    return given[key]


def _gain(factor: float, scale: float) -> float:
    """Return the attention factor of YaRN in DeepSeek's form, with a scaled logarithm."""
    return 1.0 if factor <= 1 else 1 + 0.1 * scale * math.log(factor)


def _text(factors: list[float]) -> str:
    return ";".join(str(float(factor)) for factor in factors)
