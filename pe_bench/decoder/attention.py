"""Causal attention: one function, several backends, the same numbers.

| backend | implementation | memory | supports |
|---|---|---|---|
| eager | plain PyTorch; reference implementation | T x S | everything |
| sdpa | torch's fused attention; a bias is a mask | T; T x S with a mask | all but three hooks |
| blocked | blocks of queries; calls the hooks for each | T | everything |
| flex | torch's flex attention, compiled on CUDA | T | as sdpa, without `bias` |

The three hooks are `product`, `rewrite_logits` and `normalise`.

On a CPU torch's kernel is slow for short rows. Without a bias, training uses `short.py` for them.
With a bias, "auto" uses plain products, the first of which adds the bias; they count as `eager`.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

import torch
from torch import Tensor

from pe_bench.decoder import flex
from pe_bench.decoder.blocked import blocked_attention
from pe_bench.decoder.logits import (
    PLAIN,
    LogitTerms,
    attention_logits,
    dense_bias,
    repeat_heads,
)
from pe_bench.decoder.sdpa import sdpa_attention
from pe_bench.errors import InputError
from pe_bench.positions import separable_matrix

Backend = Literal["auto", "eager", "sdpa", "blocked", "flex"]
BACKENDS: tuple[Backend, ...] = tuple(b for b in get_args(Backend) if b != "auto")

LONG = 512
"""Minimum number of queries for which blocks are cheaper than a T x S matrix."""

SHORT = 64
"""Maximum row length for which plain products are faster on a CPU than a kernel with a mask."""

FEW = 16
"""Maximum number of queries for which copying all cached keys is slower than the products."""

FLEX_DEVICES = ["cuda"]
"""Devices on which flex attention is compiled and has a gradient."""

NOT_COMPILED = "it does not compile for this GPU"

_used: ContextVar[list[Backend] | None] = ContextVar("used", default=None)


@contextmanager
def record_backends() -> Iterator[list[Backend]]:
    """Record the backend of every call of `attend` inside the context, in order."""
    used: list[Backend] = []
    token = _used.set(used)
    try:
        yield used
    finally:
        _used.reset(token)


def attend(
    q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms = PLAIN, *, backend: Backend = "auto"
) -> Tensor:
    """Return softmax(q k^T / sqrt(D) + c_i - c_j + bias_ij) v over the visible keys j <= i.

    Args:
        q: queries, (B, H, T, D).
        k: keys, (B, G, S, D); G divides H.
        v: values, (B, G, S, E); or (B, H, S, E), one for every query head.
        terms: terms of the logits.
        backend: implementation; "auto": the fastest that supports the terms.

    Returns:
        (B, H, T, E), in v's dtype.

    Raises:
        InputError: the backend does not support the terms.
    """
    automatic = backend == "auto"
    short = automatic and _is_short_with_bias(q, k, terms)
    if short:
        backend = "eager"
    elif backend == "auto":
        backend = fastest(q, v, terms)
    else:
        reason = reason_against(backend, q, v, terms)
        if reason is not None:
            raise InputError(_refusal(backend, reason, q, v, terms))
    k = repeat_heads(k, q.shape[1])  # (B, H, S, D)
    v = repeat_heads(v, q.shape[1])  # (B, H, S, E)
    try:
        out = _short_with_bias(q, k, v, terms) if short else _attend(backend, q, k, v, terms)
    except flex.CompilationError as error:
        if not automatic:
            reason = f"{NOT_COMPILED} ({error})"
            raise InputError(_refusal(backend, reason, q, v, terms)) from error
        backend = fastest(q, v, terms)  # without flex, which is known not to compile
        warnings.warn(f"using backend {backend} instead of flex: {error}", stacklevel=2)
        out = _attend(backend, q, k, v, terms)
    if not torch.compiler.is_compiling():
        used = _used.get()
        if used is not None:
            used.append(backend)
    return out


def _attend(backend: Backend, q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms) -> Tensor:
    """Compute `attend` with a backend; keys and values have the same number of heads as queries."""
    if backend == "sdpa":
        return sdpa_attention(q, k, v, terms)
    if backend == "blocked":
        return blocked_attention(q, k, v, terms)
    if backend == "flex":
        return flex.flex_attention(q, k, v, terms)
    return terms.attention_weights(attention_logits(q, k, terms)).to(v.dtype) @ v


def _refusal(backend: Backend, reason: str, q: Tensor, v: Tensor, terms: LogitTerms) -> str:
    return f"backend {backend} is not possible here: {reason}; use {fastest(q, v, terms)}"


def fastest(q: Tensor, v: Tensor, terms: LogitTerms) -> Backend:
    """Return the fastest backend for q (B, H, T, D) and v (B, G or H, S, E).

    "auto" selects it, except for short rows with a bias on a CPU.
    """
    order: list[Backend] = ["sdpa", "eager"] if q.shape[2] < LONG else ["blocked", "eager"]
    if not terms.of_pairs and terms.normalise is None:
        order = ["sdpa", "blocked"]
        few = terms.index is not None and q.shape[2] <= FEW
        if few and q.dtype.itemsize >= 4 and _sdpa_copies(q, v, terms):
            order = ["eager"]
        if terms.hides(v.shape[2]) and q.shape[2] >= LONG:
            order = ["blocked"]  # it skips masked keys, for which sdpa needs a mask
    wide = v.shape[-1] > q.shape[-1]  # sdpa pads q and k to the width of v
    if q.is_cuda and q.shape[2] >= LONG and (wide or order[0] != "sdpa"):
        order.insert(0, "flex")
    return next(backend for backend in order if reason_against(backend, q, v, terms) is None)


def reason_against(
    backend: Backend, q: Tensor, v: Tensor, terms: LogitTerms, *, device: str = ""
) -> str | None:
    """Return why a backend does not support q (B, H, T, D) and v (B, G or H, S, E), or None.

    Args:
        device: type of the device; empty: the device of q.
    """
    if backend == "sdpa":
        return _reason_against_sdpa(q, terms)
    if backend == "blocked":
        of_state = terms.positions is not None and terms.positions.state is not None
        if of_state and (terms.bias is not None or terms.calls_hooks):
            return "the encoding computes logits from a state, which cannot be divided into blocks"
    if backend == "flex":
        device = device or q.device.type
        if device not in FLEX_DEVICES:
            return "it needs CUDA"
        if device == "cuda" and q.dtype == torch.float64:
            return "it adds in float32"
        if device == "cuda" and min(q.shape[-1], v.shape[-1]) < 16:
            return "it needs heads of at least 16 channels"
        return _reason_against_flex(q, v, terms)
    return None


def _reason_against_sdpa(q: Tensor, terms: LogitTerms) -> str | None:
    reason = _reason_against_fusing(terms)
    if reason is not None:
        return reason
    if terms.sink is not None and terms.separable is not None:
        return "the encoding adds both c_i - c_j and a sink"
    narrow = q.dtype.itemsize < 4
    if narrow and terms.of_pairs:
        return f"it would round the encoding's bias to {str(q.dtype).removeprefix('torch.')}"
    c = terms.separable
    learns_c = c is not None and c.requires_grad and torch.is_grad_enabled()
    if learns_c:
        return "the gradient of c_i - c_j would be coarse"
    return None


def _sdpa_copies(q: Tensor, v: Tensor, terms: LogitTerms) -> bool:
    """Return whether sdpa needs padded copies of k or v, (B, G or H, S, E)."""
    widened = v.shape[-1] != q.shape[-1]
    return widened or terms.separable is not None or terms.sink is not None


def _reason_against_flex(q: Tensor, v: Tensor, terms: LogitTerms) -> str | None:
    reason = _reason_against_fusing(terms)
    if reason is not None:
        return reason
    if terms.bias is not None:
        return "the encoding's bias depends on more than the distance"
    if terms.index is not None or q.shape[2] != v.shape[2]:
        return "some of the tokens are cached"
    if q.is_cuda and not flex.compiles(q, v, terms):
        return NOT_COMPILED
    return None


def _reason_against_fusing(terms: LogitTerms) -> str | None:
    if terms.product is not None:
        return "the encoding replaces the product of queries and keys"
    if terms.rewrite is not None:
        return "the encoding rewrites logits"
    if terms.normalise is not None:
        return "the encoding replaces the softmax"
    return None


def _is_short_with_bias(q: Tensor, k: Tensor, terms: LogitTerms) -> bool:
    """Return whether plain products suit q (B, H, T, D) and k (B, G, S, D) with a bias."""
    if terms.bias is None and terms.by_distance is None:
        return False
    if q.device.type != "cpu" or q.dtype.itemsize < 4 or torch.is_autocast_enabled("cpu"):
        return False
    if max(q.shape[2], k.shape[2]) > SHORT or terms.index is not None or terms.sink is not None:
        return False
    return _reason_against_fusing(terms) is None


def _short_with_bias(q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms) -> Tensor:
    """Compute attention for q (B, H, T, D), k (B, H, T, D), v (B, H, T, E) -> (B, H, T, E)."""
    rows, heads, length = q.shape[:3]
    bias = dense_bias(terms, length, length, q.device)  # (B or 1, H or 1, T, T)
    seen = terms.mask(length, length, q.device)  # (B or 1, 1, T, T)
    if bias is None:  # the hook returned None
        bias = q.new_zeros(seen.shape)
    if terms.separable is not None:
        bias = bias + separable_matrix(terms.separable, None)  # (B or 1, H, T, T)
    added = bias.to(q.dtype).masked_fill(~seen, -torch.inf)  # (B or 1, H or 1, T, T)
    added = added.expand(rows, heads, length, length).flatten(0, 1)  # (B H, T, T)
    scale = 1 / terms.divisor(q.shape[-1])
    logits = torch.baddbmm(added, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=scale)  # (B H, T, T)
    out = logits.softmax(-1) @ v.flatten(0, 1)  # (B H, T, E)
    return out.view(rows, heads, length, -1)
