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

LOGITS = 2**22
"""Logits of a block, about. Fewer keep the matrix units waiting, more leave the caches."""

MIN_QUERIES = 16
MAX_QUERIES = 256

TOKEN_AXIS = (2, 2, 2, 2, 1, 2)
"""Where tokens are counted in q, k, v, separable, by_distance and features."""

Q = 0
V = 2  # among the inputs


def blocked_attention(q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms) -> Tensor:
    """Return what `attend` does, given keys and values of as many heads as queries."""
    features = None if terms.positions is None else terms.positions.features
    inputs = (terms.separable, terms.by_distance, features, *terms.learned)
    # Queries in falling order, as `falling_toeplitz` has them. Everything contiguous, or each
    # product of each block would make a copy of its own.
    falling: Tensor = _Blocked.apply(  # type: ignore[no-untyped-call]
        terms, q.flip(2), k.contiguous(), v.contiguous(), *inputs
    )
    return falling.flip(2)


class _Blocked(torch.autograd.Function):
    """Inputs: the terms; q, k, v, separable, by_distance, features; what hooks have learned."""

    @staticmethod
    def forward(ctx: Any, terms: LogitTerms, *inputs: Any) -> Tensor:
        q, k, v = inputs[:3]
        out: Tensor = v.new_empty(*q.shape[:3], v.shape[3])  # (B, H, T, E)
        for block in blocks(q, k, terms):
            scores = block.logits(terms, block.parts(inputs))  # (B, H, t, s)
            shares = block.softmax(scores).to(v.dtype)  # (B, H, t, s)
            out[:, :, block.rows] = shares @ v[:, :, : block.keys]
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
                # A hook that rewrites logits may need its own result for its gradient.
                masked = scores.detach() if ctx.terms.rewrite is None else scores.detach().clone()
                shares = block.softmax(masked, gradient=True)  # (B, H, t, s)
            grad = grad_out[:, :, block.rows]  # (B, H, t, E)
            if needed[V]:
                sums.add(V, block, shares.detach().to(v.dtype).mT @ grad)
            grad_shares = (grad @ v[:, :, : block.keys].mT).to(shares.dtype)  # (B, H, t, s)
            (grad_scores,) = torch.autograd.grad(shares, masked, grad_shares)
            wanted = [i for i in range(len(parts)) if needed[i] and i != V]
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
        part = total[block.part(i)] if i < len(TOKEN_AXIS) else total
        part += gradient


@dataclass(frozen=True)
class QueryBlock:
    """Some queries and the first keys, which are all that they may look at.

    Attributes:
        rows: where the block's queries are among all of them in falling order.
        queries: the same queries by their numbers in rising order, (t,), largest first.
        index: their columns among the keys, (B or 1, t).
        keys: number of keys.
        seen: number of leading keys that every query may look at.
    """

    rows: slice
    queries: Tensor
    index: Tensor
    keys: int
    seen: int

    def part(self, i: int) -> tuple[Any, ...]:
        """Return where the block's part of the i-th input is."""
        tokens = self.rows if i == Q else slice(self.keys)
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
        q, k, _, separable, by_distance, features = parts[: len(TOKEN_AXIS)]
        positions = terms.positions
        if positions is not None:
            positions = replace(positions.part(self.queries, self.keys), features=features)
        own = replace(terms, positions=positions, separable=separable, by_distance=by_distance)
        return unmasked_logits(q, k, own, falling=True)

    def softmax(self, scores: Tensor, *, gradient: bool = False) -> Tensor:
        """Return the share of each key, (B, H, t, s); changes the scores, (B, H, t, s).

        Args:
            scores: logits without a graph.
            gradient: the scores become a leaf whose gradient can be asked for.
        """
        columns = torch.arange(self.seen, self.keys, device=scores.device)
        later = columns > self.index[:, None, :, None]  # (B or 1, 1, t, s - seen)
        scores[..., self.seen :].masked_fill_(later, -torch.inf)
        return scores.requires_grad_(gradient).softmax(-1)


def blocks(q: Tensor, k: Tensor, terms: LogitTerms) -> Iterator[QueryBlock]:
    """Divide queries, (B, H, T, D) in falling order, over the keys (B, H, S, D)."""
    length = q.shape[2]
    size = LOGITS // (q.shape[0] * q.shape[1] * k.shape[2])
    size = min(max(size, MIN_QUERIES), MAX_QUERIES)
    for start in range(0, length, size):
        stop = min(start + size, length)
        queries = torch.arange(length - 1 - start, length - 1 - stop, -1, device=q.device)
        if terms.index is None:
            yield QueryBlock(
                slice(start, stop), queries, queries[None], length - start, length - stop
            )
        else:
            index = terms.index[:, queries]  # (B or 1, t)
            keys = int(index.max()) + 1
            yield QueryBlock(slice(start, stop), queries, index, keys, int(index.min()))
