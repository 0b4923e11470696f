"""What attention takes the softmax of: products of queries and keys, and what encodings add."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

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
    """How logits are made of queries and keys.

    Attributes:
        positions: of queries and keys; None: T == S, in order.
        separable: c, (B or 1, H, S), float32 or wider; c_i - c_j is added.
        by_distance: bias at distances 0, 1, ..., (H, S), where T == S and ids count tokens.
        bias: positions -> (B or 1, H or 1, T, S), is added.
        product: (q, k, positions) -> (B, H, T, S) in place of q k^T / sqrt(D).
        rewrite: (scores, q, k, positions) -> scores, see `Encoding.rewrite_logits`.
        divide: the product of queries and keys is divided by sqrt(D).
        sink: a logit per head, (H,), which takes part in the softmax and has no value.
        normalise: logits (B, H, T, S), -inf where no query may look -> shares of the values.
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
        """Column of each query among the keys, (B or 1, T); None: query i is column i."""
        return None if self.positions is None else self.positions.index

    @property
    def visible(self) -> Visibility:
        """Which keys a query may look at."""
        return EVERYTHING if self.positions is None else self.positions.visible

    @property
    def columns(self) -> Tensor | None:
        """Number of each key in its sequence, (B or 1, S); None: 0, 1, 2, ..."""
        return None if self.positions is None else self.positions.columns

    @property
    def prepared(self) -> Tensor | None:
        """What the product has prepared, (B, H, S, F)."""
        return None if self.positions is None else self.positions.prepared

    @property
    def of_pairs(self) -> bool:
        """Logits depend on pairs of tokens otherwise than by c_i - c_j."""
        return self.calls_hooks or not (self.by_distance is None and self.bias is None)

    @property
    def calls_hooks(self) -> bool:
        """Products or logits are the encoding's own, which no fused kernel can make."""
        return not (self.product is None and self.rewrite is None)

    def hides(self, keys: int) -> bool:
        """Return whether some query may not look at all of `keys` keys up to its own."""
        return self.columns is not None or self.visible.hides(keys)

    def mask(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """Return True where a query may look at a key, (B or 1, 1, T, S)."""
        if self.positions is not None and self.columns is not None:
            return self.positions.causal
        rows = torch.arange(queries, device=device)[None] if self.index is None else self.index
        return self.visible.mask(rows, torch.arange(keys, device=device)[None])

    def shares(self, logits: Tensor) -> Tensor:
        """Return the share of each value, given masked logits, (B, H, T, S) -> (B, H, T, S)."""
        if self.normalise is not None:
            return self.normalise(logits)
        if self.sink is None:
            return logits.softmax(-1)
        sink = self.sink.to(logits.dtype)[:, None, None].expand(*logits.shape[:3], 1)
        return torch.cat([sink, logits], dim=-1).softmax(-1)[..., 1:]

    def divisor(self, head_dim: int) -> float:
        """What products of queries and keys are divided by."""
        return math.sqrt(head_dim) if self.divide else 1.0


PLAIN = LogitTerms()


def attention_logits(q: Tensor, k: Tensor, terms: LogitTerms = PLAIN) -> Tensor:
    """Return what the softmax of `attend` is given, (B, H, T, S), -inf where no query may look."""
    k = repeat_heads(k, q.shape[1])  # (B, H, S, D)
    scores = unmasked_logits(q, k, terms)
    seen = terms.mask(q.shape[2], k.shape[2], q.device)  # (B or 1, 1, T, S)
    return scores.masked_fill(~seen, -torch.inf)


def unmasked_logits(q: Tensor, k: Tensor, terms: LogitTerms, *, falling: bool = False) -> Tensor:
    """Return the logits before the causal mask: (B, H, T, D), (B, H, S, D) -> (B, H, T, S).

    Args:
        q: queries.
        k: keys, as many heads as q.
        terms: what is done to the logits.
        falling: queries are in falling order, for `by_distance`.
    """
    positions = terms.positions or in_order(q.shape[2], q.device)
    if terms.product is not None:
        scores = terms.product(q, k, positions)
    else:
        scores = scaled_product(q, k, terms.divisor(q.shape[-1]))
    if terms.separable is not None:
        scores = scores + separable_matrix(terms.separable, positions.index).to(scores.dtype)
    if terms.by_distance is not None:
        bias = falling_toeplitz(terms.by_distance, q.shape[2], k.shape[2])  # (H, T, S)
        scores = scores + (bias if falling else bias.flip(-2))
    if terms.bias is not None and (bias_of_pairs := terms.bias(positions)) is not None:
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
    """Return one row of keys or values for each head: (B, G, S, D) -> (B, H, S, D)."""
    return t if t.shape[1] == heads else t.repeat_interleave(heads // t.shape[1], dim=1)


def dense_bias(terms: LogitTerms, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """Return what is added to logits but does not separate, (B or 1, H or 1, T, S), or None."""
    if terms.by_distance is not None:
        return falling_toeplitz(terms.by_distance, queries, keys).flip(-2)[None]
    if terms.bias is None:
        return None
    return terms.bias(terms.positions or in_order(queries, device))


def falling_toeplitz(by_distance: Tensor, queries: int, keys: int) -> Tensor:
    """Return b[h, i - j] for the queries i = S - 1, S - 2, ..., S - T: (H, N) -> (H, T, S).

    Zero where j > i. It is a view of T + S numbers per head: in falling order each row of the
    matrix is the one before, one column to the left.
    """
    last_row = by_distance[:, :keys].flip(-1)  # (H, S): distances S - 1, ..., 0
    return F.pad(last_row, (0, queries - 1)).unfold(-1, keys, 1)
