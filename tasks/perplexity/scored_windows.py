"""Losses of evaluation windows, summed over spans. A span becomes a row of the results.

One forward pass of a window serves all spans that begin at its start, because the loss at an offset
does not depend on the length of the window. If an encoding is not prefix consistent, each length
has a separate pass. Sums are float64.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pe_bench.api import Tokenizer
from pe_bench.tasks.perplexity.key_tokens import Mask, find_keys, fit_match_model
from pe_bench.tasks.perplexity.ngram_tables import NgramTables
from pe_bench.tasks.perplexity.tokenized_corpus import Offsets
from pe_bench.tasks.perplexity.windows import Span, Windows, make_batch

TOKENS_PER_FORWARD = 16_384

Losses = Callable[[Tensor, Tensor], Tensor]  # tokens and targets (B, T) -> nats (B, T)
Nats = npt.NDArray[np.float64]


class ScoredWindows:
    """Evaluation windows and the scored tokens of each.

    Args:
        windows: windows of the test text.
        spans: tokens to measure in each window.
        tokenizer: tokenizer of the text.
        tables: n-gram tables of the training text.
        tail: number of tokens at the end of a window that may be key tokens.
        trained: number of tokens of a training window.
    """

    def __init__(
        self,
        windows: Windows,
        spans: Sequence[Span],
        tokenizer: Tokenizer,
        tables: NgramTables,
        *,
        tail: int,
        trained: int,
    ) -> None:
        self.windows = windows
        self.spans = spans
        self.tokenizer = tokenizer
        self.tables = tables
        self.tail = tail
        self.trained = trained

    def slices(self) -> list[tuple[int, int]]:
        """Return the first and one past the last window of each forward pass."""
        count = len(self.windows)
        size = max(1, TOKENS_PER_FORWARD // self.windows.length)
        return [(first, min(first + size, count)) for first in range(0, count, size)]

    def nats(self, losses: Losses, first: int, stop: int, *, consistent: bool) -> Nats:
        """Return the summed loss of each span of some windows, (stop - first, spans).

        Args:
            losses: losses of a model or an n-gram table.
            first, stop: range of the windows.
            consistent: whether losses do not depend on later tokens.
        """
        windows = self.windows.take(first, stop)
        keys = torch.from_numpy(self.keys[first:stop])
        passes: dict[tuple[int, int], Tensor] = {}
        columns = []
        for span in self.spans:
            # If later tokens do not matter, one forward serves all spans that begin here.
            whole = (0, self.windows.length)
            seen = whole if consistent and span.seen[0] == 0 else span.seen
            if seen not in passes:
                batch = make_batch(windows[:, slice(*seen)], self.tokenizer.bos)
                passes[seen] = losses(*batch).double().cpu()
            begin, end = (place - seen[0] for place in span.scored)
            scored = passes[seen][:, begin:end]
            columns.append((scored * keys if span.keys else scored).sum(1))
        return torch.stack(columns, dim=1).numpy()

    @cached_property
    def bytes(self) -> Offsets:
        """Number of scored bytes in each window and span, (N, spans)."""
        lengths = self.tokenizer.byte_lengths[self.windows.take(0, len(self.windows))]  # (N, T)
        columns = []
        for span in self.spans:
            scored = lengths[:, slice(*span.scored)]
            columns.append((scored * self.keys if span.keys else scored).sum(1))
        return np.stack(columns, axis=1)

    @cached_property
    def keys(self) -> Mask:
        """Mask of the key tokens among the last tokens of each window, (N, tail)."""
        model = fit_match_model(self.tables, self.windows.length, self.tail)
        windows = self.windows.take(0, len(self.windows)).astype(np.int64)
        return find_keys(model, windows, self.trained)
