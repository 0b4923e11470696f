"""Windows, rotations and layers without positions of a pretrained model, as a hybrid encoding."""

from collections.abc import Mapping
from typing import Any

from pe_bench.errors import InputError
from pe_bench.pretrained.families import FULL, SLIDING, Family
from pe_bench.registry.options import split_spec

OF_LAYERS = "hybrid"
"""The encoding of models with windows or with different layers."""

LEARNED = "learned"
"""The encoding of models with a learned vector for each position."""

LOCAL = "local"
"""Option of `hybrid` for the encoding of layers with a window."""

ROTATING = "rope"
NO_POSITIONS = "nope"

Layer = tuple[bool, bool]  # has a window, rotates queries and keys


def plan_layers(family: Family, content: Mapping[str, Any]) -> str:
    """Return the spec of the layers of a model, without rotations; empty for the layers of Llama.

    Learned positions are a spec too.

    Args:
        family: the family of the model.
        content: its config.json, completed with the defaults of the family.

    Raises:
        InputError: the layers cannot be expressed; the message names the field.
    """
    if family.learned_positions:
        return f"{LEARNED}:rows={content['max_position_embeddings']}"
    windows = find_windows(family, content)
    rotates = find_rotating(family, content, windows)
    layers = list(zip(windows, rotates, strict=True))
    kinds = sorted(set(layers), reverse=True)  # windows first, then rotating
    if kinds == [(False, True)]:
        return ""
    if len(kinds) > 2 or any(window for window, _ in kinds[1:]):
        raise InputError(
            "layer_types and no_rope_layers define more than two kinds of layers, or two with a "
            "window; the decoder supports one kind with a window and one without"
        )
    options = {LOCAL: _encoding(kinds[0])}
    if len(kinds) == 2:
        options["global"] = _encoding(kinds[1])
    if kinds[0][0]:
        options["window"] = str(content["sliding_window"])
    options["pattern"] = _pattern(layers, kinds[0])
    return f"{OF_LAYERS}:{','.join(f'{name}={value}' for name, value in options.items())}"


def with_layers(spec: str, layers: str) -> str:
    """Complete the spec of an encoding with the layers of a model, if it is of the same kind.

    Args:
        spec: the spec.
        layers: return value of `plan_layers`.

    Raises:
        InputError: the spec has an encoding for global layers, and the model has none.
    """
    where, given = split_spec(spec)
    of_model, options = split_spec(layers)
    if where != of_model:
        return spec
    if "every" in given:  # the spec sets another order of the layers
        options.pop("pattern", None)
    complete = options | given
    if "global" in given and set(complete.get("pattern", "g")) == {"l"}:
        raise InputError(
            f"{where}:global has no effect, because every layer of the model is local: set "
            "pattern or every, too"
        )
    pairs = (f"{name}={value}" for name, value in complete.items())
    return f"{where}:{','.join(pairs)}"


def find_windows(family: Family, content: Mapping[str, Any]) -> list[bool]:
    """Return for each layer whether it has a window."""
    layers: int = content["num_hidden_layers"]
    types = content.get("layer_types")
    window = content.get("sliding_window") if family.windows else None
    if content.get("use_sliding_window") is False:
        window = None
    if types:
        known = {FULL, SLIDING} if window is not None else {FULL}
        unknown = sorted(set(types) - known)
        if unknown or len(types) != layers:
            raise InputError(
                f"layer_types has {len(types)} layers of the types {', '.join(sorted(set(types)))}"
                f", but the decoder needs {layers} of {' or '.join(sorted(known))}"
            )
        return [one == SLIDING for one in types]
    if window is None:
        return [False] * layers
    if family.without_rotation == "listed":
        return [not rotates for rotates in find_rotating(family, content, [True] * layers)]
    first = content.get("max_window_layers") or 0
    step = content.get("sliding_window_pattern")
    step = 0 if step is None else step
    if type(step) is not int:  # not True either
        raise InputError(f"sliding_window_pattern is {step}, but must be a number of layers")
    return [i >= first and (step == 0 or (i + 1) % step != 0) for i in range(layers)]


def find_rotating(family: Family, content: Mapping[str, Any], windows: list[bool]) -> list[bool]:
    """Return for each layer whether it rotates queries and keys."""
    if family.without_rotation == "full" and content["sliding_window"] is not None:
        return windows
    if family.without_rotation != "listed":
        return [True] * len(windows)
    listed = content.get("no_rope_layers")
    if listed is None:
        step = content["no_rope_layer_interval"]
        return [(i + 1) % step != 0 for i in range(len(windows))]
    if len(listed) < len(windows):
        raise InputError(
            f"no_rope_layers has {len(listed)} entries, but there are {len(windows)} layers"
        )
    return [bool(one) for one in listed[: len(windows)]]


def _encoding(layer: Layer) -> str:
    return ROTATING if layer[1] else NO_POSITIONS


def _pattern(layers: list[Layer], local: Layer) -> str:
    """Return the shortest pattern of local and global layers that repeats."""
    letters = "".join("l" if layer == local else "g" for layer in layers)
    for length in range(1, len(letters) + 1):
        repeated = letters[:length] * (len(letters) // length + 1)
        if repeated.startswith(letters):
            return letters[:length]
    return letters
