"""Variants of copying, and their rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pe_bench.api import END, FIRST, Sequences, TokenIds, Turn, collate

COPY, REVERSE, REPLACE, WITH, IN, SEP, NEXT = range(FIRST, FIRST + 7)
FIRST_SYMBOL = NEXT + 1


@dataclass(frozen=True)
class Variant:
    """One variant of the task.

    A row is described by numbers: its symbols or, for a constant sequence, the symbol and the
    offset of the second symbol.

    Attributes:
        published_as: name in the authors' data; it seeds the items.
        command: first token of a row.
        answer: sequence -> answer.
        constant: whether the sequence repeats one symbol.
    """

    published_as: str
    command: int
    answer: Callable[[list[int]], list[int]]
    constant: bool = False

    def draw(self, rng: np.random.Generator, rows: int, size: int, symbols: int) -> TokenIds:
        """Return random numbers for rows, (rows, size) or (rows, 2)."""
        if self.constant:
            return rng.integers(0, [symbols, symbols - 1], (rows, 2))
        return rng.integers(0, symbols, (rows, size))

    def count(self, size: int, symbols: int) -> int:
        """Return the number of different rows of a size."""
        if self.command == REPLACE:
            return symbols * (symbols - 1)
        total: int = symbols ** (1 if self.constant else size)
        return total

    def all(self, size: int, symbols: int) -> TokenIds:
        """Return the numbers of all rows of a size, (count, size) or (count, 2)."""
        powers = symbols ** np.arange(2 if self.constant else size)
        return np.arange(self.count(size, symbols))[:, None] // powers % symbols

    def rows(self, numbers: TokenIds, sizes: TokenIds, symbols: int) -> Sequences:
        """Return the rows with numbers (N, ...) and sizes (N,)."""
        samples = []
        for row, size in zip(numbers.tolist(), sizes.tolist(), strict=True):
            samples.append([self._turn(row, size, symbols)])
        return collate(samples)

    def _turn(self, numbers: list[int], size: int, symbols: int) -> Turn:
        text = [FIRST_SYMBOL + number for number in numbers[:size]]
        if self.constant:
            text = [FIRST_SYMBOL + numbers[0]] * size
        if self.command == REPLACE:
            other = FIRST_SYMBOL + (numbers[0] + 1 + numbers[1]) % symbols
            return Turn([REPLACE, text[0], WITH, other, IN, *text, SEP], [*[other] * size, END])
        return Turn([self.command, *text, SEP], [*self.answer(text), END])


VARIANTS = {
    "copy-constant": Variant("rsc", COPY, lambda s: s, constant=True),
    "copy-constant-twice": Variant("rsc2x", COPY, lambda s: [*s, *s], constant=True),
    "replace": Variant("rdc", REPLACE, lambda s: s, constant=True),
    "copy": Variant("cmc", COPY, lambda s: s),
    "copy-twice": Variant("cmc2x", COPY, lambda s: [*s, NEXT, *s]),
    "reverse": Variant("mc", REVERSE, lambda s: s[::-1]),
    "reverse-twice": Variant("mc2x", REVERSE, lambda s: [*s[::-1], NEXT, *s[::-1]]),
    "reverse-then-copy": Variant("mcrv", REVERSE, lambda s: [*s[::-1], NEXT, *s]),
}
