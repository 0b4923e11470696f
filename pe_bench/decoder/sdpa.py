"""Attention with torch's fused kernels, which pad, fold and mask the terms of encodings."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_bench.decoder import short
from pe_bench.decoder.logits import LogitTerms, dense_bias


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms) -> Tensor:
    """Compute `attend` for keys and values with the same number of heads as the queries.

    Supports everything but `product`, `rewrite` and `normalise`; a bias becomes a mask.
    """
    scale = 1 / terms.divisor(q.shape[-1])
    width = v.shape[-1]
    mask = _dense_mask(q, k, terms)  # (B or 1, H or 1, T, S), or None
    if terms.separable is not None:
        q, k = _fold(q, k, terms.separable, scale)  # (B, H, T, D + parts), (B, H, S, D + parts)
    first = 0
    if terms.sink is not None and mask is None:
        q, k, v = _sink_before_first_key(q, k, v, terms.sink / scale)
        first = 1
    elif terms.sink is not None and mask is not None:
        k, v, mask = _sink_behind_last_key(k, v, mask, terms.sink)
    elif mask is None and short.serves(q, k, v):
        return short.short_attention(q, k, v, scale)
    # The fused kernels of torch need equal widths of q, k and v (on a CPU, torch otherwise needs
    # T x S memory). Padding with zeros changes neither the products nor the sums.
    widest = max(q.shape[-1], width)
    if q.is_cuda:
        widest += -widest % 8  # other widths use the kernel with T x S memory
    q = _pad(q, widest)
    k = _pad(k, widest)
    v = _pad(v, widest)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale
    )
    if first or widest > width:  # an unnecessary slice would copy the gradient
        out = out[:, :, first:, :width]
    return out


def _dense_mask(q: Tensor, k: Tensor, terms: LogitTerms) -> Tensor | None:
    """Return the bias, -inf at masked keys, or a boolean mask if there is no bias.

    The shape is (B or 1, H or 1, T, S). Return None if there is no bias and all queries attend to
    all keys before them.
    """
    bias = dense_bias(terms, q.shape[2], k.shape[2], q.device)  # (B or 1, H or 1, T, S)
    if terms.index is None and bias is None and not terms.hides(k.shape[2]):
        return None
    seen = terms.mask(q.shape[2], k.shape[2], q.device)  # (B or 1, 1, T, S)
    return seen if bias is None else bias.to(q.dtype).masked_fill(~seen, -torch.inf)


def _sink_before_first_key(
    q: Tensor, k: Tensor, v: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Prepend a key without a value and with the logits of the sink, (H,), to q, k and v.

    As the first key it is visible to all queries. A query is prepended too, so that key i still
    belongs to query i.
    """
    features = _in_parts(logits, k.dtype)  # (H, parts)
    parts = features.shape[-1]
    ones = q.new_ones(()).expand(*q.shape[:-1], parts)  # (B, H, T, parts)
    q = F.pad(torch.cat([q, ones], dim=-1), (0, 0, 1, 0))  # (B, H, 1 + T, D + parts)
    k = F.pad(k, (0, parts))  # (B, H, S, D + parts)
    sink = F.pad(features, (k.shape[-1] - parts, 0))[None, :, None]  # (1, H, 1, D + parts)
    k = torch.cat([sink.expand(len(k), -1, -1, -1), k], dim=2)
    return q, k, F.pad(v, (0, 0, 1, 0))


def _sink_behind_last_key(
    k: Tensor, v: Tensor, mask: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Append a key without a value and with the logits of the sink, (H,), to k, v and mask."""
    if mask.dtype == torch.bool:
        mask = k.new_zeros(mask.shape).masked_fill(~mask, -torch.inf)
    sink = logits.to(mask.dtype)[:, None, None]  # (H, 1, 1)
    shape = (len(mask), len(sink), mask.shape[2])
    columns = [mask.expand(*shape, -1), sink.expand(*shape, 1)]
    return F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)), torch.cat(columns, dim=-1)


def _pad(t: Tensor, width: int) -> Tensor:
    return F.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t


def _fold(q: Tensor, k: Tensor, c: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Fold c_i - c_j into the product of q and k, without a T x S bias.

    Softmax ignores terms that are the same for all keys of a query, so only -c_j is needed: k gets
    it as additional channels, and q gets ones. Low-precision dtypes hold it as a sum of three
    parts; a single part has errors of 13 to 27 % in bfloat16.

    The logits of early queries are as large as the range of c, which increases their rounding
    errors. If c is a cumulative sum of learned gates, whose exact gradients cancel, these errors
    add up: at 1000 tokens the gradients of FoX's gates would have errors of 1 % in float32 and be
    useless in bfloat16.
    """
    # Shift c so that it is zero at the last key: numbers near zero are most precise, and decaying
    # attention attends to late keys. The shift has no gradient. If c is narrower than k, its
    # rounding would depend on the last key.
    c = c.to(torch.promote_types(c.dtype, k.dtype))
    rest = (c[..., -1:].detach() - c).expand(k.shape[0], -1, -1) / scale  # (B, H, S)
    features = _in_parts(rest, k.dtype)  # (B, H, S, parts)
    ones = q.new_ones(()).expand(*q.shape[:-1], features.shape[-1])  # (B, H, T, parts)
    return torch.cat([q, ones], dim=-1), torch.cat([k, features], dim=-1)


def _in_parts(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Split x into numbers of a dtype that add up to it: (...) -> (..., parts)."""
    parts = []
    for _ in range(3 if dtype.itemsize < 4 else 1):
        parts.append(x.to(dtype))
        x = x - parts[-1].to(x.dtype)
    return torch.stack(parts, dim=-1)
