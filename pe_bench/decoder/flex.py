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


def flex_attention(q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms) -> Tensor:
    """Compute `attend` for keys and values with the same number of heads as the queries.

    Supports T == S queries in order, without `bias`, `product`, `rewrite` and `normalise`.
    """
    attention = _compiled() if q.is_cuda else _uncompiled()
    attend = functools.partial(
        attention,
        q,
        k,
        v,
        score_mod=_score_mod(terms),
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


def _score_mod(terms: LogitTerms) -> Callable[..., Tensor] | None:
    """Return the function that changes a logit, given its row, head, query and key, or None."""
    by_distance = terms.by_distance
    c = terms.separable
    if by_distance is None and c is None:
        return None
    one_row = c is not None and len(c) == 1

    def add(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if by_distance is not None:
            score = score + by_distance[head, (query - key).clamp(min=0)]
        if c is not None:
            if one_row:
                row = torch.zeros_like(row)
            score = score + (c[row, head, query] - c[row, head, key]).to(score.dtype)
        return score

    return add
