"""Causal attention: one function, several backends, the same numbers.

"eager" is the reference, as short as the formula, with T x S memory. "sdpa" is torch's fused
attention, which takes causal masks, separable biases and wide values without T x S memory.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_bench.errors import InputError

Backend = Literal["auto", "eager", "sdpa"]
RewriteLogits = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    index: Tensor | None = None,
    decay: Tensor | None = None,
    bias: Tensor | None = None,
    rewrite: RewriteLogits | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """softmax(q k^T / sqrt(D) + decay_i - decay_j + bias_ij) v over keys j <= i.

    Args:
        q: queries, (B, H, T, D).
        k: keys, (B, G, S, D); G divides H.
        v: values, (B, G, S, E); or (B, H, S, E) where every query head has its own.
        index: column of each query among the keys, (B or 1, T); None: T == S, query i is column i.
        decay: (B or 1, H, S), float32 or wider.
        bias: (B or 1, H, T, S).
        rewrite: (scores, q, k, causal) -> scores, see `Encoding.logits`; needs the eager backend.
        backend: "auto" takes the fastest that can do it.

    Returns:
        (B, H, T, E), in v's dtype.

    Raises:
        InputError: a backend that cannot do what is asked for.
    """
    if rewrite is not None and backend not in ("auto", "eager"):
        raise InputError(f"this encoding rewrites logits: use backend eager, not {backend}")
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    if backend == "eager" or rewrite is not None:
        scores = attention_logits(q, k, index=index, decay=decay, bias=bias, rewrite=rewrite)
        return scores.softmax(-1).to(v.dtype) @ v
    return _sdpa(q, k, v, index, decay, bias)


def causal_mask(index: Tensor | None, queries: int, keys: int, device: torch.device) -> Tensor:
    """True where query i may look at key j: (B or 1, 1, T, S)."""
    if index is None:
        index = torch.arange(queries, device=device)[None]
    return torch.arange(keys, device=device) <= index[:, None, :, None]


def attention_logits(
    q: Tensor,
    k: Tensor,
    *,
    index: Tensor | None = None,
    decay: Tensor | None = None,
    bias: Tensor | None = None,
    rewrite: RewriteLogits | None = None,
) -> Tensor:
    """What the softmax of `attend` is given, (B, H, T, S), -inf where a query may not look."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q @ k.mT).to(wide) / math.sqrt(q.shape[-1])
    if decay is not None:
        at_query = decay
        if index is not None:
            at_query = decay.expand(len(index), -1, -1).gather(
                2, index[:, None].expand(-1, decay.shape[1], -1)
            )
        scores = scores + (at_query[..., :, None] - decay[..., None, :]).to(wide)
    if bias is not None:
        scores = scores + bias
    causal = causal_mask(index, q.shape[2], k.shape[2], q.device)
    if rewrite is not None:
        scores = rewrite(scores, q, k, causal)
    return scores.masked_fill(~causal, -torch.inf)


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, index: Tensor | None, decay: Tensor | None, bias: Tensor | None
) -> Tensor:
    scale, width = 1 / math.sqrt(q.shape[-1]), v.shape[-1]
    if decay is not None:
        q, k = _fold(q, k, decay, scale)
    # Torch's fused kernels want one width for q, k and v (on a CPU they refuse anything else and
    # fall back to T x S memory). Zeros change neither the products nor the sums.
    widest = max(q.shape[-1], width)
    q, k, v = (
        F.pad(t, (0, widest - t.shape[-1])) if t.shape[-1] < widest else t for t in (q, k, v)
    )
    mask = None
    if index is not None or bias is not None:
        mask = causal_mask(index, q.shape[2], k.shape[2], q.device)
        if bias is not None:
            mask = bias.to(q.dtype).masked_fill(~mask, -torch.inf)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale
    )
    return out[..., :width]


def _fold(q: Tensor, k: Tensor, decay: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Carries decay_i - decay_j inside the product of q and k, so that no T x S bias is built.

    Softmax ignores what is the same for all keys of a query, so only -decay_j is needed: k gets
    it as extra features where q has ones. A low-precision type holds it as a sum of three parts;
    one part alone is 13 to 27 % wrong in bfloat16.
    """
    # Late keys, where a decaying attention looks, keep the finest resolution if the end is zero.
    rest = (decay[..., -1:] - decay).expand(k.shape[0], -1, -1) / scale
    parts = []
    for _ in range(3 if k.dtype.itemsize < 4 else 1):
        parts.append(rest.to(k.dtype))
        rest = rest - parts[-1].to(rest.dtype)
    features = torch.stack(parts, dim=-1)
    ones = q.new_ones(()).expand(*q.shape[:-1], len(parts))
    return torch.cat([q, ones], dim=-1), torch.cat([k, features], dim=-1)
