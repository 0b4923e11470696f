"""Losses of evaluation windows, summed over the spans that rows are made of.

One forward pass of a window serves all spans that begin where it does: the loss at an offset does
not depend on how long the window is. Where an encoding is not prefix consistent, each length has
its own pass. Sums are float64.
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
from pe_bench.tasks.perplexity.tokenized_corpus import Places
from pe_bench.tasks.perplexity.windows import Span, Windows, make_batch

TOKENS_PER_FORWARD = 16_384

Losses = Callable[[Tensor, Tensor], Tensor]  # tokens and targets (B, T) -> nats (B, T)
Nats = npt.NDArray[np.float64]


class ScoredWindows:
    """Evaluation windows and the scored tokens of each.

    Args:
        windows: of the test text.
        spans: tokens to measure in each window.
        tokenizer: of the text.
        tables: counted in the training text.
        tail: tokens at the end of a window that may be key tokens.
        trained: tokens of a training window.
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
        """Return first window and end of what goes through a model at once."""
        count = len(self.windows)
        size = max(1, TOKENS_PER_FORWARD // self.windows.length)
        return [(first, min(first + size, count)) for first in range(0, count, size)]

    def nats(self, losses: Losses, first: int, stop: int, *, consistent: bool) -> Nats:
        """Return the summed loss of each span of some windows, (stop - first, spans).

        Args:
            losses: of a model or a table.
            first, stop: which windows.
            consistent: whether what comes after a token changes nothing.
        """
        windows = self.windows.take(first, stop)
        keys = torch.from_numpy(self.keys[first:stop])
        passes: dict[tuple[int, int], Tensor] = {}
        columns = []
        for span in self.spans:
            # If nothing that follows matters, one forward serves all spans that begin here.
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
    def bytes(self) -> Places:
        """Bytes that count in each window and span, (N, spans)."""
        lengths = self.tokenizer.byte_lengths[self.windows.take(0, len(self.windows))]  # (N, T)
        columns = []
        for span in self.spans:
            scored = lengths[:, slice(*span.scored)]
            columns.append((scored * self.keys if span.keys else scored).sum(1))
        return np.stack(columns, axis=1)

    @cached_property
    def keys(self) -> Mask:
        """Which of the last tokens of each window are key tokens, (N, tail)."""
        model = fit_match_model(self.tables, self.windows.length, self.tail)
        windows = self.windows.take(0, len(self.windows)).astype(np.int64)
        return find_keys(model, windows, self.trained)
