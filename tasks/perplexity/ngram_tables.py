"""N-gram tables, used as baselines and to find key tokens."""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pe_bench.api import TokenIds

Ids = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]

NAMES = ("unigram table", "bigram table", "trigram table")
MAX_TOKENS = 1 << 24  # maximum number of tokens to count; more would take minutes and gigabytes


class _Counts(NamedTuple):
    """Counts of all n-grams of one order.

    Attributes:
        grams: (G,) sorted n-grams, each as one number in base `vocab_size`.
        counts: (G,) number of occurrences of each n-gram.
        histories: (H,) sorted n-grams without their last token.
        totals: (H,) number of tokens that follow each history.
        kinds: (H,) number of distinct tokens that follow each history.
    """

    grams: Ids
    counts: Ids
    histories: Ids
    totals: Ids
    kinds: Ids


class NgramTables:
    """Interpolated tables of orders 1, 2 and 3 (Witten and Bell 1991).

    p_n(w | h) = (c(h w) + t(h) p_{n-1}(w | h')) / (c(h) + t(h)), where c counts in the text, t(h)
    is the number of different tokens that follow h, h' is h without its first token, and p_0 is
    uniform. For a history that is not in the text, such as one with a BOS, p_n is p_{n-1}.

    Args:
        ids: (T,) ids of the text.
        vocab_size: number of ids.
    """

    def __init__(self, ids: TokenIds, vocab_size: int) -> None:
        self.ids = ids.astype(np.int64)
        self.vocab_size = vocab_size

    @cached_property
    def _orders(self) -> list[_Counts]:
        return [self._count(order) for order in range(1, len(NAMES) + 1)]

    def _count(self, order: int) -> _Counts:
        grams, counts = np.unique(self._grams(self.ids, order), return_counts=True)
        histories, first = np.unique(grams // self.vocab_size, return_index=True)
        totals = np.add.reduceat(counts, first)
        kinds = np.diff(np.append(first, len(grams)))
        return _Counts(grams, counts, histories, totals, kinds)

    def _grams(self, ids: Ids, order: int) -> Ids:
        """Return the n-grams of texts (..., T) as numbers, (..., T - order + 1)."""
        size = ids.shape[-1] - order + 1
        grams = np.zeros((*ids.shape[:-1], size), np.int64)
        for i in range(order):
            grams = grams * self.vocab_size + ids[..., i : i + size]
        return grams

    def probabilities(self, tokens: Ids, targets: Ids, order: int) -> Probabilities:
        """Return the probability of each target under the table of an order.

        Args:
            tokens: (B, T) ids before each target.
            targets: (B, T) ids to predict.
            order: order of the table, 1 to 3.
        """
        before = np.repeat(tokens[:, :1], order, axis=1)  # padding before a row
        found = np.full(targets.shape, 1 / self.vocab_size)
        for n, table in enumerate(self._orders[:order], start=1):
            texts = np.concatenate([before, tokens[:, 1:]], axis=1)  # (B, order - 1 + T)
            history = self._grams(texts, n - 1)[:, -targets.shape[1] :]  # (B, T)
            gram = history * self.vocab_size + targets
            count = _look_up(table.grams, table.counts, gram)
            total = _look_up(table.histories, table.totals, history)
            kinds = _look_up(table.histories, table.kinds, history)
            known = np.maximum(total + kinds, 1)
            found = np.where(total > 0, (count + kinds * found) / known, found)
        return found

    def token_losses(self, tokens: Tensor, targets: Tensor, order: int) -> Tensor:
        """Return the loss of each target in nats, (B, T), (B, T) -> (B, T) float64."""
        found = self.probabilities(tokens.numpy(), targets.numpy(), order)
        return torch.from_numpy(-np.log(found))


def _look_up(keys: Ids, values: Ids, wanted: Ids) -> Ids:
    """Return the values of the `wanted` keys among sorted `keys`; 0 for missing keys."""
    places = np.searchsorted(keys, wanted)
    places = np.minimum(places, len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)
