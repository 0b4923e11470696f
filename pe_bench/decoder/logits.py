"""Attention logits: query-key products plus the terms that an encoding adds."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_bench.positions import Positions, in_order, separable_matrix
from pe_bench.visibility import EVERYTHING, Visibility

Bias = Callable[[Positions], Tensor | None]
Product = Callable[[Tensor, Tensor, Positions], Tensor]
RewriteLogits = Callable[[Tensor, Tensor, Tensor, Positions], Tensor]
Normalise = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LogitTerms:
    """Everything that turns queries and keys into attention logits.

    Attributes:
        positions: positions of queries and keys; None: T == S, in order.
        separable: c, (B or 1, H, S), float32 or wider; c_i - c_j is added.
        by_distance: bias at distances 0, 1, ..., (H, S), if T == S and ids are 0, 1, ...
        bias: positions -> (B or 1, H or 1, T, S), is added.
        product: (q, k, positions) -> (B, H, T, S), instead of q k^T / sqrt(D).
        rewrite: (scores, q, k, positions) -> scores, see `Encoding.rewrite_logits`.
        divide: whether the query-key product is divided by sqrt(D).
        sink: a logit per head, (H,), which takes part in the softmax without a value.
        normalise: logits (B, H, T, S), -inf where masked -> attention weights.
        learned: parameters that `bias`, `product` and `rewrite` read.
    """

    positions: Positions | None = None
    separable: Tensor | None = None
    by_distance: Tensor | None = None
    bias: Bias | None = None
    product: Product | None = None
    rewrite: RewriteLogits | None = None
    divide: bool = True
    sink: Tensor | None = None
    normalise: Normalise | None = None
    learned: tuple[Tensor, ...] = field(default=(), repr=False)

    @property
    def index(self) -> Tensor | None:
        """Index of each query among the keys, (B or 1, T); None: query i has index i."""
        return None if self.positions is None else self.positions.index

    @property
    def visible(self) -> Visibility:
        """Keys that a query may attend to."""
        return EVERYTHING if self.positions is None else self.positions.visible

    @property
    def columns(self) -> Tensor | None:
        """Index of each key in its sequence, (B or 1, S); None: 0, 1, 2, ..."""
        return None if self.positions is None else self.positions.columns

    @property
    def prepared(self) -> Tensor | None:
        """The return value of `prepare_product`, (B, H, S, F), or None."""
        return None if self.positions is None else self.positions.prepared

    @property
    def of_pairs(self) -> bool:
        """Whether logits depend on pairs of tokens by more than c_i - c_j."""
        return self.calls_hooks or not (self.by_distance is None and self.bias is None)

    @property
    def calls_hooks(self) -> bool:
        """Whether the encoding computes products or logits itself, without a fused kernel."""
        return not (self.product is None and self.rewrite is None)

    def hides(self, keys: int) -> bool:
        """Return whether any of `keys` queries is masked from an earlier key."""
        return self.columns is not None or self.visible.hides(keys)

    def mask(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """Return True where a query may attend to a key, (B or 1, 1, T, S)."""
        if self.positions is not None and self.columns is not None:
            return self.positions.causal
        rows = torch.arange(queries, device=device)[None] if self.index is None else self.index
        return self.visible.mask(rows, torch.arange(keys, device=device)[None])

    def attention_weights(self, logits: Tensor) -> Tensor:
        """Return attention weights from masked logits: (B, H, T, S) -> (B, H, T, S)."""
        if self.normalise is not None:
            return self.normalise(logits)
        if self.sink is None:
            return logits.softmax(-1)
        sink = self.sink.to(logits.dtype)[:, None, None].expand(*logits.shape[:3], 1)
        return torch.cat([sink, logits], dim=-1).softmax(-1)[..., 1:]

    def capped(self, cap: float) -> "LogitTerms":
        """Return terms whose logits z become cap tanh(z / cap) (Gemma 2, arXiv 2408.00118)."""
        before = self.rewrite

        def rewrite(scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
            scores = scores if before is None else before(scores, q, k, positions)
            return cap * torch.tanh(scores / cap)

        return replace(self, rewrite=rewrite)

    def divisor(self, head_dim: int) -> float:
        """Divisor of the query-key product."""
        return math.sqrt(head_dim) if self.divide else 1.0


PLAIN = LogitTerms()


def attention_logits(q: Tensor, k: Tensor, terms: LogitTerms = PLAIN) -> Tensor:
    """Return the logits of `attend`, (B, H, T, S), -inf at masked keys."""
    k = repeat_heads(k, q.shape[1])  # (B, H, S, D)
    scores = unmasked_logits(q, k, terms)
    seen = terms.mask(q.shape[2], k.shape[2], q.device)  # (B or 1, 1, T, S)
    return scores.masked_fill(~seen, -torch.inf)


def unmasked_logits(
    q: Tensor, k: Tensor, terms: LogitTerms, *, reversed_queries: bool = False
) -> Tensor:
    """Return the logits before the causal mask: (B, H, T, D), (B, H, S, D) -> (B, H, T, S).

    Args:
        q: queries.
        k: keys, with the same number of heads as q.
        terms: terms of the logits.
        reversed_queries: the queries are in descending order, for `by_distance`.
    """
    positions = terms.positions or in_order(q.shape[2], q.device)
    if terms.product is not None:
        scores = terms.product(q, k, positions)
    else:
        scores = scaled_product(q, k, terms.divisor(q.shape[-1]))
    if terms.separable is not None:
        scores = scores + separable_matrix(terms.separable, positions.index).to(scores.dtype)
    if terms.by_distance is not None:
        bias = reversed_toeplitz(terms.by_distance, q.shape[2], k.shape[2])  # (H, T, S)
        scores = scores + (bias if reversed_queries else bias.flip(-2))
    if terms.bias is not None:
        bias_of_pairs = terms.bias(positions)
        if bias_of_pairs is not None:
            scores = scores + bias_of_pairs
    if terms.rewrite is not None:
        scores = terms.rewrite(scores, q, k, positions)
    return scores


def scaled_product(q: Tensor, k: Tensor, divisor: float) -> Tensor:
    """Return q k^T / divisor in float32 or wider: (B, H, T, D), (B, H, S, D) -> (B, H, T, S)."""
    wide = torch.promote_types(q.dtype, torch.float32)
    # Autocast would round logits to bfloat16, whose steps are 0.06 at a logit of 16.
    with torch.autocast(q.device.type, enabled=False):
        return (q.to(wide) / divisor) @ k.to(wide).mT


def repeat_heads(t: Tensor, heads: int) -> Tensor:
    """Repeat keys or values for each query head: (B, G, S, D) -> (B, H, S, D)."""
    return t if t.shape[1] == heads else t.repeat_interleave(heads // t.shape[1], dim=1)


def dense_bias(terms: LogitTerms, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """Return the bias without its separable part, (B or 1, H or 1, T, S), or None."""
    if terms.by_distance is not None:
        return reversed_toeplitz(terms.by_distance, queries, keys).flip(-2)[None]
    if terms.bias is None:
        return None
    return terms.bias(terms.positions or in_order(queries, device))


def reversed_toeplitz(by_distance: Tensor, queries: int, keys: int) -> Tensor:
    """Return b[h, i - j] for the queries i = S - 1, S - 2, ..., S - T: (H, N) -> (H, T, S).

    Zero where j > i. It is a view of T + S numbers per head: with the queries in descending order,
    each row of the matrix is the previous row shifted left by one column.
    """
    last_row = by_distance[:, :keys].flip(-1)  # (H, S): distances S - 1, ..., 0
    return F.pad(last_row, (0, queries - 1)).unfold(-1, keys, 1)
