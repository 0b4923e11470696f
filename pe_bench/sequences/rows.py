"""Rows of token ids: built from segments or samples, padded on the right, turned into batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pe_bench.config import IGNORE
from pe_bench.errors import InputError
from pe_bench.option_table import is_whole
from pe_bench.task import Batch
from pe_bench.text.tokenizer import TokenIds

Mask = npt.NDArray[np.bool_]

PAD = 0
END = 1
FIRST = 2
"""First id of a task's symbols; PAD and END are in every vocabulary."""


class Segment(NamedTuple):
    """A part of every row.

    Attributes:
        ids: (N, max_width) token ids, or (max_width,) if all rows have the same ids.
        lengths: (N,) number of valid ids of each row; None: all are valid.
        scored: whether the model has to predict them.
    """

    ids: npt.NDArray[np.integer]
    lengths: npt.NDArray[np.integer] | None = None
    scored: bool = False


class Turn(NamedTuple):
    """A prompt and its answer, both token ids. Only the answer has a loss."""

    prompt: Sequence[int]
    answer: Sequence[int] = ()


@dataclass(frozen=True)
class Sequences:
    """Rows of ids, padded on the right.

    Attributes:
        ids: (N, T) token ids.
        scored: (N, T), True where the model has to predict the id.
        lengths: (N,) number of tokens of each row.
        targets: (N, T) expected ids where they differ from the next id of the row, IGNORE
            elsewhere; None: the rows contain the expected ids.
    """

    ids: TokenIds
    scored: Mask
    lengths: TokenIds
    targets: TokenIds | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self) -> Batch:
        """Return inputs and targets, with the loss on scored tokens."""
        if self.targets is not None:
            return Batch(torch.from_numpy(self.ids), torch.from_numpy(self.targets))
        targets = np.where(self.scored, self.ids, IGNORE)[:, 1:]
        return Batch(torch.from_numpy(self.ids[:, :-1].copy()), torch.from_numpy(targets))

    def take(self, rows: npt.NDArray[np.integer]) -> "Sequences":
        """Return some rows, without unneeded padding."""
        lengths = self.lengths[rows]
        width = int(lengths.max(initial=0))
        targets = None if self.targets is None else self.targets[rows, :width]
        return Sequences(self.ids[rows, :width], self.scored[rows, :width], lengths, targets)


def concatenate(rows: int, *segments: Segment) -> Sequences:
    """Concatenate the segments of each of `rows` rows without gaps."""
    sizes = []
    for segment in segments:
        width = segment.ids.shape[-1]
        sizes.append(np.full(rows, width) if segment.lengths is None else segment.lengths)
    lengths = np.sum(sizes, axis=0).astype(np.int64)  # (N,)
    ids = np.full((rows, int(lengths.max(initial=0))), PAD, dtype=np.int64)  # (N, T)
    scored = np.zeros(ids.shape, dtype=np.bool_)  # (N, T)
    start = np.zeros(rows, dtype=np.int64)
    for segment, size in zip(segments, sizes, strict=True):
        columns = np.arange(segment.ids.shape[-1])
        row, column = np.nonzero(columns < size[:, None])
        target = start[row] + column
        ids[row, target] = np.broadcast_to(segment.ids, (rows, len(columns)))[row, column]
        scored[row, target] = segment.scored
        start += size
    return Sequences(ids, scored, lengths)


def collate(samples: Sequence[Sequence[Turn]]) -> Sequences:
    """Return samples of one or more turns as rows, padded on the right.

    Raises:
        InputError: a sample is not a list of turns, or an id is not a whole number.
    """
    lengths = np.zeros(len(samples), dtype=np.int64)
    for row, turns in enumerate(samples):
        _check_turns(turns)
        lengths[row] = sum(len(turn.prompt) + len(turn.answer) for turn in turns)
    ids = np.full((len(samples), int(lengths.max(initial=0))), PAD, dtype=np.int64)  # (N, L)
    scored = np.zeros(ids.shape, dtype=np.bool_)  # (N, L)
    for row, turns in enumerate(samples):
        end = 0
        for prompt, answer in turns:
            start = end + len(prompt)
            ids[row, end:start] = _whole_numbers(prompt)
            end = start + len(answer)
            ids[row, start:end] = _whole_numbers(answer)
            scored[row, start:end] = True
    return Sequences(ids, scored, lengths)


def _check_turns(turns: Sequence[Turn]) -> None:
    """Check that a sample is a list of turns, and that their parts are lists.

    Raises:
        InputError: one of them is not.
    """
    if not isinstance(turns, list | tuple) or not all(isinstance(turn, Turn) for turn in turns):
        raise InputError(f"a sample must be a list of Turns, not {turns!r:.60}")
    for turn in turns:
        for name, ids in zip(Turn._fields, turn, strict=True):
            if not hasattr(ids, "__len__"):
                raise InputError(f"the {name} of a Turn must be a list of ids, not {ids!r:.60}")


def _whole_numbers(ids: Sequence[int]) -> npt.NDArray[np.generic]:
    """Return token ids as an array.

    Raises:
        InputError: an id is not a whole number.
    """
    array = np.asarray(ids)
    if not array.size or array.dtype.kind in "iu":
        return array
    for token in ids:  # whole numbers of several types may have become others
        if not is_whole(token):
            raise InputError(f"token ids must be whole numbers, not {token!r}")
    return np.asarray(ids, dtype=np.int64)


def stack(parts: Sequence[Sequences]) -> Sequences:
    """Concatenate the rows of several `Sequences`."""
    width = max(part.ids.shape[1] for part in parts)

    def widen(array: npt.NDArray[np.generic], value: int) -> npt.NDArray[np.generic]:
        return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=value)

    ids = np.concatenate([widen(part.ids, PAD) for part in parts])  # (N, T)
    scored = np.concatenate([widen(part.scored, 0) for part in parts])  # (N, T)
    lengths = np.concatenate([part.lengths for part in parts])  # (N,)
    targets = [widen(part.targets, IGNORE) for part in parts if part.targets is not None]
    return Sequences(
        ids.astype(np.int64),
        scored.astype(np.bool_),
        lengths,
        np.concatenate(targets).astype(np.int64) if targets else None,
    )


def pad_rows(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Return rows of ids as one tensor, padded on the right: N rows -> (N, T)."""
    padded = np.full((len(rows), max(map(len, rows))), value)  # (N, T)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(padded)
