"""Seeds in the notation of the command line: numbers and ranges."""

import re
from collections.abc import Sequence

from pe_bench.registry.options import convert
from pe_bench.results.row_files import DIGITS

LARGEST_SEED = 10**DIGITS - 1  # a table of rows can store it
MAX_SEEDS = 1000  # in one range


def read_seeds(words: Sequence[str]) -> tuple[int, ...]:
    """Return the seeds of several numbers and ranges, such as "7" and "0-4".

    Raises:
        ValueError: a word is neither a seed nor a range. The message says what it must be.
    """
    found: list[int] = []
    for word in words:
        found += _read_word(word)
    return tuple(found)


def _read_word(word: str) -> Sequence[int]:
    span = re.fullmatch(r"(\d+)-(\d+)", word)
    if "," in word or ".." in word or ":" in word:
        raise ValueError(
            f"must be numbers and ranges separated by spaces, as in 0-2 5, not '{word}'"
        )
    if span is None:
        return [_read_seed(word)]
    first, last = _read_seed(span[1]), _read_seed(span[2])
    if not first <= last < first + MAX_SEEDS:
        raise ValueError(
            f"must be an increasing range of at most {MAX_SEEDS} seeds, such as 0-4, not '{word}'"
        )
    return range(first, last + 1)


def _read_seed(word: str) -> int:
    """Return a seed within the range of every random generator."""
    try:
        seed: int = convert(word, int)
    except ValueError as error:
        raise ValueError(f"must be {error}, not '{word}'") from None
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"must be from 0 to {LARGEST_SEED}, not {word}")
    return seed
