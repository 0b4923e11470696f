"""Attention by blocks of queries, for any encoding, with memory linear in T.

Each block of queries is multiplied only with the keys up to its last query, so half of the products
are skipped. Its logits are discarded and recomputed in the backward pass.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pe_bench.decoder.logits import LogitTerms, unmasked_logits
from pe_bench.positions import ALIGNED, Positions, at_queries

LOGITS = {"cpu": 2**22, "cuda": 2**27}
"""Approximate number of logits per block, by type of device.

On a CPU, more logits overflow the caches. On a GPU, every block reads all its keys from memory, so
fewer blocks are faster; 2^27 logits are half a GiB in float32.
"""

MIN_QUERIES = 16
MAX_QUERIES = {"cpu": 256, "cuda": 2048}
"""Maximum number of queries per block, by type of device.

Larger blocks skip fewer products of masked keys. On a GPU, the time of a small block is that of
starting its kernels.
"""

PREPARED_FACTOR = 2
"""Factor on LOGITS if a product is prepared, which has a small cost for each block."""

TOKEN_AXIS = (2, 2, 2, 2, 1, 2, 2)
"""Dimension of the tokens in q, k, v, separable, by_distance, features and prepared."""

Q = 0
V = 2
BY_DISTANCE = 4
SINK = 7  # index among the inputs


def blocked_attention(q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms) -> Tensor:
    """Compute `attend` for keys and values with the same number of heads as the queries."""
    features = None if terms.positions is None else terms.positions.features
    of_keys = (terms.separable, terms.by_distance, features, terms.prepared)
    inputs = (*of_keys, terms.sink, *terms.learned)
    # Queries are in descending order, as in `reversed_toeplitz`. All tensors are contiguous, so
    # that the products of blocks need no copies.
    out: Tensor = _Blocked.apply(  # type: ignore[no-untyped-call]
        terms, q.flip(2), k.contiguous(), v.contiguous(), *inputs
    )
    return out.flip(2)


class _Blocked(torch.autograd.Function):
    """Inputs: terms; q, k, v, separable, by_distance, features, prepared, sink; learned."""

    @staticmethod
    def forward(ctx: Any, terms: LogitTerms, *inputs: Any) -> Tensor:
        q, k, v = inputs[:3]
        out: Tensor = v.new_empty(*q.shape[:3], v.shape[3])  # (B, H, T, E)
        hooks = (terms.bias, terms.product, terms.rewrite, terms.normalise)
        may_draw = any(hooks) and any(ctx.needs_input_grad) and type(q) is Tensor  # not fake
        states = RandomStates(q.device) if may_draw else None
        for block in blocks(q, k, terms):
            scores = block.logits(terms, block.slice_inputs(inputs))  # (B, H, t, s)
            weights = terms.attention_weights(block.mask_(scores)).to(v.dtype)  # (B, H, t, s)
            out[:, :, block.rows] = weights @ v[:, :, block.keys]
        ctx.terms = terms
        ctx.random_states = states if states and states.changed else None
        ctx.save_for_backward(*inputs)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.random_states is None:
            return _Blocked._gradients(ctx, *grads)
        with ctx.random_states.restored():  # for hooks with dropout
            return _Blocked._gradients(ctx, *grads)

    @staticmethod
    def _gradients(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_out = grads[0].contiguous()  # (B, H, T, E)
        inputs = ctx.saved_tensors
        q, k, v = inputs[:3]
        needed = ctx.needs_input_grad[1:]
        sums = GradientSums(inputs)
        for block in blocks(q, k, ctx.terms):
            parts = block.slice_inputs(inputs, needed)
            with torch.enable_grad():
                scores = block.logits(ctx.terms, parts)  # (B, H, t, s)
                masked = scores.detach()
                if ctx.terms.calls_hooks:  # hooks may need their output in their backward pass
                    masked = masked.clone()
                masked = block.mask_(masked).requires_grad_()
                weights = replace(ctx.terms, sink=parts[SINK]).attention_weights(
                    masked
                )  # (B, H, t, s)
            grad = grad_out[:, :, block.rows]  # (B, H, t, E)
            if needed[V]:
                sums.add(V, block, weights.detach().to(v.dtype).mT @ grad)
            grad_weights = (grad @ v[:, :, block.keys].mT).to(weights.dtype)  # (B, H, t, s)
            of_weights = [masked, parts[SINK]] if needed[SINK] else [masked]
            grad_scores, *grad_sink = torch.autograd.grad(weights, of_weights, grad_weights)
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


class RandomStates:
    """The states of the random number generators that hooks may use.

    Args:
        device: device of the model.
    """

    def __init__(self, device: torch.device) -> None:
        self.devices = [device] if device.type == "cuda" else []
        self.states = self._read()

    @property
    def changed(self) -> bool:
        """Whether random numbers have been drawn since the states were read."""
        pairs = zip(self.states, self._read(), strict=True)
        return not all(torch.equal(before, after) for before, after in pairs)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Draw the same numbers again inside the context."""
        with torch.random.fork_rng(self.devices):
            torch.set_rng_state(self.states[0])
            for device, state in zip(self.devices, self.states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield

    def _read(self) -> list[Tensor]:
        return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self.devices)]


class GradientSums:
    """Gradients of the inputs, summed over blocks; None for inputs without a gradient."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self.inputs = inputs
        self.totals: list[Tensor | None] = [None] * len(inputs)

    def add(self, i: int, block: "QueryBlock", gradient: Tensor) -> None:
        """Add the gradient of a block's slice of the i-th input."""
        total = self.totals[i]
        if total is None:
            total = torch.zeros_like(self.inputs[i])
            self.totals[i] = total
        if i < len(TOKEN_AXIS):
            total[block.slice_of(i)] += gradient
        else:
            total += gradient


@dataclass(frozen=True)
class QueryBlock:
    """A block of queries and the keys that they may attend to.

    Attributes:
        rows: range of the queries when all queries are in descending order.
        queries: indices of the queries when all queries are in ascending order, (t,), descending.
        keys: indices of the keys in ascending order: a slice, or (s,).
        seen: number of leading keys that every query may attend to.
        hidden: True where a query must not attend to one of the other keys, (B or 1, 1, t,
            s - seen).
    """

    rows: slice
    queries: Tensor
    keys: slice | Tensor
    seen: int
    hidden: Tensor

    def slice_of(self, i: int) -> tuple[Any, ...]:
        """Return the index of the block's slice of the i-th input."""
        tokens = self.rows if i == Q else self.keys
        if i == BY_DISTANCE:  # starts at distance 0
            last = self.keys.stop - self.keys.start if isinstance(self.keys, slice) else None
            tokens = slice(last)
        return (*(slice(None),) * TOKEN_AXIS[i], tokens)

    def slice_inputs(self, inputs: Sequence[Any], needed: Sequence[bool] = ()) -> list[Any]:
        """Return the block's slice of each input, as a leaf if the logits need its gradient."""
        parts = list(inputs)
        for i in range(len(TOKEN_AXIS)):
            if inputs[i] is not None:
                parts[i] = inputs[i][self.slice_of(i)].detach()
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
            positions = replace(
                part, features=features, prepared=prepared, is_reversed_suffix=in_order
            )
        terms = replace(terms, positions=positions, separable=separable, by_distance=by_distance)
        if by_distance is not None and not isinstance(self.keys, slice):
            distance = (self.queries[:, None] - self.keys).clamp(min=0)  # (t, s)
            terms = replace(terms, by_distance=None, bias=lambda _: by_distance[None, :, distance])
        if separable is None or terms.calls_hooks:
            return unmasked_logits(q, k, terms, reversed_queries=True)
        scores = unmasked_logits(q, k, replace(terms, separable=None), reversed_queries=True)
        return self._add_difference_(scores, separable, positions)

    def _add_difference_(self, scores: Tensor, c: Tensor, positions: Positions | None) -> Tensor:
        """Add c_i - c_j, (B or 1, H, s), to logits, (B, H, t, s), in place.

        Both are relative to the block's last query, so that float32 is precise near it, and no
        matrix of differences is allocated.
        """
        index = self.queries[None] if positions is None else positions.index  # (B or 1, t)
        at_query = at_queries(c[..., None], index)  # (B or 1, H, t, 1)
        last = at_query[..., :1, :].detach()  # (B or 1, H, 1, 1)
        scores += (at_query - last).to(scores.dtype)
        scores += (last - c[..., None, :]).to(scores.dtype)
        return scores

    def mask_(self, scores: Tensor) -> Tensor:
        """Set logits without a graph, (B, H, t, s), to -inf at masked keys, in place."""
        # The mask is the same for all heads. This takes a seventh of the time of masked_fill_.
        bounds = torch.where(self.hidden, -torch.inf, torch.inf)  # (B or 1, 1, t, s - seen)
        scores[..., self.seen :].clamp_max_(bounds)
        return scores


def blocks(q: Tensor, k: Tensor, terms: LogitTerms) -> Iterator[QueryBlock]:
    """Divide the queries, (B, H, T, D) in descending order, into blocks; k is (B, H, S, D)."""
    length = q.shape[2]
    keys = k.shape[2]
    span = min(keys, (terms.visible.kept or keys) + terms.visible.first)
    aligned = 1 if terms.prepared is None else ALIGNED
    factor = 1 if terms.prepared is None else PREPARED_FACTOR
    device = q.device.type if q.device.type in LOGITS else "cpu"
    size = factor * LOGITS[device] // (q.shape[0] * q.shape[1] * span)
    size = max(min(max(size, MIN_QUERIES), MAX_QUERIES[device]), aligned)  # at least one chunk
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
    columns = torch.arange(start, highest + 1, device=queries.device)  # (s,)
    keys: slice | Tensor = slice(start, highest + 1)
    if visible.first and start:
        first = torch.arange(min(visible.first, start), device=queries.device)
        columns = keys = torch.cat([first, columns])
    hidden = ~visible.mask(column, columns[None])  # (B or 1, 1, t, s)
    return QueryBlock(rows, queries, keys, 0, hidden)


def _block_of_all_keys(rows: slice, queries: Tensor, keys: int, terms: LogitTerms) -> QueryBlock:
    """Return the block of queries, (t,), for keys in any order."""
    assert terms.positions is not None  # it has the columns of the keys
    all_keys = slice(0, keys)
    hidden = ~terms.positions.part(queries, all_keys).causal  # (B or 1, 1, t, S)
    return QueryBlock(rows, queries, all_keys, 0, hidden)
