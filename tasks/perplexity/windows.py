"""Evaluation windows of a text and their scored tokens.

`datasets` can cut rows into chunks of equal length, but not into overlapping windows that stay
within a document.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from pe_bench.api import Batch, TokenIds
from pe_bench.tasks.perplexity.tokenized_corpus import Offsets, TokenText

OCTAVES = 8  # number of octaves of the curve over positions


class Span(NamedTuple):
    """The targets in every window that one row averages.

    Attributes:
        subset: subset of the row.
        family: prefix of the names of its metrics.
        length: length of the row.
        seen: range of the window that the model gets, after a BOS.
        scored: range of the window whose tokens are scored.
        keys: whether only key tokens of this range are scored.
    """

    subset: str
    family: str
    length: int
    seen: tuple[int, int]
    scored: tuple[int, int]
    keys: bool = False


@dataclass(frozen=True)
class Windows:
    """Windows of equal length, each within one document.

    Attributes:
        text: text of the windows.
        length: number of tokens of a window.
        starts: (N,) start of each window.
        clusters: (N,) index of the window's document, for standard errors. If documents are not
            known, the number of whole windows before its start, so that windows which overlap by
            half or more are mostly in one cluster.
    """

    text: TokenText
    length: int
    starts: Offsets
    clusters: Offsets

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, first: int, stop: int) -> TokenIds:
        """Return ids of some windows, (stop - first, length)."""
        starts = self.starts[first:stop].tolist()
        windows = [self.text.read(start, start + self.length) for start in starts]
        return np.reshape(windows, (len(windows), self.length))


def find_windows(text: TokenText, length: int, step: int, count: int = 0) -> Windows:
    """Return all windows that begin at a multiple of `step` tokens of a document and fit into it.

    Args:
        text: the documents.
        length: number of tokens of a window.
        step: number of tokens between consecutive starts.
        count: number of windows, spread evenly; 0: all.
    """
    fitting = np.maximum(0, (text.ends - text.starts - length) // step + 1)
    documents = np.repeat(np.arange(len(fitting)), fitting)
    before = np.repeat(np.cumsum(fitting) - fitting, fitting)
    within = step * (np.arange(len(documents)) - before)
    starts = text.starts[documents] + within
    clusters = documents if text.bounded else within // length
    if 0 < count < len(starts):
        chosen = np.arange(count) * len(starts) // count
        starts, clusters = starts[chosen], clusters[chosen]
    return Windows(text, length, starts, clusters)


def make_spans(lengths: Sequence[int], stride: int) -> list[Span]:
    """Return the spans of a window, for both usual definitions of perplexity.

    Subset `test`: all tokens of windows of each length, and the last `stride` of them for metrics
    with the prefix "tail_". Subset `position`: tokens of the longest windows from half of an offset
    up to it. Subset `context`: the last `stride` tokens of the longest windows with increasing
    contexts. Subset `key-tokens`: the key tokens among them.

    Args:
        lengths: lengths of the windows, ascending.
        stride: number of tokens of a tail, at most the shortest length.
    """
    longest = lengths[-1]
    tail = (longest - stride, longest)
    edges = [0, *sorted({longest >> i for i in range(OCTAVES)} - {0})]
    spans = []
    for length in lengths:
        spans.append(Span("test", "", length, (0, length), (0, length)))
    for length in lengths:
        spans.append(Span("test", "tail_", length, (0, length), (length - stride, length)))
    for start, end in itertools.pairwise(edges):
        spans.append(Span("position", "", end, (0, longest), (start, end)))
    for length in lengths:
        spans.append(Span("context", "", length, (longest - length, longest), tail))
    for length in lengths:
        spans.append(Span("key-tokens", "", length, (longest - length, longest), tail, keys=True))
    return spans


def make_batch(windows: TokenIds, bos: int) -> Batch:
    """Return windows as targets; the tokens are a BOS and all ids of a window except the last.

    Args:
        windows: (B, T) ids.
        bos: id of the first token.
    """
    targets = torch.from_numpy(windows.astype(np.int64))  # (B, T)
    tokens = targets.roll(1, dims=1)
    tokens[:, 0] = bos
    return Batch(tokens, targets)
