"""RoPE's scalings by name, and how it takes their options."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from pe_bench.api import InputError
from pe_bench.encodings.rope.scalings import (
    NTK,
    DynamicNTK,
    DynamicPI,
    DynamicYaRN,
    Llama3,
    LongRoPE,
    PositionInterpolation,
    Scaling,
    YaRN,
)
from pe_bench.encodings.rope.selections import Clipped, HoPE, RoPEID

SCALINGS: dict[str, type[Scaling]] = {
    "none": Scaling,
    "pi": PositionInterpolation,
    "ntk": NTK,
    "yarn": YaRN,
    "llama3": Llama3,
    "longrope": LongRoPE,
    "dynamic-pi": DynamicPI,
    "dynamic-ntk": DynamicNTK,
    "dynamic-yarn": DynamicYaRN,
    "hope": HoPE,
    "clipped": Clipped,
    "rope-id": RoPEID,
}


def options_of(cls: type[Scaling]) -> list[str]:
    """Return the names of a scaling's options."""
    return [field.name for field in fields(cls) if field.default is not MISSING]


def take_options(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the options that belong to any scaling, and return them."""
    names = [name for cls in SCALINGS.values() for name in options_of(cls)]
    return {name: options.pop(name) for name in dict.fromkeys(names) if name in options}


def make_scaling(
    name: str, options: Mapping[str, Any], *, base: float, planes: int, train_length: int
) -> Scaling:
    """Return the scaling of that name.

    Raises:
        InputError: an option that it does not have, or a value out of range.
    """
    cls = SCALINGS[name]
    for option in options:
        if option not in options_of(cls):
            raise InputError(f"{option} has no effect with scaling={name}: leave it out")
    if cls.needs_factor and options.get("factor") is None:
        raise InputError(
            f"scaling={name} needs a factor, by which texts are longer than in training"
        )
    return cls(base=base, planes=planes, train_length=train_length, **options)
