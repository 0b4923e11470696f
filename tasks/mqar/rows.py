"""Rows of pairs and queries."""

import numpy as np

from pe_bench.api import FIRST, IGNORE, Sequences, TokenIds

GAP_EXPONENT = 0.01  # exponent of the distribution of gaps, as in the paper


def draw(
    rng: np.random.Generator,
    rows: int,
    length: int,
    pairs: int,
    symbols: int,
    gap: int | None = None,
) -> Sequences:
    """Return rows that query all keys, or one.

    Args:
        rng: source of everything that is random.
        rows: number of rows.
        length: number of tokens in each row.
        pairs: number of pairs at the beginning of each row.
        symbols: number of possible keys, and of possible values.
        gap: tokens between the pairs and the only query; None: all keys are queried.
    """
    keys = _distinct(rng, rows, pairs, symbols) + FIRST  # (rows, pairs)
    values = _distinct(rng, rows, pairs, symbols) + FIRST + symbols
    row = np.arange(rows)[:, None]
    if gap is None:
        asked = rng.permuted(np.tile(np.arange(pairs), (rows, 1)), axis=1)
        places = 2 * (pairs + _places(rng, rows, pairs, length // 2 - pairs))
    else:
        asked = rng.integers(0, pairs, (rows, 1))
        places = np.full((rows, 1), 2 * pairs + gap)
    size = FIRST + 2 * symbols
    ids = rng.integers(FIRST, size, (rows, length))
    is_key = np.zeros((rows, size), dtype=np.bool_)
    is_key[row, keys] = True
    wrong = is_key[row, ids]
    while wrong.any():
        ids[wrong] = rng.integers(FIRST, size, int(wrong.sum()))
        wrong = is_key[row, ids]
    ids[:, : 2 * pairs : 2] = keys
    ids[:, 1 : 2 * pairs : 2] = values
    ids[row, places] = keys[row, asked]
    targets = np.full(ids.shape, IGNORE)
    targets[row, places] = values[row, asked]
    return Sequences(ids, targets != IGNORE, np.full(rows, length), targets)


def _distinct(rng: np.random.Generator, rows: int, count: int, below: int) -> TokenIds:
    """Return ordered draws without replacement, all equally likely: (rows, count).

    Repeated symbols are drawn again. This treats all symbols equally, so all outcomes are equally
    likely, and is much cheaper than a permutation of all symbols if few of many are drawn.
    """
    if 2 * count > below:
        return rng.permuted(np.tile(np.arange(below), (rows, 1)), axis=1)[:, :count]
    drawn = rng.integers(0, below, (rows, count))
    while True:
        order = drawn.argsort(axis=1, kind="stable")
        ordered = np.take_along_axis(drawn, order, axis=1)
        again = np.zeros(drawn.shape, dtype=np.bool_)
        np.put_along_axis(again, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
        if not again.any():
            return drawn
        drawn[again] = rng.integers(0, below, int(again.sum()))


def _places(rng: np.random.Generator, rows: int, count: int, room: int) -> TokenIds:
    """Return draws from 0 to room - 1 without replacement, weighted by a power law: (rows, count).

    The places of the smallest exponential waiting times with these rates are such draws.
    """
    rates = np.arange(1.0, room + 1) ** (GAP_EXPONENT - 1)
    return (rng.exponential(size=(rows, room)) / rates).argsort(axis=1)[:, :count]
