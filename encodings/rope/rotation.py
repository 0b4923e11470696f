"""The rotation of channel pairs, with a gradient that makes few copies."""

from typing import Any

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate channel pairs (m, m + D/2), the LLaMA layout, by angles given as cos and sin.

    x is (B, H, T, D); cos and sin broadcast to (B, H, T, D/2).
    """
    if torch.compiler.is_compiling():  # which writes the gradient itself
        first, second = x.chunk(2, dim=-1)  # (B, H, T, D/2) each
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    half = x.shape[-1] // 2
    cos, sin = (table.expand(*table.shape[:-1], half) for table in (cos, sin))
    both = torch.cat([cos, cos], dim=-1)  # D channels each
    signed = torch.cat([-sin, sin], dim=-1)
    rotated: Tensor = _Rotate.apply(x, both, signed)  # type: ignore[no-untyped-call]
    return rotated


class _Rotate(torch.autograd.Function):
    """x cos + swap(x) sin, where sin is negative for the first half of the channels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        learned = cos.requires_grad or sin.requires_grad
        ctx.save_for_backward(cos, sin, x if learned else None)
        ctx.shape = x.shape
        return _turn(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, x = ctx.saved_tensors
        grad_x = None
        if ctx.needs_input_grad[0]:  # the transposed rotation
            grad_x = _turn(grad, cos, sin, -1).sum_to_size(ctx.shape)
        if x is None:
            return grad_x, None, None
        return grad_x, (grad * x).sum_to_size(cos.shape), (grad * _swap(x)).sum_to_size(sin.shape)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    """Return x cos + sign swap(x) sin."""
    return torch.addcmul(x * _for_heads(cos, x), _swap(x), _for_heads(sin, x), value=sign)


def _swap(x: Tensor) -> Tensor:
    """Return the halves of the channels in the other order: (..., D) -> (..., D)."""
    first, second = x.chunk(2, dim=-1)  # (..., D/2) each
    return torch.cat([second, first], dim=-1)


def _for_heads(table: Tensor, x: Tensor) -> Tensor:
    """Return a table with a copy for each head of x, (B, H, T, D), where it serves many rows.

    It lies in memory as x does, token by token: loops over heads of few channels are slow.
    """
    if not x.is_cpu or table.dim() != 4 or table.shape[1] > 1 or len(table) == len(x):
        return table
    return table.transpose(1, 2).repeat(1, 1, x.shape[1], 1).transpose(1, 2)  # (1, H, T, D)
