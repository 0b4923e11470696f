"""Find random values of an encoding that are not stored with a model."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pe_bench.config import ModelConfig
from pe_bench.decoder.model import MakeEncoding


def find_unsaved(make_encoding: MakeEncoding, config: ModelConfig) -> str | None:
    """Return a sentence on a random value outside of the state dict of an encoding, or None.

    A stored model would get another value when it is loaded.
    """
    for layer in {0, config.layers - 1}:
        with torch.random.fork_rng(devices=[]):
            made = []
            for seed in range(2):
                torch.default_generator.manual_seed(seed)
                made.append(make_encoding(config, layer))
        one, other = (dict(_values_outside(each)) for each in made)
        saved = {_storage(value) for value in made[0].state_dict(keep_vars=True).values()}
        for name, value in one.items():
            if name in other and not _is_same(value, other[name], saved):
                leaf = name.rpartition(".")[2]
                return (
                    f"{name} is random and not saved with a model, so a stored model would have "
                    f"another one: make it a buffer, self.register_buffer('{leaf}', ...), without "
                    "persistent=False"
                )
    return None


def _values_outside(encoding: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the buffers and attributes that are not in the state dict, with their names."""
    saved = encoding.state_dict()
    for name, buffer in encoding.named_buffers():
        if name not in saved:
            yield name, buffer
    of_modules = vars(nn.Module())
    for prefix, module in encoding.named_modules():
        for name, value in vars(module).items():
            if name not in of_modules:
                yield f"{prefix}.{name}".lstrip("."), value


def _storage(tensor: Tensor) -> int:
    """Return the address of a tensor's memory, which its views share."""
    return 0 if tensor.is_meta else tensor.untyped_storage().data_ptr()


def _is_same(one: Any, other: Any, saved: set[int]) -> bool:
    """Return whether two values are equal.

    Values of unknown types, whole numbers (counters, seeds) and views of saved tensors count as
    equal.

    Args:
        one, other: values of two instances.
        saved: addresses of the first instance's tensors that are stored with a model.
    """
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if _storage(one) in saved:
            return True
        if one.shape != other.shape:
            return False
        return one.is_meta or bool(((one == other) | (one.isnan() & other.isnan())).all())
    if hasattr(one, "tolist") and hasattr(other, "tolist"):  # arrays and scalars of numpy
        return _is_same(one.tolist(), other.tolist(), saved)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(_is_same(*pair, saved) for pair in pairs)
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return False
        return all(_is_same(one[key], other[key], saved) for key in one)
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return True
