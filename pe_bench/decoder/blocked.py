"""Attention in blocks of queries: for any encoding, in memory that grows with T and not T x S.

Each block of queries meets the keys up to its last query, so half of the products are left out. Its
logits are forgotten, and made once more for the gradient.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pe_bench.decoder.logits import LogitTerms, unmasked_logits
from pe_bench.positions import ALIGNED, Positions, at_queries

LOGITS = 2**22
"""Logits of a block, about. Fewer keep the matrix units waiting, more leave the caches."""

MIN_QUERIES = 16
MAX_QUERIES = 256

LARGER = 2
"""Times as many logits of a block where a product is prepared: each block costs it a little."""

TOKEN_AXIS = (2, 2, 2, 2, 1, 2, 2)
"""Where tokens are counted in q, k, v, separable, by_distance, features and prepared."""

Q = 0
V = 2
BY_DISTANCE = 4
SINK = 7  # among the inputs


def blocked_attention(q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms) -> Tensor:
    """Return what `attend` does, given keys and values of as many heads as queries."""
    features = None if terms.positions is None else terms.positions.features
    of_keys = (terms.separable, terms.by_distance, features, terms.prepared)
    inputs = (*of_keys, terms.sink, *terms.learned)
    # Queries in falling order, as `falling_toeplitz` has them. Everything contiguous, or each
    # product of each block would make a copy of its own.
    falling: Tensor = _Blocked.apply(  # type: ignore[no-untyped-call]
        terms, q.flip(2), k.contiguous(), v.contiguous(), *inputs
    )
    return falling.flip(2)


class _Blocked(torch.autograd.Function):
    """Inputs: the terms; q, k, v, separable, by_distance, features, prepared, sink; learned."""

    @staticmethod
    def forward(ctx: Any, terms: LogitTerms, *inputs: Any) -> Tensor:
        q, k, v = inputs[:3]
        out: Tensor = v.new_empty(*q.shape[:3], v.shape[3])  # (B, H, T, E)
        for block in blocks(q, k, terms):
            scores = block.logits(terms, block.parts(inputs))  # (B, H, t, s)
            shares = terms.shares(block.mask_(scores)).to(v.dtype)  # (B, H, t, s)
            out[:, :, block.rows] = shares @ v[:, :, block.keys]
        ctx.terms = terms
        ctx.save_for_backward(*inputs)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_out = grads[0].contiguous()  # (B, H, T, E)
        inputs = ctx.saved_tensors
        q, k, v = inputs[:3]
        needed = ctx.needs_input_grad[1:]
        sums = Sums(inputs)
        for block in blocks(q, k, ctx.terms):
            parts = block.parts(inputs, needed)
            with torch.enable_grad():
                scores = block.logits(ctx.terms, parts)  # (B, H, t, s)
                masked = scores.detach()
                if ctx.terms.calls_hooks:  # they may need their own result for its gradient
                    masked = masked.clone()
                masked = block.mask_(masked).requires_grad_()
                shares = replace(ctx.terms, sink=parts[SINK]).shares(masked)  # (B, H, t, s)
            grad = grad_out[:, :, block.rows]  # (B, H, t, E)
            if needed[V]:
                sums.add(V, block, shares.detach().to(v.dtype).mT @ grad)
            grad_shares = (grad @ v[:, :, block.keys].mT).to(shares.dtype)  # (B, H, t, s)
            of_shares = [masked, parts[SINK]] if needed[SINK] else [masked]
            grad_scores, *grad_sink = torch.autograd.grad(shares, of_shares, grad_shares)
            if grad_sink:
                sums.add(SINK, block, grad_sink[0])
            wanted = [i for i in range(len(parts)) if needed[i] and i not in (V, SINK)]
            if not wanted:
                continue
            leaves = [parts[i] for i in wanted]
            found = torch.autograd.grad(scores, leaves, grad_scores, allow_unused=True)
            for i, gradient in zip(wanted, found, strict=True):
                if gradient is not None:
                    sums.add(i, block, gradient)
        return None, *sums.totals


class Sums:
    """Gradients of the inputs, added up over blocks; None for inputs that got none."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self.inputs = inputs
        self.totals: list[Tensor | None] = [None] * len(inputs)

    def add(self, i: int, block: "QueryBlock", gradient: Tensor) -> None:
        """Add the gradient of the block's part of the i-th input."""
        total = self.totals[i]
        if total is None:
            total = torch.zeros_like(self.inputs[i])
            self.totals[i] = total
        if i < len(TOKEN_AXIS):
            total[block.part(i)] += gradient
        else:
            total += gradient


@dataclass(frozen=True)
class QueryBlock:
    """Some queries and the keys that they may look at.

    Attributes:
        rows: where the block's queries are among all of them in falling order.
        queries: the same queries by their numbers in rising order, (t,), largest first.
        keys: places of the keys in rising order: from where to where, or (s,).
        seen: number of leading keys that every query may look at.
        hidden: True where a query may not look at one of the other keys, (B or 1, 1, t, s - seen).
    """

    rows: slice
    queries: Tensor
    keys: slice | Tensor
    seen: int
    hidden: Tensor

    def part(self, i: int) -> tuple[Any, ...]:
        """Return where the block's part of the i-th input is."""
        tokens = self.rows if i == Q else self.keys
        if i == BY_DISTANCE:  # from distance 0 on
            last = self.keys.stop - self.keys.start if isinstance(self.keys, slice) else None
            tokens = slice(last)
        return (*(slice(None),) * TOKEN_AXIS[i], tokens)

    def parts(self, inputs: Sequence[Any], needed: Sequence[bool] = ()) -> list[Any]:
        """Return the block's part of each input, leaves where logits need their gradient."""
        parts = list(inputs)
        for i in range(len(TOKEN_AXIS)):
            if inputs[i] is not None:
                parts[i] = inputs[i][self.part(i)].detach()
                if needed and needed[i] and i != V:
                    parts[i].requires_grad_()
        return parts

    def logits(self, terms: LogitTerms, parts: Sequence[Any]) -> Tensor:
        """Return the block's logits before the mask, (B, H, t, s)."""
        q, k, _, separable, by_distance, features, prepared = parts[: len(TOKEN_AXIS)]
        positions = terms.positions
        if positions is not None:
            in_order = terms.index is None and isinstance(self.keys, slice)
            part = positions.part(self.queries, self.keys)
            positions = replace(part, features=features, prepared=prepared, falling=in_order)
        own = replace(terms, positions=positions, separable=separable, by_distance=by_distance)
        if by_distance is not None and not isinstance(self.keys, slice):
            distance = (self.queries[:, None] - self.keys).clamp(min=0)  # (t, s)
            own = replace(own, by_distance=None, bias=lambda _: by_distance[None, :, distance])
        if separable is None or terms.calls_hooks:
            return unmasked_logits(q, k, own, falling=True)
        scores = unmasked_logits(q, k, replace(own, separable=None), falling=True)
        return self._add_difference_(scores, separable, positions)

    def _add_difference_(self, scores: Tensor, c: Tensor, positions: Positions | None) -> Tensor:
        """Add c_i - c_j, (B or 1, H, s), to logits, (B, H, t, s), in place.

        Both are counted from the block's last query on, so that float32 holds them where they
        matter, and no matrix of them is made.
        """
        index = self.queries[None] if positions is None else positions.index  # (B or 1, t)
        at_query = at_queries(c[..., None], index)  # (B or 1, H, t, 1)
        last = at_query[..., :1, :].detach()  # (B or 1, H, 1, 1)
        scores += (at_query - last).to(scores.dtype)
        scores += (last - c[..., None, :]).to(scores.dtype)
        return scores

    def mask_(self, scores: Tensor) -> Tensor:
        """Change logits without a graph, (B, H, t, s), to -inf where no query may look."""
        # All heads share the mask, and this takes a seventh of masked_fill_'s time.
        most = torch.where(self.hidden, -torch.inf, torch.inf)  # (B or 1, 1, t, s - seen)
        scores[..., self.seen :].clamp_max_(most)
        return scores


def blocks(q: Tensor, k: Tensor, terms: LogitTerms) -> Iterator[QueryBlock]:
    """Divide queries, (B, H, T, D) in falling order, over the keys (B, H, S, D)."""
    length = q.shape[2]
    keys = k.shape[2]
    span = min(keys, (terms.visible.kept or keys) + terms.visible.first)
    aligned = 1 if terms.prepared is None else ALIGNED
    larger = 1 if terms.prepared is None else LARGER
    size = larger * LOGITS // (q.shape[0] * q.shape[1] * span)
    size = max(min(max(size, MIN_QUERIES), MAX_QUERIES), aligned)  # at least one chunk
    stop = 0
    while stop < length:
        start = stop
        lowest = max(length - start - size, 0)
        stop = length - (lowest + -lowest % aligned)
        queries = torch.arange(length - 1 - start, length - 1 - stop, -1, device=q.device)
        rows = slice(start, stop)
        if terms.columns is not None:
            yield _block_of_all_keys(rows, queries, keys, terms)
        elif terms.index is None:
            yield _block(rows, queries, queries[None], length - stop, length - 1 - start, terms)
        else:
            column = terms.index[:, queries]  # (B or 1, t)
            yield _block(rows, queries, column, int(column.min()), int(column.max()), terms)


def _block(
    rows: slice, queries: Tensor, column: Tensor, lowest: int, highest: int, terms: LogitTerms
) -> QueryBlock:
    """Return the block of queries (t,) at columns (B or 1, t) from `lowest` to `highest`."""
    visible = terms.visible
    if not visible.hides(highest + 1):
        later = torch.arange(lowest, highest + 1, device=queries.device)
        hidden = later > column[:, None, :, None]  # (B or 1, 1, t, s - seen)
        return QueryBlock(rows, queries, slice(0, highest + 1), lowest, hidden)
    start = int(visible.start(torch.tensor(lowest)))
    places = torch.arange(start, highest + 1, device=queries.device)  # (s,)
    keys: slice | Tensor = slice(start, highest + 1)
    if visible.first and start:
        first = torch.arange(min(visible.first, start), device=queries.device)
        places = keys = torch.cat([first, places])
    hidden = ~visible.mask(column, places[None])  # (B or 1, 1, t, s)
    return QueryBlock(rows, queries, keys, 0, hidden)


def _block_of_all_keys(rows: slice, queries: Tensor, keys: int, terms: LogitTerms) -> QueryBlock:
    """Return the block of queries, (t,), among keys that are in no order."""
    assert terms.positions is not None  # which knows their columns
    every = slice(0, keys)
    hidden = ~terms.positions.part(queries, every).causal  # (B or 1, 1, t, S)
    return QueryBlock(rows, queries, every, 0, hidden)
