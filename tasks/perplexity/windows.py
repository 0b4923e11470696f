"""Evaluation windows of a text and which of their tokens count.

`datasets` cuts rows into chunks of equal length, but not windows that overlap and end before the
next document.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from pe_bench.api import Batch, TokenIds
from pe_bench.tasks.perplexity.tokenized_corpus import Places, TokenText

OCTAVES = 8  # of the curve against the position


class Span(NamedTuple):
    """Targets of every window that one row is the mean of.

    Attributes:
        subset: of the row.
        family: what the names of its metrics begin with.
        length: of the row.
        seen: the part of a window that the model is given, after a BOS.
        scored: the part whose tokens count, by their places in the window.
        keys: whether only key tokens of that part count.
    """

    subset: str
    family: str
    length: int
    seen: tuple[int, int]
    scored: tuple[int, int]
    keys: bool = False


@dataclass(frozen=True)
class Windows:
    """Stretches of equal length, none across two documents.

    Attributes:
        text: what they are cut from.
        length: tokens of each.
        starts: (N,) where each begins.
        clusters: (N,) what goes together: the document that each is from. Where documents are
            not known, the number of whole windows before its start, so that those which overlap
            half or more are mostly in one cluster.
    """

    text: TokenText
    length: int
    starts: Places
    clusters: Places

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
        length: tokens of a window.
        step: tokens from one start to the next.
        count: how many of them, spread evenly; 0: all.
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
    """Return the spans of a window, under both definitions that go by the name of perplexity.

    Subset `test`: every token of windows of each length, and, under names that begin with "tail_",
    the last `stride` of them. Subset `position`: tokens of the longest windows up to an offset,
    from half of it on. Subset `context`: the last `stride` tokens of the longest windows, given
    more and more of what comes before. Subset `key-tokens`: those of them that are key tokens.

    Args:
        lengths: ascending.
        stride: at most the shortest length.
    """
    longest = lengths[-1]
    tail = (longest - stride, longest)
    contexts = [(n, (longest - n, longest)) for n in lengths]
    edges = [0, *sorted({longest >> i for i in range(OCTAVES)} - {0})]
    whole = (0, longest)
    return [
        *(Span("test", "", n, (0, n), (0, n)) for n in lengths),
        *(Span("test", "tail_", n, (0, n), (n - stride, n)) for n in lengths),
        *(Span("position", "", end, whole, (a, end)) for a, end in itertools.pairwise(edges)),
        *(Span("context", "", n, seen, tail) for n, seen in contexts),
        *(Span("key-tokens", "", n, seen, tail, keys=True) for n, seen in contexts),
    ]


def make_batch(windows: TokenIds, bos: int) -> Batch:
    """Return windows as targets, and as tokens a BOS and all but their last one.

    Args:
        windows: (B, T).
        bos: id of the token that stands first.
    """
    targets = torch.from_numpy(windows.astype(np.int64))  # (B, T)
    tokens = targets.roll(1, dims=1)
    tokens[:, 0] = bos
    return Batch(tokens, targets)
