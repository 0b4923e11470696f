"""The KV cache, for any encoding and for rows of unequal length."""

from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor

COLUMNS = {"cuda": 256}
"""Columns are read in multiples of this: kernels are chosen and planned for each new shape."""


class Cache:
    """Keys, values and features of tokens, for each layer.

    Row b's next token is written at column lengths[b]. Rows of unequal length thus share a batch
    without padding between prompt and answer: the column of a token is always its index in its
    own sequence, and what lies past a row's end is overwritten before any query sees it.

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

    @property
    def numbers_per_token(self) -> int:
        """Number of values that all layers together keep per token."""
        return sum(buffer.shape[1] * buffer.shape[3] for buffer in self._buffers.values())

    @property
    def bytes_per_token(self) -> int:
        """Number of bytes that all layers together keep per token."""
        buffers = self._buffers.values()
        return sum(buffer.shape[1] * buffer.shape[3] * buffer.itemsize for buffer in buffers)

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
