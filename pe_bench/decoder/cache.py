"""The KV cache, for any encoding and for rows of unequal length."""

from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_bench.visibility import Visibility

COLUMNS = {"cuda": 256}
"""Columns are read in multiples of this: kernels are chosen and planned for each new shape."""


class Cache:
    """Keys, values and features of tokens, for each layer.

    Row b's next token is written at column lengths[b]. Rows of unequal length thus share a batch
    without padding between prompt and answer: the column of a token is always its index in its
    own sequence, and what lies past a row's end is overwritten before any query sees it.

    Where a layer sees only the last tokens and some first ones, no others are kept: first the first
    ones, then the last ones.

    Args:
        batch: number of rows.
        capacity: largest number of tokens of a row.
        device: where the tensors are.
        final_lengths: tokens of each row once it is finished, (B,) on the CPU; None: `capacity`.

    Attributes:
        longest: tokens of the longest row, the new ones included.
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
            self.final_lengths = final_lengths
        self.tokens = torch.zeros(batch, capacity, dtype=torch.long, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)
        self._rows = torch.arange(batch, device=device)[:, None]
        self._buffers: dict[Hashable, Tensor] = {}
        self._visible: dict[Hashable, Visibility] = {}  # of buffers that are smaller than others
        self._shrinks: dict[Visibility, bool] = {}
        self._sorted = False  # into places, what is in such buffers
        self._index = torch.zeros(batch, 0, dtype=torch.long, device=device)
        self.longest = 0
        self._stop = 0
        self._fill = 0  # the longest row, known without asking the device
        self._columns = COLUMNS.get(torch.device(device).type, 1)

    def begin(self, tokens: Tensor) -> tuple[Tensor | None, Tensor]:
        """Take (B, T) new tokens; return their columns and all (B, S) tokens so far.

        The columns are None where the new tokens are all there is. Each layer then calls
        `append` for what it keeps, and `end` closes the step. S may be rounded up, to COLUMNS.
        """
        new = tokens.shape[1]
        first = not self._buffers
        if self._fill and not self._sorted:
            self._drop_unseen()
            self._sorted = True
        self.longest = self._stop = self._fill + new
        if self._stop > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens, not {self._stop}")
        if not first:  # the queries' columns hide those behind them
            self._stop = min(self._stop + -self._stop % self._columns, self.capacity)
        self._index = self.lengths[:, None] + torch.arange(new, device=tokens.device)
        self.tokens[self._rows, self._index] = tokens
        return (None if first else self._index), self.tokens[:, : self._stop]

    def append(self, what: Hashable, new: Tensor) -> Tensor:
        """Store new values, (B, heads, T, width) -> all so far, (B, heads, S, width)."""
        if what not in self._buffers:
            self._buffers[what] = new.new_zeros(*new.shape[:2], self.capacity, new.shape[3])
        buffer = self._buffers[what]
        buffer[self._rows, :, self._index] = new.transpose(1, 2)
        return buffer[:, :, : self._stop]

    def append_visible(self, what: Hashable, new: Tensor, visible: Visibility) -> Tensor:
        """Store new values, (B, heads, T, width) -> those that queries may see, as in `places`."""
        if not self.shrinks(visible):
            return self.append(what, new)
        self._visible[what] = visible
        if self._fill == 0:  # how long each row is without its padding is not known yet
            self._buffers[what] = new
            return new
        buffer = self._buffers[what]  # (B, heads, places, width)
        both = torch.cat([buffer, new], dim=2)  # (B, heads, places + T, width)
        if visible.first == 0:
            self._buffers[what] = both[:, :, new.shape[2] :]
            return both
        before = self.lengths[:, None]  # (B, 1)
        columns = _columns(self.lengths + new.shape[2], visible)  # (B, places)
        places = torch.arange(buffer.shape[2], device=new.device)  # (places,)
        old = torch.where(places < visible.first, places, places + new.shape[2])
        index = torch.where(columns >= before, buffer.shape[2] + columns - before, old)
        self._buffers[what] = _gather(both, index)
        return both

    def places(self, visible: Visibility) -> tuple[Tensor, Tensor] | None:
        """Return the columns of what `append_visible` returned, (B, S), and the places of the new.

        The places are (B, T). Columns rise, but for those below 0, where there is nothing. None:
        all columns, in order.
        """
        if self._fill == 0 or not self.shrinks(visible):
            return None
        before = _columns(self.lengths, visible)  # (B, places)
        new = torch.arange(self._index.shape[1], device=before.device)  # (T,)
        places = (before.shape[1] + new).expand_as(self._index)
        return torch.cat([before, self._index], dim=1), places

    def shrinks(self, visible: Visibility) -> bool:
        """Return whether fewer keys are kept than the first capacity, given what is visible."""
        if visible not in self._shrinks:
            few = visible.kept is not None and visible.first + visible.kept < self.capacity
            self._shrinks[visible] = few
        return self._shrinks[visible]

    def _drop_unseen(self) -> None:
        """Keep what later queries may see of the first tokens: each row's length is known now."""
        for what, visible in self._visible.items():
            columns = _columns(self.lengths, visible)  # (B, places)
            self._buffers[what] = _gather(self._buffers[what], columns.clamp(min=0))

    @property
    def numbers_per_token(self) -> int:
        """Number of values that all layers together keep per token of the capacity."""
        buffers = self._buffers.values()
        return sum(b.shape[1] * b.shape[2] * b.shape[3] for b in buffers) // self.capacity

    @property
    def bytes_per_token(self) -> int:
        """Number of bytes that all layers together keep per token of the capacity."""
        buffers = self._buffers.values()
        return sum(b.nbytes // len(b) for b in buffers) // self.capacity

    def end(self, new: int) -> None:
        """Close a step of `new` tokens."""
        self.lengths += new
        self._fill += new

    def grow(self, capacity: int) -> None:
        """Make room for up to `capacity` tokens of a row."""
        more = capacity - self.capacity
        self.capacity = capacity
        self.tokens = F.pad(self.tokens, (0, more))
        for what, buffer in self._buffers.items():
            if what not in self._visible:
                self._buffers[what] = F.pad(buffer, (0, 0, 0, more))

    def select(self, rows: Tensor) -> None:
        """Keep these rows, (any number,), in this order."""
        self.tokens = self.tokens[rows]
        self.lengths = self.lengths[rows]
        self.final_lengths = self.final_lengths[rows.cpu()]
        self._rows = torch.arange(len(rows), device=rows.device)[:, None]
        for what, buffer in self._buffers.items():
            self._buffers[what] = buffer[rows]

    def truncate(self, lengths: Tensor) -> None:
        """Keep the first `lengths` tokens of each row, (B,): drop the padding of prompts."""
        self.lengths = lengths.clone()
        self._fill = int(lengths.max())


def _columns(lengths: Tensor, visible: Visibility) -> Tensor:
    """Return the column in each place of rows of these lengths, (B,) -> (B, places).

    Below 0 where there is none.
    """
    first, kept = visible.first, visible.kept
    assert kept is not None
    place = torch.arange(first + kept, device=lengths.device)  # (places,)
    last = lengths[:, None] - kept + place - first  # (B, places)
    columns = torch.where(place < first, place, last)
    missing = (columns >= lengths[:, None]) | ((place >= first) & (columns < first))
    return columns.masked_fill(missing, -1)


def _gather(values: Tensor, index: Tensor) -> Tensor:
    """Return values (B, heads, S, width) at (B, places): (B, heads, places, width)."""
    expanded = index[:, None, :, None].expand(-1, values.shape[1], -1, values.shape[3])
    return values.gather(2, expanded)
