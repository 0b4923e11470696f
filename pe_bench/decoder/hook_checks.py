"""Check the shapes of what the hooks of an encoding return, and whether they change arguments.

Without these checks, a wrong shape would often broadcast silently during training.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.positions import Positions

ANY = -1
"""A size that matches every size."""


def check_shape(
    encoding: Encoding,
    hook: str,
    returned: Any,
    shape: tuple[int, ...],
    *,
    part: str = "",
    one_row: bool = False,
) -> None:
    """Check that a hook has returned numbers of the right shape; ANY matches every size.

    Args:
        encoding: the encoding.
        hook: name of its hook.
        returned: return value of the hook.
        shape: expected sizes.
        part: name of the result if the hook returns several.
        one_row: whether a batch dimension of 1 is allowed, which broadcasts.

    Raises:
        InputError: the shape is wrong, or the tensor is a mask or complex.
    """
    if isinstance(returned, Tensor) and returned.dtype == torch.bool:
        raise InputError(
            f"{type(encoding).__name__}.{hook} returned {part}True and False, expected numbers; "
            "`visible` says which keys a query can see"
        )
    if isinstance(returned, Tensor) and returned.is_complex():
        raise InputError(
            f"{type(encoding).__name__}.{hook} returned {part}complex numbers, expected real ones"
        )
    sizes = tuple(returned.shape) if isinstance(returned, Tensor) else None
    if sizes == shape:
        return
    if sizes is not None and len(sizes) == len(shape):
        wrong = [i for i, size in enumerate(shape) if size not in (sizes[i], ANY)]
        if not wrong or (wrong == [0] and one_row and sizes[0] == 1):
            return
    expected = ["any" if size == ANY else str(size) for size in shape]
    if one_row and shape[0] > 1:
        expected[0] += " or 1"
    raise InputError(
        f"{type(encoding).__name__}.{hook} returned {part}{describe_type(returned)}, "
        f"expected ({', '.join(expected)})"
    )


def describe_type(value: Any) -> str:
    """Return the shape of a tensor, or the name of another type."""
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def count_changes(values: Iterable[Any]) -> list[int]:
    """Return how often torch has changed each tensor in place, also those of positions and states.

    The list is empty if torch does not count this: in a compiled pass and in inference mode.
    """
    found: list[int] = []
    if torch.compiler.is_compiling():
        return found
    for value in values:
        if isinstance(value, Tensor):
            if not value.is_inference():
                found.append(value._version)
        elif isinstance(value, tuple | list):
            found += count_changes(value)
        elif isinstance(value, Positions):
            found += count_changes(
                (value.query, value.key, value.index, value.features, value.prepared, value.state)
            )
    return found
