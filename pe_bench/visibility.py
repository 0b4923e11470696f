"""The earlier tokens that a query may attend to: all, a window, a chunk, the first ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pe_bench.errors import InputError
from pe_bench.option_table import is_whole


@dataclass(frozen=True)
class Visibility:
    """The keys j <= i that query i may attend to, by their index in the sequence.

    By default, all of them are visible. The engine needs no T x S mask for it, and caches only keys
    that later queries can attend to.

    Attributes:
        window: number of last keys, including the key of the query itself.
        chunk: size of chunks; a query attends within its chunk, as in Llama 4.
        first: number of first keys that are visible in addition to the window or chunk.
    """

    window: int | None = None
    chunk: int | None = None
    first: int = 0

    def __post_init__(self) -> None:
        smallest = {"window": 1, "chunk": 1, "first": 0}
        for name, least in smallest.items():
            value = getattr(self, name)
            if value is None and name != "first":
                continue
            if not is_whole(value):
                raise InputError(f"{name} must be a whole number, not {value!r}")
            if value < least:
                raise InputError(f"{name} must be at least {least}, not {value}")

    @property
    def kept(self) -> int | None:
        """Maximum number of last keys that a query may attend to; None: all."""
        limits = [limit for limit in (self.window, self.chunk) if limit is not None]
        return min(limits, default=None)

    def hides(self, length: int) -> bool:
        """Return whether any of `length` tokens cannot attend to an earlier key."""
        return self.kept is not None and length > self.kept and length - 1 > self.first

    def start(self, column: Tensor) -> Tensor:
        """Return the first column of each query's window or chunk, else 0: (...) -> (...)."""
        start = torch.zeros_like(column)
        if self.window is not None:
            start = start.maximum(column - self.window + 1)
        if self.chunk is not None:
            start = start.maximum(column - column % self.chunk)
        return start

    def count(self, column: Tensor) -> Tensor:
        """Return the number of keys that a query attends to: (...) -> (...)."""
        start = self.start(column)
        return column + 1 - start + start.clamp(max=self.first)

    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        """Return True where a query may attend to a key, (B or 1, 1, T, S).

        Args:
            query: columns of the queries, (B or 1, T).
            key: columns of the keys, (B or 1, S).
        """
        at_query = query[:, None, :, None]  # (B or 1, 1, T, 1)
        at_key = key[:, None, None, :]  # (B or 1, 1, 1, S)
        seen = at_key <= at_query  # (B or 1, 1, T, S)
        if self.kept is None:
            return seen
        recent = at_key >= self.start(at_query)
        return seen & (recent | (at_key < self.first))


EVERYTHING = Visibility()
