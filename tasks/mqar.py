"""Recall of many values by their keys, with more pairs and longer gaps than in training."""

from typing import Any

import numpy as np

from pe_bench.api import (
    FIRST,
    ID,
    IGNORE,
    OOD,
    SMALL,
    TINY,
    Batch,
    Cell,
    Headline,
    InputError,
    LengthGeneralizationTask,
    Preset,
    Sequences,
    TaskContext,
    TokenIds,
    TrainConfig,
    Vocabulary,
)

GAP_EXPONENT = 0.01  # of the gaps' distribution, the paper's
EVAL_SEED = 20_250_105


class MQAR(LengthGeneralizationTask):
    """Multi-query associative recall (Arora et al. 2023, arXiv 2312.04927): `a7 c9 .. c . a`.

    A row begins with pairs of a key and a value, all different. Then every key comes once more, at
    a random even place, and the model has to give its value there, which the row does not show (or
    half of the answers could be had by leaving out those given already). Places are drawn without
    replacement, the g-th after the pairs with a weight of g^(0.01 - 1): mostly near, sometimes as
    far as there is room. All else is random keys and values, but no key of that row.

    Training mixes five kinds of row, a batch of one kind: T = `length` tokens with T/16, T/8 and
    T/4 pairs, T/2 tokens with T/32 and, five times as often, T/4 tokens with T/64, but never fewer
    than 2 pairs. Evaluation has `samples` rows for each length from T/4 to 8 T with each number of
    pairs that fits, from the smallest trained on, doubling. `accuracy` is the percentage of queries
    that are correct, `exact_match` that of rows in which all are.

    | mean over cells | rows |
    |---|---|
    | `in-distribution` | at most T tokens |
    | `longer` | longer, no more than T/4 pairs |
    | `more-pairs` | longer, more pairs |
    | `out-of-distribution` (headline) | both |

    Subset `gap`: T/8 pairs at the start of 8 T tokens and a single query, that many tokens after
    the last pair: how far an encoding sees, apart from how much it can tell apart.

    | published | here |
    |---|---|
    | a key may come again by chance, before its query too | never |
    | the earlier a pair, the sooner it tends to be asked for | any order |
    | a convolution beside each attention, no MLP | this suite's decoder |
    | 32 epochs of 180,000 rows | as many steps on fresh rows (preset paper) |
    | eight lengths at their largest number of pairs | part of the grid |

    Args:
        length: tokens of the longest training rows, a power of two.
        vocabulary: keys and values together, half each.
    """

    headline = Headline("accuracy", OOD)
    all_subsets = ("grid", "gap")
    cell_metrics = ("accuracy", "exact_match")
    autoregressive = False
    axes = {"length": "tokens (gap: between pairs and query)", "second": "pairs"}
    presets = {
        "quick": Preset(
            # Two layers are what recall takes; narrow ones learn it within two minutes.
            TrainConfig(steps=1200, batch_size=64, lr=3e-3),
            TINY.changed(layers=2, init_std=0.05),
            {"length": 32, "vocabulary": 128, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=10_000, batch_size=256, lr=1e-3),
            SMALL.changed(layers=3, heads=4),
            {"length": 256, "vocabulary": 8192},
        ),
        "paper": Preset(
            TrainConfig(steps=22_500, batch_size=256, lr=1e-3, warmup=0.1),
            SMALL.changed(layers=2, heads=1, width=128, mlp_width=384),
            {"length": 256, "vocabulary": 8192, "samples": 1000},
        ),
    }

    def __init__(
        self, context: TaskContext, *, length: int = 32, vocabulary: int = 128, **options: Any
    ) -> None:
        super().__init__(context, **options)
        if length & (length - 1) or not 32 <= length <= 4096:
            raise InputError(
                f"{self.name}:length must be a power of two from 32 to 4096, not {length}"
            )
        if not 4 * length <= vocabulary <= 2**20 or vocabulary % 2:
            raise InputError(
                f"{self.name}:vocabulary must be even, from {4 * length} (so that the longest rows "
                f"have different keys) to {2**20}, not {vocabulary}"
            )
        self.tokens = length
        self.keys = vocabulary // 2
        kinds = [(4, 64)] * 5 + [(2, 32), (1, 16), (1, 8), (1, 4)]
        self.mix = [(length // part, max(2, length // pairs)) for part, pairs in kinds]
        self.vocabulary = Vocabulary(FIRST + vocabulary)

    def cells(self, subset: str) -> list[Cell]:
        if subset == "gap":
            room = 8 * self.tokens - self.tokens // 4
            return [Cell(2**i) for i in range(1, 20) if 2**i <= room - 2]
        cells = []
        for octave in range(6):
            length = self.tokens * 2**octave // 4
            pairs = max(2, self.tokens // 64)
            while 4 * pairs <= length:
                group = "more-pairs" if pairs > self.tokens // 4 else "longer"
                ood = length > self.tokens
                groups = (group,) if ood else ()
                cells.append(Cell(length, str(pairs), OOD if ood else ID, groups))
                pairs *= 2
        return cells

    def items(self, subset: str, cell: Cell) -> Sequences:
        if subset == "grid":
            length = cell.length
            pairs = int(cell.second_axis)
            gap = None
        else:
            length = 8 * self.tokens
            pairs = self.tokens // 8
            gap = cell.length
        rng = np.random.default_rng([EVAL_SEED, length, pairs, gap or 0])
        return self._draw(rng, self.samples, length, pairs, gap)

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        rng = np.random.default_rng([seed, step])
        length, pairs = self.mix[rng.integers(len(self.mix))]
        return self._draw(rng, self.train.batch_size, length, pairs).batch()

    def _draw(
        self, rng: np.random.Generator, rows: int, length: int, pairs: int, gap: int | None = None
    ) -> Sequences:
        """Return rows that ask for all keys, or for one, `gap` tokens after the pairs."""
        keys = _distinct(rng, rows, pairs, self.keys) + FIRST  # (rows, pairs)
        values = _distinct(rng, rows, pairs, self.keys) + FIRST + self.keys
        row = np.arange(rows)[:, None]
        if gap is None:
            asked = rng.permuted(np.tile(np.arange(pairs), (rows, 1)), axis=1)
            places = 2 * (pairs + _places(rng, rows, pairs, length // 2 - pairs))
        else:
            asked = rng.integers(0, pairs, (rows, 1))
            places = np.full((rows, 1), 2 * pairs + gap)
        size = self.vocabulary.vocab_size
        ids = rng.integers(FIRST, size, (rows, length))
        is_key = np.zeros((rows, size), dtype=np.bool_)
        is_key[row, keys] = True
        while (wrong := is_key[row, ids]).any():
            ids[wrong] = rng.integers(FIRST, size, int(wrong.sum()))
        ids[:, : 2 * pairs : 2] = keys
        ids[:, 1 : 2 * pairs : 2] = values
        ids[row, places] = keys[row, asked]
        targets = np.full(ids.shape, IGNORE)
        targets[row, places] = values[row, asked]
        return Sequences(ids, targets != IGNORE, np.full(rows, length), targets)


def _distinct(rng: np.random.Generator, rows: int, count: int, below: int) -> TokenIds:
    """Return ordered draws without replacement, all equally likely: (rows, count).

    What has come earlier in its row is drawn again: no symbol is treated unlike another, so no
    outcome is. Far cheaper than a permutation of all symbols where few of many are drawn.
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

    The smallest of exponential waiting times with these rates, in order, are such draws.
    """
    rates = np.arange(1.0, room + 1) ** (GAP_EXPONENT - 1)
    return (rng.exponential(size=(rows, room)) / rates).argsort(axis=1)[:, :count]
