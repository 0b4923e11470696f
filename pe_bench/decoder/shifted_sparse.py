"""Shifted sparse attention, for training on long rows (Chen et al. 2024, arXiv 2309.12307, 3.2).

The first half of the heads attend within groups of tokens, the second half within groups that are
shifted by half a group, so that information flows between neighbouring groups. Evaluation uses full
attention.

| published code | here |
|---|---|
| the last half group and the first are one group, so early tokens see late ones | two groups |
"""

from dataclasses import replace

import torch
from torch import Tensor

from pe_bench.decoder.attention import Backend, attend
from pe_bench.decoder.logits import LogitTerms, repeat_heads
from pe_bench.errors import InputError

FULL_ATTENTION = (
    "its logits depend on more than queries, keys and distance, so it does not support shifted "
    "sparse attention: use --adapt.method lora"
)


def shifted_sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms, group: int, backend: Backend = "auto"
) -> Tensor:
    """Compute `attend` with each query restricted to the keys of its group.

    Args:
        q: queries, (B, H, T, D).
        k: keys, (B, G, T, D).
        v: values, (B, G or H, T, E).
        terms: terms of the logits, without a bias of pairs.
        group: tokens per group.
        backend: implementation of attention.

    Raises:
        InputError: the logits depend on pairs of tokens by more than their distance.
    """
    others = (terms.bias, terms.product, terms.rewrite, terms.sink, terms.normalise)
    if others != (None,) * 5 or terms.hides(k.shape[2]):
        raise InputError(FULL_ATTENTION)
    heads = q.shape[1]
    k = repeat_heads(k, heads)  # (B, H, T, D)
    v = repeat_heads(v, heads)  # (B, H, T, E)
    half = heads // 2
    parts = []
    for first, stop, offset in ((0, half, 0), (half, heads, group // 2)):
        if first == stop:
            continue
        own = _of_heads(terms, first, stop)
        of = slice(first, stop)
        part = _within(q[:, of], k[:, of], v[:, of], own, group, offset, backend)
        parts.append(part)  # (B, h, T, E)
    return torch.cat(parts, dim=1)


def _within(
    q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms, group: int, offset: int, backend: Backend
) -> Tensor:
    """Attend within groups; the first group has `offset` tokens if `offset` is above 0."""
    length = q.shape[2]
    offset = min(offset, length)
    whole = (length - offset) // group * group
    out = []
    for first, stop in ((0, offset), (offset, offset + whole), (offset + whole, length)):
        if first < stop:
            size = min(group, stop - first)
            tokens = slice(first, stop)
            own = _of_tokens(terms, tokens, size, len(q))
            queries = _fold(q[:, :, tokens], size)  # (B n, h, size, D)
            keys = _fold(k[:, :, tokens], size)  # (B n, h, size, D)
            values = _fold(v[:, :, tokens], size)  # (B n, h, size, E)
            mixed = attend(queries, keys, values, own, backend=backend)  # (B n, h, size, E)
            out.append(_unfold(mixed, len(q)))
    return torch.cat(out, dim=2)


def _fold(t: Tensor, size: int) -> Tensor:
    """Turn groups into rows: (B, H, n size, D) -> (B n, H, size, D)."""
    folded: Tensor = t.unflatten(2, (-1, size)).transpose(1, 2).flatten(0, 1)
    return folded


def _unfold(t: Tensor, rows: int) -> Tensor:
    """Turn rows into groups: (B n, H, size, D) -> (B, H, n size, D)."""
    unfolded: Tensor = t.unflatten(0, (rows, -1)).transpose(1, 2).flatten(2, 3)
    return unfolded


def _of_heads(terms: LogitTerms, first: int, stop: int) -> LogitTerms:
    c = terms.separable  # (B or 1, H, T)
    by_distance = terms.by_distance  # (H, T)
    return replace(
        terms,
        separable=None if c is None else c[:, first:stop],
        by_distance=None if by_distance is None else by_distance[first:stop],
    )


def _of_tokens(terms: LogitTerms, tokens: slice, size: int, rows: int) -> LogitTerms:
    """Return the terms for groups of `size` tokens as rows; distances stay the same."""
    c = terms.separable  # (B or 1, H, T)
    if c is not None:
        c = c.expand(rows, -1, -1)[:, :, tokens, None]  # (B, H, n size, 1)
        c = _fold(c, size)[..., 0]  # (B n, H, size)
    by_distance = terms.by_distance
    if by_distance is not None:
        by_distance = by_distance[:, :size]
    return replace(terms, positions=None, separable=c, by_distance=by_distance)
