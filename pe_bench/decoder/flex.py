"""Attention with torch's flex attention, which compiles the terms of encodings into the kernel.

It needs neither padding of queries to the width of the values nor a T x S bias. On a CPU it runs
uncompiled, for tests only: it is slow, needs T x S memory and has no gradient.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from pe_bench.decoder.logits import LogitTerms
from pe_bench.visibility import Visibility

GRAPHS = 128
"""Maximum number of compiled graphs: one for each combination of terms, value width and dtype."""

KERNEL_OPTIONS: tuple[dict[str, int], ...] = (
    {},
    {"BLOCK_M": 64, "BLOCK_N": 64, "num_stages": 2},
    {"BLOCK_M": 32, "BLOCK_N": 32, "num_stages": 1},
)
"""Block sizes to try in order; {}: torch's choice, which does not count the memory of the terms.

On an H200, torch's choice for 64 channels in bfloat16 does not compile with a table of distances.
"""

COPIES = 16
"""Number of copies of a term with a gradient for each row of the batch."""

Signature = tuple[object, ...]
_options: dict[Signature, int] = {}
"""Index of the block sizes that compile; len(KERNEL_OPTIONS): none."""


def flex_attention(q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms) -> Tensor:
    """Compute `attend` for keys and values with the same number of heads as the queries.

    Supports T == S queries in order, without `bias`, `product`, `rewrite` and `normalise`.

    Raises:
        CompilationError: the kernel cannot be compiled for this GPU.
    """
    attention = _compile_first(signature(q, v, terms)) if q.is_cuda else _uncompiled()
    attend = functools.partial(
        attention,
        q,
        k,
        v,
        score_mod=_score_mod(q, terms),
        block_mask=_visible_blocks(q.shape[2], q.device, terms.visible),
        scale=1 / terms.divisor(q.shape[-1]),
    )
    out: Tensor
    if terms.sink is None:
        out = attend()  # (B, H, T, E)
        return out
    out, aux = attend(return_aux=torch_flex.AuxRequest(lse=True))
    # Not sigmoid(): its gradient, 1 - kept, is imprecise where the sink has little weight.
    kept = F.logsigmoid(aux.lse - terms.sink[:, None].to(aux.lse.dtype)).exp()  # (B, H, T)
    out = out * kept[..., None].to(out.dtype)
    return out


class CompilationError(RuntimeError):
    """Flex attention cannot be compiled for this GPU with the terms of an encoding."""


def signature(q: Tensor, v: Tensor, terms: LogitTerms) -> Signature:
    """Return what the kernel for q (B, H, T, D) and v (B, H, T, E) depends on."""
    learned = []
    for term in (terms.by_distance, terms.separable):
        learned.append(None if term is None else (term.dtype, term.requires_grad))
    gradients = torch.is_grad_enabled() and (q.requires_grad or v.requires_grad)
    return q.device, q.dtype, q.shape[-1], v.shape[-1], *learned, gradients


def compiles(q: Tensor, v: Tensor, terms: LogitTerms) -> bool:
    """Return False if the kernel for these arguments was found not to compile."""
    return _options.get(signature(q, v, terms), 0) < len(KERNEL_OPTIONS)


def _compile_first(key: Signature) -> Callable[..., Any]:
    """Return flex attention with the first block sizes that compile."""

    from torch._inductor.exc import InductorError  # imported here, because it takes a second

    def attention(*args: Any, **keywords: Any) -> Any:
        reason: Exception | None = None
        for number in range(_options.get(key, 0), len(KERNEL_OPTIONS)):
            _options[key] = number
            try:
                return _compiled()(*args, kernel_options=KERNEL_OPTIONS[number], **keywords)
            except torch.OutOfMemoryError:
                raise
            except InductorError as error:
                reason = error
        _options[key] = len(KERNEL_OPTIONS)
        raise CompilationError(str(reason).partition("\n")[0])

    return attention


@functools.cache
def _compiled() -> Callable[..., Any]:
    from torch._dynamo import config  # imported here, because it takes seconds

    # After 8 graphs torch would fall back to uncompiled code with T x S memory.
    config.recompile_limit = max(config.recompile_limit, GRAPHS)
    return torch.compile(_uncompiled())


def _uncompiled() -> Callable[..., Any]:
    return cast(Callable[..., Any], torch_flex.flex_attention)


@functools.lru_cache(maxsize=16)
def _visible_blocks(length: int, device: torch.device, visible: Visibility) -> torch_flex.BlockMask:
    sees_all = visible.kept is None  # not below: torch cannot always trace it

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = query >= key
        if sees_all:
            return seen
        return seen & ((key >= visible.start(query)) | (key < visible.first))

    return torch_flex.create_block_mask(sees, None, None, length, length, device=str(device))


def _score_mod(q: Tensor, terms: LogitTerms) -> Callable[..., Tensor] | None:
    """Return the function that changes a logit of q (B, H, T, D), or None.

    The function's arguments are a logit and its row, head, query and key. If a term needs a
    gradient, the kernel adds the gradient of every logit to an element of it. Many logits have the
    same element, and additions to the same address wait for each other. Every row and every one of
    COPIES neighbouring queries therefore has a copy of the term.
    """
    by_distance = terms.by_distance
    c = terms.separable
    if by_distance is None and c is None:
        return None
    one_row = c is not None and len(c) == 1
    table = None if by_distance is None else _copies(by_distance[None], q)
    # The kernel reads c itself, in its own precision and without a gradient. Zeros have the
    # gradients of the query and of the key. Without that of the query, which softmax ignores, the
    # rounding errors of a cumulative sum would not cancel.
    fixed = None if c is None else c.detach()
    of_query = None if c is None else _copies(c - c.detach(), q).mT.contiguous()
    of_key = None if c is None else _copies(c.detach() - c, q)

    def add(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        copy = query % COPIES
        if table is not None:
            distance = (query - key).clamp(min=0)
            if table.shape[2] == COPIES:
                score = score + table[row, head, copy, distance]
            else:
                score = score + table[0, head, 0, distance]
        if fixed is not None and of_query is not None and of_key is not None:
            of_row = torch.zeros_like(row) if one_row else row
            score = score + (fixed[of_row, head, query] - fixed[of_row, head, key]).to(score.dtype)
            if of_key.requires_grad:
                zero = of_query[row, head, query, key % COPIES] + of_key[row, head, copy, key]
                score = score + zero.to(score.dtype)
        return score

    return add


def _copies(term: Tensor, q: Tensor) -> Tensor:
    """Return a term (B or 1, H, S), as (B, H, COPIES, S) if it needs a gradient, or (., H, 1, S).

    Args:
        term: the term.
        q: queries, (B, H, T, D).
    """
    term = term[:, :, None]  # (B or 1, H, 1, S)
    if not (term.requires_grad and torch.is_grad_enabled()):
        return term.detach()
    return term.expand(q.shape[0], -1, COPIES, -1).contiguous()
