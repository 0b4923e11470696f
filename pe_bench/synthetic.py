"""Sequences made from a seed, and how many of them a model gets exactly right.

What tasks such as addition and copying share: rows of unequal length put together from parts, a
batch whose loss is on the answer alone, and greedy exact match from one forward pass.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pe_bench.model import IGNORE, Decoder
from pe_bench.results import Measurement
from pe_bench.task import Batch

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PAD, END = 0, 1
"""Of every vocabulary made here; a task's own symbols start at FIRST."""
FIRST = 2
Z95 = 1.959964


class Part(NamedTuple):
    """A stretch of every row.

    Attributes:
        values: (N, widest) ids; one row serves all.
        lengths: (N,) how many of them count; None: all.
        scored: whether the model is to write them.
    """

    values: npt.NDArray[np.integer]
    lengths: npt.NDArray[np.integer] | None = None
    scored: bool = False


@dataclass(frozen=True)
class Sequences:
    """Rows of ids, padded on the right.

    Attributes:
        ids: (N, longest).
        scored: (N, longest), True where the model is to write the id.
        lengths: (N,) tokens of each row.
    """

    ids: Ids
    scored: Mask
    lengths: Ids

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self) -> Batch:
        """Inputs and next-token targets, the loss on what is scored."""
        targets = np.where(self.scored, self.ids, IGNORE)[:, 1:]
        return Batch(torch.from_numpy(self.ids[:, :-1].copy()), torch.from_numpy(targets))

    def take(self, rows: npt.NDArray[np.integer]) -> "Sequences":
        """Some rows, without padding that none of them needs."""
        lengths = self.lengths[rows]
        width = int(lengths.max(initial=0))
        return Sequences(self.ids[rows, :width], self.scored[rows, :width], lengths)


def join(rows: int, *parts: Part) -> Sequences:
    """Rows that consist of the parts, one after the other without gaps."""
    columns = [np.arange(part.values.shape[-1]) for part in parts]
    sizes = [
        np.full(rows, len(cols)) if part.lengths is None else part.lengths
        for part, cols in zip(parts, columns, strict=True)
    ]
    lengths = np.sum(sizes, axis=0).astype(np.int64)
    ids = np.full((rows, int(lengths.max(initial=0))), PAD, dtype=np.int64)
    scored = np.zeros(ids.shape, dtype=np.bool_)
    start = np.zeros(rows, dtype=np.int64)
    for part, cols, size in zip(parts, columns, sizes, strict=True):
        row, column = np.nonzero(cols < size[:, None])
        place = start[row] + column
        ids[row, place] = np.broadcast_to(part.values, (rows, len(cols)))[row, column]
        scored[row, place] = part.scored
        start += size
    return Sequences(ids, scored, lengths)


def stack(many: Sequence[Sequences]) -> Sequences:
    """The rows of several, one below the other."""
    width = max(some.ids.shape[1] for some in many)

    def widen(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return np.pad(array, ((0, 0), (0, width - array.shape[1])))

    return Sequences(
        np.concatenate([widen(some.ids) for some in many]).astype(np.int64),
        np.concatenate([widen(some.scored) for some in many]).astype(np.bool_),
        np.concatenate([some.lengths for some in many]),
    )


@dataclass(frozen=True)
class Answers:
    """What a model made of some sequences.

    Attributes:
        exact: (N,) every scored token is right, the end included.
        share: (N,) share of the scored tokens that are right; where an answer was generated, those
            before its first mistake.
        forward_tokens: tokens that went through the model, padding included.
        padding: the same as a multiple of the tokens there are.
    """

    exact: Mask
    share: npt.NDArray[np.float64]
    forward_tokens: int
    padding: float


@torch.inference_mode()
def answer(
    model: Decoder, sequences: Sequences, *, free: bool = True, budget: int = 16_384
) -> Answers:
    """Greedy exact match.

    A deterministic model whose outputs do not depend on what follows writes exactly the right
    answer if and only if each of its tokens is likeliest after the right ones before it: one
    forward pass tells, without generating (by induction over the answer; ties go to the smallest
    id in both). Where outputs depend on the length, the answers are generated, each up to its first
    mistake.

    Args:
        model: in evaluation mode.
        sequences: prompts and right answers; the answer ends the row if `free`.
        free: the model has to go on from its own tokens. False where the scored tokens are
            scattered over a given text, so that one pass is what is asked for.
        budget: tokens per forward pass.
    """
    consistent = model.encoding.prefix_consistent
    order = np.argsort(sequences.lengths, kind="stable")
    exact = np.zeros(len(sequences), dtype=np.bool_)
    share = np.zeros(len(sequences))
    tokens = 0
    for rows in _batches(sequences.lengths[order], budget, even=not consistent):
        chosen = order[rows]
        some = sequences.take(chosen)
        right, used = (_generated if free and not consistent else _forced)(model, some)
        counts = some.scored.sum(1)
        share[chosen] = (right & some.scored).sum(1) / counts
        exact[chosen] = (right | ~some.scored).all(1)
        tokens += used
    return Answers(exact, share, tokens, tokens / max(1, int((sequences.lengths - 1).sum())))


def decoding_tokens(sequences: Sequences) -> int:
    """Tokens that decoding without a cache would send through a model."""
    answers = sequences.scored.sum(1)
    prompts = sequences.lengths - answers
    return int((answers * prompts + answers * (answers - 1) // 2).sum())


def _batches(lengths: Ids, budget: int, even: bool) -> Iterator[npt.NDArray[np.int64]]:
    """Rows that share a forward, shortest first; only of one length if `even`."""
    start = 0
    while start < len(lengths):
        stop = start + 1
        while (
            stop < len(lengths)
            and (stop + 1 - start) * lengths[stop] <= budget
            and (lengths[stop] == lengths[start] or not even)
            and lengths[stop] <= 1.2 * lengths[start]
        ):
            stop += 1
        yield np.arange(start, stop)
        start = stop


def _forced(model: Decoder, some: Sequences) -> tuple[Mask, int]:
    """Which tokens are likeliest after the right ones: (N, longest), and tokens used."""
    device = model.lm_head.weight.device
    tokens = torch.from_numpy(some.ids[:, :-1].copy()).to(device)
    wanted = torch.from_numpy(some.scored[:, 1:].copy()).to(device)
    likeliest = torch.zeros(tokens.shape, dtype=torch.long, device=device)
    likeliest[wanted] = model.lm_head(model.hidden(tokens)[wanted]).argmax(-1)
    right = np.zeros(some.ids.shape, dtype=np.bool_)
    right[:, 1:] = likeliest.cpu().numpy() == some.ids[:, 1:]
    return right, tokens.numel()


def _generated(model: Decoder, some: Sequences) -> tuple[Mask, int]:
    """The same of answers that the model has written itself; nothing after a first wrong token.

    Every token takes a forward pass over all before it: what held for a shorter sequence need not
    for a longer one. As long as an answer is right, its own tokens are the right ones, and where it
    is not, no more has to be known.
    """
    device = model.lm_head.weight.device
    ids = torch.from_numpy(some.ids).to(device)
    counts = some.scored.sum(1)
    right = np.zeros(some.ids.shape, dtype=np.bool_)
    used = 0
    for start in np.unique(some.lengths - counts):
        rows = np.flatnonzero(some.lengths - counts == start)
        for column in range(start, some.ids.shape[1]):
            rows = rows[some.lengths[rows] > column]
            if not len(rows):
                break
            likeliest = model.lm_head(model.hidden(ids[rows, :column])[:, -1]).argmax(-1)
            right[rows, column] = likeliest.cpu().numpy() == some.ids[rows, column]
            used += len(rows) * int(column)
            rows = rows[right[rows, column]]
    return right, used


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n (Wilson 1927)."""
    middle = (share + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * math.sqrt(share * (1 - share) / n + (Z95 / (2 * n)) ** 2)
    return max(0.0, middle - half), min(1.0, middle + half)


def exact_match_rows(
    subset: str,
    right: float,
    n: int,
    *,
    length: int | None = None,
    aux: str = "",
    metric: str = "exact_match",
) -> list[Measurement]:
    """Exact match in percent, and the ends of its Wilson interval."""
    share = right / n
    low, high = wilson(share, n)
    error = 100 * math.sqrt(share * (1 - share) / n)
    return [
        Measurement(subset, metric, 100 * share, n, error, length, aux),
        Measurement(subset, f"{metric}_low", 100 * low, n, length=length, aux=aux),
        Measurement(subset, f"{metric}_high", 100 * high, n, length=length, aux=aux),
    ]
