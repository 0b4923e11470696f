"""Causal attention for training on a CPU, for short rows whose values are wider than the queries.

Torch's CPU kernel needs equal widths of queries, keys and values, so queries and keys would have to
be padded. It also recomputes the softmax in the backward pass.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LONGEST = 256
"""Maximum number of keys for which attention weights are kept for the backward pass."""

BLOCK = 32
"""Queries per block; keys after the last query of a block are skipped."""


def serves(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether `short_attention` supports these queries, keys and values.

    It supports training on a CPU in one dtype, float32 or wider.

    Args:
        q, k: queries and keys, (B, H, T, D) each.
        v: values, (B, H, T, E).
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if torch.is_autocast_enabled("cpu") or not any(t.requires_grad for t in (q, k, v)):
        return False
    if v.shape[-1] <= q.shape[-1] or not q.shape[2] == k.shape[2] <= LONGEST:
        return False
    same_type = q.dtype == k.dtype == v.dtype and q.dtype.itemsize >= 4
    return same_type and q.is_cpu and k.is_cpu and v.is_cpu


def short_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Return softmax(scale q k^T) v over the keys j <= i, (B, H, T, E).

    Args:
        q: queries, (B, H, T, D).
        k: keys, (B, H, T, D).
        v: values, (B, H, T, E).
        scale: factor of the products.
    """
    attended: Tensor = _Short.apply(q, k, v, scale)  # type: ignore[no-untyped-call]
    return attended


class _Short(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        rows = len(q)
        q = torch.mul(q, scale, out=q.new_empty(q.shape)).flatten(0, 1)  # (B H, T, D), contiguous
        k = k.reshape(q.shape)  # (B H, T, D)
        v = v.reshape(len(q), *v.shape[2:])  # (B H, T, E)
        length = q.shape[1]
        later = torch.full((BLOCK, BLOCK), -torch.inf, dtype=q.dtype).triu_(1)
        out = v.new_empty(rows, length, len(v) // rows, v.shape[2]).transpose(1, 2)  # (B, H, T, E)
        kept = []
        for start in range(0, length, BLOCK):
            stop = min(start + BLOCK, length)
            logits = torch.bmm(q[:, start:stop], k[:, :stop].mT)  # (B H, t, s)
            logits[..., start:] += later[: stop - start, : stop - start]
            weights = logits.softmax(-1)  # (B H, t, s)
            out[:, :, start:stop] = torch.bmm(weights, v[:, :stop]).unflatten(0, (rows, -1))
            kept.append(weights)
        ctx.save_for_backward(q, k, v, *kept)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *kept = ctx.saved_tensors
        heads = grad_out.shape[:3]
        grad_out = grad_out.reshape(v.shape)  # (B H, T, E)
        length = q.shape[1]
        grad_q = torch.empty_like(q)
        for number in reversed(range(len(kept))):  # the last block has all keys
            start = number * BLOCK
            stop = min(start + BLOCK, length)
            weights = kept[number]  # (B H, t, s)
            grad = grad_out[:, start:stop]  # (B H, t, E)
            grad_weights = torch.bmm(grad, v[:, :stop].mT)  # (B H, t, s)
            grad_logits = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_q[:, start:stop] = torch.bmm(grad_logits, k[:, :stop])
            of_keys = torch.bmm(grad_logits.mT, q[:, start:stop])  # (B H, s, D)
            of_values = torch.bmm(weights.mT, grad)  # (B H, s, E)
            if stop == length:
                grad_k, grad_v = of_keys, of_values
            else:
                grad_k[:, :stop] += of_keys
                grad_v[:, :stop] += of_values
        grad_q *= ctx.scale
        return grad_q.view(*heads, -1), grad_k.view(*heads, -1), grad_v.view(*heads, -1), None
