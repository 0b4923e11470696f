"""The option `--shard I/N`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pe_bench.errors import InputError


@dataclass(frozen=True)
class Shard:
    """One of several shards, such as 2/8.

    Attributes:
        number: number of the shard, from 1 to `count`.
        count: number of shards.

    Raises:
        InputError: there is no such shard.
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise InputError(
                f"there is no shard {self.number}/{self.count}: of 8, they are 1/8 to 8/8"
            )

    @classmethod
    def read(cls, words: Sequence[str]) -> "Shard":
        """Return the shard from a word such as "2/8".

        Raises:
            ValueError: the word is not a shard.
        """
        (word,) = words
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", word)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"must be a shard such as 2/8, from 1/8 to 8/8, not '{word}'")
        return cls(int(match[1]), int(match[2]))
