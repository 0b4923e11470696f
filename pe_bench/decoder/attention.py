"""Causal attention: one function, several backends, the same numbers.

"eager" is the reference, as short as the formula, with T x S memory. "sdpa" is torch's fused
attention, which takes causal masks, separable biases and wide values without T x S memory.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_bench.errors import InputError
from pe_bench.positions import causal_mask, separable_matrix

Backend = Literal["auto", "eager", "sdpa"]
RewriteLogits = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LogitTerms:
    """How logits are made of queries and keys.

    Attributes:
        index: column of each query among the keys, (B or 1, T); None: T == S, query i is column i.
        separable: c, (B or 1, H, S), float32 or wider; c_i - c_j is added.
        bias: (B or 1, H or 1, T, S), is added.
        rewrite: (scores, q, k) -> scores, see `Encoding.rewrite_logits`; needs the eager backend.
        divide: the product of queries and keys is divided by sqrt(D).
    """

    index: Tensor | None = None
    separable: Tensor | None = None
    bias: Tensor | None = None
    rewrite: RewriteLogits | None = None
    divide: bool = True

    def divisor(self, head_dim: int) -> float:
        """What products of queries and keys are divided by."""
        return math.sqrt(head_dim) if self.divide else 1.0


PLAIN = LogitTerms()


def attend(
    q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms = PLAIN, *, backend: Backend = "auto"
) -> Tensor:
    """Return softmax(q k^T / sqrt(D) + c_i - c_j + bias_ij) v over keys j <= i.

    Args:
        q: queries, (B, H, T, D).
        k: keys, (B, G, S, D); G divides H.
        v: values, (B, G, S, E); or (B, H, S, E) where every query head has its own.
        terms: what is done to the logits.
        backend: "auto" takes the fastest that can do it.

    Returns:
        (B, H, T, E), in v's dtype.

    Raises:
        InputError: a backend that cannot do what is asked for.
    """
    if terms.rewrite is not None and backend not in ("auto", "eager"):
        raise InputError(f"this encoding rewrites logits: use backend eager, not {backend}")
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # (B, H, S, D)
    v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)  # (B, H, S, E)
    if backend == "eager" or terms.rewrite is not None:
        scores = attention_logits(q, k, terms)
        return scores.softmax(-1).to(v.dtype) @ v
    return _sdpa(q, k, v, terms)


def attention_logits(q: Tensor, k: Tensor, terms: LogitTerms = PLAIN) -> Tensor:
    """Return what the softmax of `attend` is given, (B, H, T, S), -inf where no query may look."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # (B, H, S, D)
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q @ k.mT).to(wide)  # (B, H, T, S)
    if terms.divide:
        scores = scores / terms.divisor(q.shape[-1])
    if terms.separable is not None:
        scores = scores + separable_matrix(terms.separable, terms.index).to(wide)
    if terms.bias is not None:
        scores = scores + terms.bias
    if terms.rewrite is not None:
        scores = terms.rewrite(scores, q, k)
    causal = causal_mask(terms.index, q.shape[2], k.shape[2], q.device)  # (B or 1, 1, T, S)
    return scores.masked_fill(~causal, -torch.inf)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms) -> Tensor:
    scale = 1 / terms.divisor(q.shape[-1])
    width = v.shape[-1]
    if terms.separable is not None:
        q, k = _fold(q, k, terms.separable, scale)  # (B, H, T, D + parts), (B, H, S, D + parts)
    # Torch's fused kernels want one width for q, k and v (on a CPU they refuse anything else and
    # fall back to T x S memory). Zeros change neither the products nor the sums.
    widest = max(q.shape[-1], width)
    q = _pad(q, widest)
    k = _pad(k, widest)
    v = _pad(v, widest)
    mask = None
    if terms.index is not None or terms.bias is not None:
        mask = causal_mask(terms.index, q.shape[2], k.shape[2], q.device)  # (B or 1, 1, T, S)
        if terms.bias is not None:
            mask = terms.bias.to(q.dtype).masked_fill(~mask, -torch.inf)  # (B or 1, H, T, S)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale
    )
    return out[..., :width]


def _pad(t: Tensor, width: int) -> Tensor:
    return F.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t


def _fold(q: Tensor, k: Tensor, c: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Carry c_i - c_j inside the product of q and k, so that no T x S bias is built.

    Softmax ignores what is the same for all keys of a query, so only -c_j is needed: k gets it as
    extra features where q has ones. A low-precision type holds it as a sum of three parts; one
    part alone is 13 to 27 % wrong in bfloat16.
    """
    # Late keys, where a decaying attention looks, keep the finest resolution if the end is zero.
    rest = (c[..., -1:] - c).expand(k.shape[0], -1, -1) / scale  # (B, H, S)
    parts = []
    for _ in range(3 if k.dtype.itemsize < 4 else 1):
        parts.append(rest.to(k.dtype))
        rest = rest - parts[-1].to(rest.dtype)
    features = torch.stack(parts, dim=-1)  # (B, H, S, parts)
    ones = q.new_ones(()).expand(*q.shape[:-1], len(parts))  # (B, H, T, parts)
    return torch.cat([q, ones], dim=-1), torch.cat([k, features], dim=-1)
