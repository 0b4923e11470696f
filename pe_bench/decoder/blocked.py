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

LOGITS = 2**21
"""Logits of a block, about. Fewer keep the matrix units waiting, more leave the caches."""

MIN_QUERIES = 16
MAX_QUERIES = 256

TOKEN_AXIS = (2, 2, 2, 2, 1, 2)
"""Where tokens are counted in q, k, v, separable, by_distance and features."""


def blocked_attention(q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms) -> Tensor:
    """Return what `attend` does, given keys and values of as many heads as queries."""
    features = None if terms.positions is None else terms.positions.features
    # Contiguous once, or every product of every block would make a copy of its own.
    qkv = (q.contiguous(), k.contiguous(), v.contiguous())
    out: Tensor = _Blocked.apply(  # type: ignore[no-untyped-call]
        terms, *qkv, terms.separable, terms.by_distance, features, *terms.learned
    )
    return out


class _Blocked(torch.autograd.Function):
    """Inputs: the terms; q, k, v, separable, by_distance, features; what hooks have learned."""

    @staticmethod
    def forward(ctx: Any, terms: LogitTerms, *inputs: Tensor | None) -> Tensor:
        q, k, v = inputs[:3]
        assert q is not None and k is not None and v is not None
        out = v.new_empty(*q.shape[:3], v.shape[3])  # (B, H, T, E)
        for block in _blocks(q, k, terms):
            scores = block.logits(terms, block.parts_of(inputs))  # (B, H, t, s)
            shares = block.softmax(scores).to(v.dtype)  # (B, H, t, s)
            out[:, :, block.queries] = shares @ v[:, :, : block.keys]
        ctx.terms = terms
        ctx.save_for_backward(*inputs, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_out = grads[0].contiguous()  # (B, H, T, E)
        *inputs, out = ctx.saved_tensors
        q, k, v = inputs[:3]
        sums = [
            torch.zeros_like(tensor) if needed else None
            for tensor, needed in zip(inputs, ctx.needs_input_grad[1:], strict=True)
        ]
        wide = torch.promote_types(v.dtype, torch.float32)
        mean = (grad_out.to(wide) * out).sum(-1, keepdim=True)  # (B, H, T, 1), over the keys
        for block in _blocks(q, k, ctx.terms):
            parts = block.parts_of(inputs, sums)
            with torch.enable_grad():
                scores = block.logits(ctx.terms, parts)  # (B, H, t, s)
            # A rewriting hook may need its own result for its gradient.
            own = scores.detach() if ctx.terms.rewrite is None else scores.detach().clone()
            shares = block.softmax(own)  # (B, H, t, s)
            grad = grad_out[:, :, block.queries]  # (B, H, t, E)
            grad_scores = (grad @ v[:, :, : block.keys].mT).to(wide)  # (B, H, t, s)
            grad_scores.sub_(mean[:, :, block.queries]).mul_(shares)
            if sums[2] is not None:
                sums[2][:, :, : block.keys] += shares.to(v.dtype).mT @ grad
            block.add_gradients(sums, parts, scores, grad_scores)
        return None, *sums


@dataclass(frozen=True)
class _Block:
    """Some queries, in falling order, and the first keys, which are all that they may look at.

    Attributes:
        queries: their rows, (t,).
        index: their columns among the keys, (B or 1, t).
        keys: number of keys.
        seen: leading keys that every one of the queries may look at.
    """

    queries: Tensor
    index: Tensor
    keys: int
    seen: int

    def parts_of(
        self, inputs: Sequence[Tensor | None], sums: Sequence[Tensor | None] | None = None
    ) -> list[Tensor | None]:
        """Return what the block needs of each input; as leaves where a gradient is summed."""
        parts = []
        for i, tensor in enumerate(inputs):
            part = tensor
            if tensor is not None and i < len(TOKEN_AXIS):
                part = tensor[self._part(i)].detach()
                part.requires_grad_(sums is not None and sums[i] is not None and i != 2)
            parts.append(part)
        return parts

    def _part(self, i: int) -> tuple[Any, ...]:
        tokens = self.queries if i == 0 else slice(self.keys)
        return (slice(None),) * TOKEN_AXIS[i] + (tokens,)

    def logits(self, terms: LogitTerms, parts: Sequence[Tensor | None]) -> Tensor:
        """Return the block's logits before the mask, (B, H, t, s)."""
        q, k, _, separable, by_distance, features = parts[: len(TOKEN_AXIS)]
        assert q is not None and k is not None
        positions = terms.positions
        if positions is not None:
            positions = positions.part(self.queries, self.keys)
            positions = replace(positions, features=features)
        part = replace(terms, positions=positions, separable=separable, by_distance=by_distance)
        return unmasked_logits(q, k, part, falling=True)

    def softmax(self, scores: Tensor) -> Tensor:
        """Return the share of each key, (B, H, t, s); changes the scores, (B, H, t, s)."""
        columns = torch.arange(self.seen, self.keys, device=scores.device)
        later = columns > self.index[:, None, :, None]  # (B or 1, 1, t, s - seen)
        scores[..., self.seen :].masked_fill_(later, -torch.inf)
        return scores.softmax(-1)

    def add_gradients(
        self,
        sums: list[Tensor | None],
        parts: list[Tensor | None],
        scores: Tensor,
        grad_scores: Tensor,
    ) -> None:
        """Add the gradients of the parts, except v's, which does not enter the logits."""
        wanted = [i for i, total in enumerate(sums) if total is not None and i != 2]
        grads = torch.autograd.grad(
            scores, [parts[i] for i in wanted], grad_scores, allow_unused=True
        )
        for i, grad in zip(wanted, grads, strict=True):
            if grad is None:
                continue
            elif i < len(TOKEN_AXIS):
                sums[i][self._part(i)] += grad
            else:
                sums[i] += grad


def _blocks(q: Tensor, k: Tensor, terms: LogitTerms) -> Iterator[_Block]:
    queries = q.shape[2]
    logits_of_query = q.shape[0] * q.shape[1] * k.shape[2]
    size = min(max(LOGITS // logits_of_query, MIN_QUERIES), MAX_QUERIES)
    index = terms.index
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        rows = torch.arange(stop - 1, start - 1, -1, device=q.device)
        if index is None:
            yield _Block(rows, rows[None], stop, start)
        else:
            columns = index[:, rows]  # (B or 1, t)
            yield _Block(rows, columns, int(columns.max()) + 1, int(columns.min()))
