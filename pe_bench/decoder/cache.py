"""The KV cache, for any encoding and for rows of unequal length."""

import copy
from collections.abc import Hashable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_bench.errors import InputError
from pe_bench.visibility import EVERYTHING, Visibility

COLUMNS = {"cuda": 256}
"""Reads are rounded up to a multiple of this, because each new shape needs a new kernel plan."""


class Cache:
    """Keys, values and features of tokens, for each layer.

    The next token of row b is written at column lengths[b], so rows of unequal length share a batch
    without padding between prompt and answer. The column of a token is its index in its sequence.
    Columns past the end of a row are overwritten before any query attends to them.

    A layer that attends only to some first tokens and the last tokens keeps only these, in this
    order.

    Args:
        batch: number of rows.
        capacity: maximum number of tokens per row.
        device: device of the tensors.
        final_lengths: number of tokens of each finished row, (B,) on the CPU; None: `capacity`.

    Raises:
        InputError: the number of final lengths is wrong.

    Attributes:
        longest: number of tokens of the longest row, including new tokens.
        begun: whether a step has begun and not ended.
    """

    def __init__(
        self,
        batch: int,
        capacity: int,
        device: torch.device | str = "cpu",
        *,
        final_lengths: Tensor | None = None,
    ) -> None:
        self.capacity = capacity
        self.final_lengths = torch.full((batch,), capacity)
        if final_lengths is not None:
            if final_lengths.shape != (batch,):
                raise InputError(
                    f"final_lengths are {tuple(final_lengths.shape)}, but must be {(batch,)}, one "
                    "for each row"
                )
            self.final_lengths = final_lengths
        self.tokens = torch.zeros(batch, capacity, dtype=torch.long, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)
        self._rows = torch.arange(batch, device=device)[:, None]
        self._buffers: dict[Hashable, Tensor] = {}
        self._visible: dict[Hashable, Visibility] = {}  # visibility of buffers that drop keys
        self._shrinks: dict[Visibility, bool] = {}
        self._sorted = False  # whether these buffers have dropped keys of the prompt
        self._index = torch.zeros(batch, 0, dtype=torch.long, device=device)
        self.longest = 0
        self._stop = 0
        self._fill = 0  # length of the longest row, known without synchronising
        self.begun = False
        self._columns = COLUMNS.get(torch.device(device).type, 1)

    def begin(self, tokens: Tensor) -> tuple[Tensor | None, Tensor]:
        """Begin a step with (B, T) new tokens; return their columns and all (B, S) tokens so far.

        The columns are None if the cache was empty. Each layer then calls `append`, and `end`
        finishes the step. S may be rounded up to a multiple of COLUMNS.

        Raises:
            InputError: the tokens have another number of rows.
        """
        if len(tokens) != len(self.lengths):
            raise InputError(
                f"the cache has {len(self.lengths)} rows, not {len(tokens)}: make one for the rows "
                "of the prompts, and call cache.select(rows) to keep some of them"
            )
        new = tokens.shape[1]
        first = not self._buffers
        self._drop_unseen()
        self.longest = self._stop = self._fill + new
        if self._stop > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens, not {self._stop}")
        if not first:  # the mask hides columns after the queries
            self._stop = min(self._stop + -self._stop % self._columns, self.capacity)
        self._index = self.lengths[:, None] + torch.arange(new, device=tokens.device)
        self.tokens[self._rows, self._index] = tokens
        self.begun = True
        return (None if first else self._index), self.tokens[:, : self._stop]

    def append(self, name: Hashable, new: Tensor) -> Tensor:
        """Store new values and return all values of this name.

        Args:
            name: what the values are, such as (layer, "k").
            new: values of the new tokens, (B, heads, T, width).

        Returns:
            (B, heads, S, width).
        """
        if name not in self._buffers:
            self._buffers[name] = new.new_zeros(*new.shape[:2], self.capacity, new.shape[3])
        buffer = self._buffers[name]
        buffer[self._rows, :, self._index] = new.transpose(1, 2)
        return buffer[:, :, : self._stop]

    def append_visible(self, name: Hashable, new: Tensor, visible: Visibility) -> Tensor:
        """Store new values (B, heads, T, width); return the visible ones, ordered as `slots`."""
        if not self.shrinks(visible):
            return self.append(name, new)
        self._visible[name] = visible
        if self._fill == 0:  # the lengths of the rows without padding are not known yet
            self._buffers[name] = new
            return new
        buffer = self._buffers[name]  # (B, heads, slots, width)
        both = torch.cat([buffer, new], dim=2)  # (B, heads, slots + T, width)
        if visible.first == 0:
            self._buffers[name] = both[:, :, new.shape[2] :]
            return both
        before = self.lengths[:, None]  # (B, 1)
        columns = _columns(self.lengths + new.shape[2], visible)  # (B, slots)
        slots = torch.arange(buffer.shape[2], device=new.device)  # (slots,)
        old = torch.where(slots < visible.first, slots, slots + new.shape[2])
        index = torch.where(columns >= before, buffer.shape[2] + columns - before, old)
        self._buffers[name] = _gather(both, index)
        return both

    def slots(self, visible: Visibility) -> tuple[Tensor, Tensor] | None:
        """Return the columns of `append_visible`'s result, (B, S), and indices of new tokens.

        The indices of the new tokens are (B, T). Columns are in ascending order, except for
        missing keys, whose column is below 0. None: all columns, in order.
        """
        if self._fill == 0 or not self.shrinks(visible):
            return None
        before = _columns(self.lengths, visible)  # (B, slots)
        new = torch.arange(self._index.shape[1], device=before.device)  # (T,)
        slots = (before.shape[1] + new).expand_as(self._index)
        return torch.cat([before, self._index], dim=1), slots

    def shrinks(self, visible: Visibility) -> bool:
        """Return whether a layer with this visibility keeps fewer keys than the capacity."""
        if visible not in self._shrinks:
            few = visible.kept is not None and visible.first + visible.kept < self.capacity
            self._shrinks[visible] = few
        return self._shrinks[visible]

    def _drop_unseen(self) -> None:
        """Drop keys of the prompt that no later query attends to; row lengths are known now."""
        if self._sorted or not self._fill:
            return
        self._sorted = True
        for name, visible in self._visible.items():
            columns = _columns(self.lengths, visible)  # (B, slots)
            self._buffers[name] = _gather(self._buffers[name], columns.clamp(min=0))

    @property
    def filled(self) -> int:
        """Number of tokens of the longest row, without the tokens of an unfinished step."""
        return self._fill

    @property
    def numbers_per_token(self) -> int:
        """Number of values per token of the capacity, over all layers."""
        buffers = self._buffers.values()
        return sum(b.shape[1] * b.shape[2] * b.shape[3] for b in buffers) // self.capacity

    @property
    def bytes_per_token(self) -> int:
        """Number of bytes per token of the capacity, over all layers."""
        buffers = self._buffers.values()
        return sum(b.nbytes // len(b) for b in buffers) // self.capacity

    def bytes_by_layer(self) -> dict[int, list[tuple[int, Visibility]]]:
        """Return bytes per token of the tensors of each layer, and which tokens a layer keeps."""
        of_layer: dict[int, list[tuple[int, Visibility]]] = {}
        for name, buffer in self._buffers.items():
            layer, _ = cast(tuple[int, str], name)
            size = buffer.shape[1] * buffer.shape[3] * buffer.element_size()
            of_layer.setdefault(layer, []).append((size, self._visible.get(name, EVERYTHING)))
        return of_layer

    def end(self, new: int) -> None:
        """Finish a step of `new` tokens."""
        self.lengths += new
        self._fill += new
        self.begun = False

    def grow(self, capacity: int) -> None:
        """Increase the capacity to `capacity` tokens per row."""
        added = capacity - self.capacity
        self.capacity = capacity
        self.tokens = F.pad(self.tokens, (0, added))
        for name, buffer in self._buffers.items():
            if name not in self._visible:
                self._buffers[name] = F.pad(buffer, (0, 0, 0, added))

    def select(self, rows: Tensor) -> None:
        """Keep the rows with these indices, (N,), in this order.

        Raises:
            InputError: these are not indices, but a mask or another tensor.
        """
        if rows.dim() != 1 or rows.is_floating_point() or rows.dtype == torch.bool:
            raise InputError("select needs the indices of rows, such as torch.tensor([0, 2])")
        self.tokens = self.tokens[rows]
        self.lengths = self.lengths[rows]
        self.final_lengths = self.final_lengths[rows.cpu()]
        self._rows = torch.arange(len(rows), device=rows.device)[:, None]
        for name, buffer in self._buffers.items():
            self._buffers[name] = buffer[rows]

    def branch(self) -> "Cache":
        """Return a cache that continues after the same tokens, while this one keeps them.

        Use one branch at a time, because they write to the same memory.
        """
        self._drop_unseen()
        made = copy.copy(self)
        made.lengths = self.lengths.clone()
        made._buffers = dict(self._buffers)
        made._visible = dict(self._visible)
        return made

    def truncate(self, lengths: Tensor) -> None:
        """Keep the first `lengths` tokens of each row, (B,), to drop the padding of prompts.

        After the first step, layers with a window have dropped the keys before it. To go back
        later, continue from a `branch`.

        Raises:
            InputError: a length is negative or above the number of cached tokens, the number of
                lengths is wrong, or dropped keys are needed again.
        """
        if lengths.shape != self.lengths.shape:
            raise InputError(
                f"truncate needs {len(self.lengths)} lengths, one for each row, not "
                f"{tuple(lengths.shape)}"
            )
        if ((lengths < 0) | (lengths > self.lengths)).any():
            raise InputError(
                f"truncate needs lengths of 0 to {int(self.lengths.max())}, the number of cached "
                f"tokens, not {lengths.tolist()}"
            )
        fill = int(lengths.max())
        if fill == 0:
            self._buffers.clear()
            self._visible.clear()
            self._sorted = False
        elif self._sorted:
            self._restore(lengths)
        self.lengths = lengths.clone()
        self._fill = fill

    def _restore(self, lengths: Tensor) -> None:
        """Move the keys of layers that drop keys to their slots at other lengths, (B,).

        Raises:
            InputError: keys that are needed have been dropped.
        """
        order: dict[Visibility, Tensor] = {}
        for visible in dict.fromkeys(self._visible.values()):
            present = _columns(self.lengths, visible)  # (B, slots)
            needed = _columns(lengths, visible)  # (B, slots)
            equal = needed[:, :, None] == present[:, None]  # (B, slots, slots)
            seen = needed >= visible.start(lengths)[:, None]  # by the next query, (B, slots)
            seen = (needed >= 0) & (seen | (needed < visible.first))
            if (seen & ~equal.any(-1)).any():
                raise InputError(
                    f"the cache cannot be truncated to {lengths.tolist()} tokens, because a layer "
                    "with a window has dropped keys that the next token needs: continue from "
                    "cache.branch() and keep the cache itself"
                )
            order[visible] = equal.long().argmax(-1)
        for name, visible in self._visible.items():
            self._buffers[name] = _gather(self._buffers[name], order[visible])


def _columns(lengths: Tensor, visible: Visibility) -> Tensor:
    """Return the columns that rows of these lengths keep: (B,) -> (B, slots), -1 or less: none."""
    first, kept = visible.first, visible.kept
    assert kept is not None
    slot = torch.arange(first + kept, device=lengths.device)  # (slots,)
    last = lengths[:, None] - kept + slot - first  # (B, slots)
    columns = torch.where(slot < first, slot, last)
    missing = (columns >= lengths[:, None]) | ((slot >= first) & (columns < first))
    return columns.masked_fill(missing, -1)


def _gather(values: Tensor, index: Tensor) -> Tensor:
    """Return values (B, heads, S, width) at (B, slots): (B, heads, slots, width)."""
    expanded = index[:, None, :, None].expand(-1, values.shape[1], -1, values.shape[3])
    return values.gather(2, expanded)
