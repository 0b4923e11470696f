"""Attention with torch's flex attention, which compiles the terms of encodings into the kernel.

It needs neither padding of queries to the width of the values nor a T x S bias. On a CPU it runs
uncompiled, for tests only: it is slow, needs T x S memory and has no gradient.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard, cast

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
_differentiated: set[Signature] = set()
"""Signatures whose backward pass has been compiled."""


def flex_attention(q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms) -> Tensor:
    """Compute `attend` for keys and values with the same number of heads as the queries.

    Supports T == S queries in order, without `bias`, `product`, `rewrite` and `normalise`.

    Raises:
        CompilationError: the kernel cannot be compiled for this GPU.
    """
    if q.is_cuda:
        learned = [t for t in (q, k, v, terms.by_distance, terms.separable) if _is_learned(t)]
        attention = _compile_first(_signature(q, v, terms), learned)
    else:
        attention = _uncompiled()
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


def _signature(q: Tensor, v: Tensor, terms: LogitTerms) -> Signature:
    """Return what the kernel for q (B, H, T, D) and v (B, H, T, E) depends on."""
    learned = []
    for term in (terms.by_distance, terms.separable):
        learned.append(None if term is None else (term.dtype, term.requires_grad))
    gradients = torch.is_grad_enabled() and (q.requires_grad or v.requires_grad)
    return q.device, q.dtype, q.shape[-1], v.shape[-1], *learned, gradients


def compiles(q: Tensor, v: Tensor, terms: LogitTerms) -> bool:
    """Return False if the kernel for these arguments was found not to compile."""
    return _options.get(_signature(q, v, terms), 0) < len(KERNEL_OPTIONS)


def _compile_first(key: Signature, learned: Sequence[Tensor] = ()) -> Callable[..., Any]:
    """Return flex attention with the first block sizes that compile.

    Args:
        key: what the kernel depends on.
        learned: tensors that the backward pass computes the gradients of.
    """

    from torch._inductor.exc import InductorError  # imported here, because it takes a second

    def attention(*args: Any, **keywords: Any) -> Any:
        reason: Exception | None = None
        for number in range(_options.get(key, 0), len(KERNEL_OPTIONS)):
            _options[key] = number
            compiled = functools.partial(_compiled(), kernel_options=KERNEL_OPTIONS[number])
            try:
                if learned and key not in _differentiated:
                    _differentiate(functools.partial(compiled, *args, **keywords), learned)
                    _differentiated.add(key)
                return compiled(*args, **keywords)
            except torch.OutOfMemoryError:
                raise
            except InductorError as error:
                reason = error
        _options[key] = len(KERNEL_OPTIONS)
        raise CompilationError(str(reason).partition("\n")[0])

    return attention


def _differentiate(attend: Callable[[], Any], learned: Sequence[Tensor]) -> None:
    """Run forward and backward once, so that torch compiles the backward pass now.

    An error in the backward pass of the model would come too late to try other block sizes.
    """
    # Activation checkpointing would drop and recompute the saved tensors of this pass.
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
        found = attend()
        out = found[0] if isinstance(found, tuple) else found
        torch.autograd.grad(out, learned, torch.zeros_like(out), allow_unused=True)


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

    The function's arguments are a logit and its row, head, query and key.
    """
    by_distance = terms.by_distance
    c = terms.separable
    if by_distance is None and c is None:
        return None
    table = None
    if _is_learned(by_distance):
        table = _copies(by_distance[None], q)  # (B, H, COPIES, S)
    # The kernel reads c in its own precision and without a gradient. Added zeros carry the
    # gradients with respect to c of the query and of the key. Softmax ignores the term of the
    # query, but without its gradient the rounding errors of a cumulative sum would not cancel.
    fixed = None if c is None else c.detach()
    of_query = of_key = None
    if _is_learned(c):
        of_query = _copies(c - c.detach(), q).mT.contiguous()  # (B, H, S, COPIES)
        of_key = _copies(c.detach() - c, q)  # (B, H, COPIES, S)

    def add(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        copy = query % COPIES
        distance = (query - key).clamp(min=0)
        if table is not None:
            score = score + table[row, head, copy, distance]
        elif by_distance is not None:
            score = score + by_distance[head, distance]
        if fixed is not None:
            of_row = torch.zeros_like(row) if len(fixed) == 1 else row
            score = score + (fixed[of_row, head, query] - fixed[of_row, head, key]).to(score.dtype)
        if of_query is not None and of_key is not None:
            zero = of_query[row, head, query, key % COPIES] + of_key[row, head, copy, key]
            score = score + zero.to(score.dtype)
        return score

    return add


def _is_learned(term: Tensor | None) -> TypeGuard[Tensor]:
    return term is not None and term.requires_grad and torch.is_grad_enabled()


def _copies(term: Tensor, q: Tensor) -> Tensor:
    """Return copies of a learned term, (B or 1, H, S) -> (B, H, COPIES, S), for q (B, H, T, D).

    The kernel adds the gradient of every logit to an element of the term. Many logits have the same
    element, and additions to the same address wait for each other. Therefore, each row and each of
    COPIES neighbouring queries has a copy.
    """
    return term[:, :, None].expand(q.shape[0], -1, COPIES, -1).contiguous()
