"""The shape of a decoder with about a given number of parameters."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pe_bench.config import ModelConfig
from pe_bench.errors import InputError

VOCABULARY = 32_000
"""Vocabulary size if no tokenizer is given."""

LARGE = 800_000_000  # parameters from which heads have 128 channels instead of 64
MULTIPLE = 128  # the hidden size of the MLP is a multiple of it
MOST_HEADS = 512
MOST_LAYERS = 1000
TOLERANCE = 0.1

FACTORS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
SIZES = {"layers": 1, "heads": 1, "kv_heads": 0, "width": 1, "mlp_width": 1}  # smallest values


def read_size(words: Sequence[str]) -> int:
    """Convert a number of parameters such as 350M or 1.5B.

    Raises:
        ValueError: it is not such a number. The message describes the valid ones.
    """
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)([KMBGT]?)", words[0].upper())
    if not found:
        raise ValueError(f"must be a number such as 350M, 1B or 7B, not '{words[0]}'")
    return round(float(found[1]) * FACTORS[found[2]])


def count_parameters(shape: ModelConfig) -> int:
    """Return the number of parameters of a decoder whose encoding has none."""
    queries = shape.heads * shape.head_dim
    keys = shape.kv_heads * shape.head_dim
    norms = {"none": 0, "rms": 2 * shape.head_dim, "width": queries + keys}[shape.qk_norm]
    attention = 2 * shape.width * (queries + keys)
    of_layer = attention + 3 * shape.width * shape.mlp_width + 2 * shape.width + norms
    return shape.layers * of_layer + 2 * shape.vocab_size * shape.width + shape.width


def choose_shape(parameters: int, vocabulary: int, given: Mapping[str, Any]) -> ModelConfig:
    """Return the shape of a decoder with about `parameters` parameters.

    It has as many layers as heads. A head has 64 channels, from 800 million parameters 128. The
    hidden size of the MLP is 8/3 of the width, rounded up to a multiple of 128, and embeddings and
    head are not tied. The number of heads is the one that comes nearest to `parameters`. If this
    misses them by more than a tenth, the number of layers is chosen freely, as close to the number
    of heads as possible. If the heads are given, the layers follow from the width: one for every 64
    or 128 channels.

    Args:
        parameters: the number of parameters, without those of the encoding.
        vocabulary: number of tokens in the vocabulary.
        given: values of `ModelConfig` that the shape has to have.

    Raises:
        InputError: no such shape has this number of parameters within a tenth.
    """
    for name, least in SIZES.items():
        if given.get(name, least) < least:
            raise InputError(f"model.{name} must be at least {least}, not {given[name]}")
    size = 128 if parameters >= LARGE else 64
    _check_width(size, given)
    usual = []
    free = []
    for shape in _widths(size, replace(ModelConfig(), vocab_size=vocabulary), given):
        usual.append(replace(shape, layers=given.get("layers", max(1, shape.width // size))))
        free.append(usual[-1] if "layers" in given else _with_layers(shape, parameters))
    nearest = min(usual + free, key=lambda shape: _error(shape, parameters), default=None)
    if nearest is None or _error(nearest, parameters) > TOLERANCE:
        raise InputError(_why(parameters, vocabulary, given, nearest))
    best = min(usual, key=lambda shape: _error(shape, parameters))
    if _error(best, parameters) <= TOLERANCE:
        return best
    close = [shape for shape in free if _error(shape, parameters) <= TOLERANCE]
    return min(close, key=lambda shape: abs(shape.layers - shape.width / size))


def _check_width(size: int, given: Mapping[str, Any]) -> None:
    """Check that heads can be chosen for a given width.

    Raises:
        InputError: they cannot.
    """
    if "heads" not in given and given.get("width", size) % size:
        raise InputError(
            f"model.width must be a multiple of {size}, the channels of a head, not "
            f"{given['width']}: change it, or give --model.heads"
        )


def _widths(size: int, start: ModelConfig, given: Mapping[str, Any]) -> Iterator[ModelConfig]:
    """Yield shapes of all widths that are possible, with one layer unless layers are given."""
    multiples = range(size, (MOST_HEADS + 1) * size, size)
    for width in [given["width"]] if "width" in given else multiples:
        heads = given.get("heads", width // size)
        if width % heads or heads % (given.get("kv_heads") or heads):
            continue
        chosen = {"heads": heads, "kv_heads": 0, "width": width, "mlp_width": _mlp_width(width)}
        yield replace(start, **{"layers": 1, **chosen, **given})


def _mlp_width(width: int) -> int:
    """Return 8/3 of the width, rounded up."""
    return -(-8 * width // (3 * MULTIPLE)) * MULTIPLE


def _with_layers(shape: ModelConfig, parameters: int) -> ModelConfig:
    """Return the shape with the number of layers that comes nearest to `parameters`."""
    one = count_parameters(replace(shape, layers=1))
    of_layer = count_parameters(replace(shape, layers=2)) - one
    layers = 1 + round((parameters - one) / of_layer)
    return replace(shape, layers=min(MOST_LAYERS, max(1, layers)))


def _error(shape: ModelConfig, parameters: int) -> float:
    return abs(count_parameters(shape) / parameters - 1)


def _why(
    parameters: int, vocabulary: int, given: Mapping[str, Any], nearest: ModelConfig | None
) -> str:
    """Return a sentence that says why no shape has this number of parameters."""
    options = " ".join(f"--model.{name} {given[name]}" for name in given if name in SIZES)
    if nearest is None:
        return f"no width of a decoder fits {options}: leave one of them out"
    found = count_parameters(nearest)
    if options:
        return (
            f"--params {parameters:,} contradicts {options}: the nearest decoder has {found:,} "
            "parameters; leave one of them out"
        )
    return (
        f"no decoder with a vocabulary of {vocabulary:,} tokens has about {parameters:,} "
        f"parameters: the nearest has {found:,}; change --params or --tokenizer"
    )
