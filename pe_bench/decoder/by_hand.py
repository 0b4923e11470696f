"""Layers whose gradients are written by hand: faster training of small models on a CPU.

The numbers are those of torch's own, up to rounding. There, each operation is a node of the graph,
and gradients of a tensor with several readers are added up one by one; for narrow models this takes
as long as the matrix products do.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def serves(*inputs: Tensor) -> bool:
    """Return whether the functions of this file are for such inputs.

    They are for training on a CPU, in one type, float32 or wider.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if torch.is_autocast_enabled("cpu") or not any(t.requires_grad for t in inputs):
        return False
    dtype = inputs[0].dtype
    return dtype.itemsize >= 4 and all(t.is_cpu and t.dtype == dtype for t in inputs)


class RMSNorm(nn.RMSNorm):
    """gain x / sqrt(mean(x^2) + eps) over channels (Zhang & Sennrich 2019, arXiv 1910.07467)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., C) of (..., C)."""
        if serves(x, self.weight):
            normed: Tensor = _RMSNorm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
        else:
            normed = super().forward(x)
        return normed


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()  # (..., 1)
        factor = squares.div_(x.shape[-1]).add_(eps).rsqrt_()  # (..., 1)
        unit = x * factor  # (..., C)
        ctx.save_for_backward(unit, gain, factor)
        normed: Tensor = unit * gain
        return normed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        unit, gain, factor = ctx.saved_tensors
        products = grad * unit  # (..., C)
        grad_gain = products.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        mean = (products @ gain)[..., None] / len(gain)  # (..., 1)
        grad_x = torch.addcmul(grad * gain, unit, mean, value=-1).mul_(factor)  # (..., C)
        return grad_x, grad_gain, None


def project(x: Tensor, *maps: nn.Module) -> tuple[Tensor, ...]:
    """Return what each linear map makes of the same tokens: (B, T, C) -> (B, T, any) each."""
    weights = [m.weight for m in maps if isinstance(m, nn.Linear) and _is_plain(m)]
    if len(weights) < len(maps) or not serves(x, *weights):
        return tuple(m(x) for m in maps)
    projected: tuple[Tensor, ...] = _Project.apply(x, *weights)  # type: ignore[no-untyped-call]
    return projected


def _is_plain(module: nn.Linear) -> bool:
    """Return whether a module is a product with its weight and nothing else."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    return type(module) is nn.Linear and module.bias is None and not any(hooks)


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        return tuple(F.linear(x, weight) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        tokens = x.flatten(0, -2)  # (B T, C)
        grad_x = None
        found: list[Tensor | None] = []
        for grad, weight, needed in zip(grads, weights, ctx.needs_input_grad[1:], strict=True):
            flat = grad.flatten(0, -2)  # (B T, any)
            found.append(flat.T @ tokens if needed else None)
            if ctx.needs_input_grad[0]:
                grad_x = flat @ weight if grad_x is None else grad_x.addmm_(flat, weight)
        return None if grad_x is None else grad_x.view_as(x), *found
