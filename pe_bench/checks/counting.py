"""Counters of floating-point operations."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

# Elementwise operations without a "pointwise" tag, and operations that only move numbers.
REDUCTIONS = {"_softmax", "cumsum", "sum", "mean", "amax", "max", "linalg_vector_norm"}
MOVES = {"_to_copy", "clone", "copy", "copy_", "masked_fill", "masked_fill_", "where", "fill_"}


class CountProducts(FlopCounterMode):
    """Counter of the floating-point operations of matrix products: `get_total_flops`."""

    def __init__(self) -> None:
        super().__init__(display=False, custom_mapping=_EXTRA)


def count_products(call: Callable[[], object]) -> int:
    """Return the floating-point operations of the matrix products in a call."""
    with CountProducts() as counter:
        call()
    return int(counter.get_total_flops())


class CountElementwise(TorchDispatchMode):
    """Counter of one operation for each element of an arithmetic operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        first = out[0] if isinstance(out, tuple | list) else out
        if isinstance(first, Tensor) and first.is_floating_point():
            if name in REDUCTIONS:
                self.count += args[0].numel()
            elif torch.Tag.pointwise in func.tags and name not in MOVES:
                self.count += first.numel()
        return out


def _attention(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Return the operations of torch's fused CPU attention, which torch's counter lacks."""
    batch, heads, queries, dim = q
    return int(2 * batch * heads * queries * k[2] * (dim + v[3]))


def _attention_backward(gradient: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Return the operations of its backward pass: the logits, and two products per forward one."""
    batch, heads, queries, dim = q
    return int(2 * batch * heads * queries * k[2] * (3 * dim + 2 * v[3]))


def _triangular_solve(matrix: Any, right: Any, *_: Any, **__: Any) -> int:
    """Return the operations of a triangular solve: n^2 per column of the right-hand side."""
    return int(math.prod(matrix[:-2]) * matrix[-1] ** 2 * right[-1])


_EXTRA: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.aten.linalg_solve_triangular: _triangular_solve,
}
