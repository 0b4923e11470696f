"""Equations as rows of tokens, vectorised: the paper's grid has 640,000 of them."""

import numpy as np

from pe_bench.api import END, FIRST, Segment, Sequences, TokenIds, carry, concatenate

ZERO = FIRST  # the digits are ZERO to ZERO + 9
PLUS = ZERO + 10
EQUALS = ZERO + 11
SYMBOLS = "0123456789+="


def draw(rng: np.random.Generator, first: TokenIds, second: TokenIds) -> Sequences:
    """Return equations of random numbers of `first` (N,) and `second` (N,) digits."""
    return _equations(_numbers(rng, first), first, _numbers(rng, second), second)


def all_equations(first: int, second: int) -> Sequences:
    """Return each equation of a number with `first` and one with `second` digits once."""
    a_least, b_least = 10 ** (first - 1), 10 ** (second - 1)
    n = 81 * a_least * b_least
    a, b = np.divmod(np.arange(n), 9 * b_least)  # (N,)
    a_digits = (a[:, None] + a_least) // 10 ** np.arange(first) % 10  # (N, first)
    b_digits = (b[:, None] + b_least) // 10 ** np.arange(second) % 10  # (N, second)
    return _equations(a_digits, np.full(n, first), b_digits, np.full(n, second))


def _numbers(rng: np.random.Generator, sizes: TokenIds) -> TokenIds:
    """Return uniform numbers with (N,) digits, the last digit first: (N, max_size)."""
    digits = rng.integers(0, 10, (len(sizes), int(sizes.max())))
    digits[np.arange(len(sizes)), sizes - 1] = rng.integers(1, 10, len(sizes))
    return np.where(np.arange(digits.shape[1]) < sizes[:, None], digits, 0)


def _equations(a: TokenIds, a_size: TokenIds, b: TokenIds, b_size: TokenIds) -> Sequences:
    """Return equations of numbers given by their digits, the last digit first, and their sizes."""
    c = _add(a, b)  # (N, max_size + 1)
    c_size = c.shape[1] - (c[:, ::-1] != 0).argmax(1)
    return concatenate(
        len(a),
        Segment(a + ZERO, a_size),
        Segment(np.array([PLUS])),
        Segment(b + ZERO, b_size),
        Segment(np.array([EQUALS])),
        Segment(c + ZERO, c_size, scored=True),
        Segment(np.array([END]), scored=True),
    )


def _add(a: TokenIds, b: TokenIds) -> TokenIds:
    """Return the digits of the sums of numbers given by their digits, the last digit first."""
    width = max(a.shape[1], b.shape[1]) + 1
    total = np.zeros((len(a), width), dtype=np.int64)
    total[:, : a.shape[1]] += a
    total[:, : b.shape[1]] += b
    carry(total)
    return total
