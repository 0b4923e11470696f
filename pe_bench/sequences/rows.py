"""Sequences made from a seed, and how many of them a model gets exactly right.

What tasks such as addition and copying share: rows of unequal length put together from parts, a
batch whose loss is on the answer alone, and greedy exact match from one forward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pe_bench.decoder.model import IGNORE
from pe_bench.task import Batch

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PAD, END = 0, 1
"""Of every vocabulary made here; a task's own symbols start at FIRST."""
FIRST = 2


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


class Turn(NamedTuple):
    """A prompt and its answer, token ids both; only the answer carries loss."""

    prompt: Sequence[int]
    answer: Sequence[int] = ()


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


def collate(samples: Sequence[Sequence[Turn]]) -> Sequences:
    """Return samples of one turn or more as rows, padded on the right."""
    lengths = np.zeros(len(samples), dtype=np.int64)
    for row, turns in enumerate(samples):
        lengths[row] = sum(len(turn.prompt) + len(turn.answer) for turn in turns)
    ids = np.full((len(samples), int(lengths.max(initial=0))), PAD, dtype=np.int64)  # (N, L)
    scored = np.zeros(ids.shape, dtype=np.bool_)  # (N, L)
    for row, turns in enumerate(samples):
        end = 0
        for prompt, answer in turns:
            start = end + len(prompt)
            ids[row, end:start] = prompt
            end = start + len(answer)
            ids[row, start:end] = answer
            scored[row, start:end] = True
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
