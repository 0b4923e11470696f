"""Adding two numbers digit by digit, up to twice as many digits as in training (exact match)."""

from itertools import product
from typing import Any

import numpy as np

from pe_bench.api import (
    BASE,
    END,
    FIRST,
    ID,
    LARGE,
    OOD,
    TINY,
    Batch,
    Cell,
    Headline,
    LengthGeneralizationTask,
    Preset,
    Segment,
    Sequences,
    TaskContext,
    TokenIds,
    TrainConfig,
    Vocabulary,
    concatenate,
)

ZERO = FIRST  # the digits are ZERO to ZERO + 9
PLUS = ZERO + 10
EQUALS = ZERO + 11
SYMBOLS = "0123456789+="
EVAL_SEED = 20_250_101


class Addition(LengthGeneralizationTask):
    """a + b = c, each number from its last digit to its first: 12 + 9 = 21 is `21+9=12` and an end.

    Training draws the lengths of a and b evenly from 1 to `digits`, then each number evenly from
    those of its length (without 0); the loss is on what follows `=`. Evaluation has `samples` items
    for each pair of lengths up to twice the longest trained. An item counts if all digits and the
    end are correct.

    | mean over cells | pairs of lengths |
    |---|---|
    | `in-distribution` | both were trained, a quarter of the grid |
    | `one-longer`, `both-longer` | one or both were not |
    | `out-of-distribution` (headline) | all that are not in distribution |
    | `grid`, `diagonal` | all; both of one length |

    | published (Zhu et al. 2025) | here |
    |---|---|
    | items of small cells drawn with replacement | strict: every pair once; paper: as published |
    | rotation thrown away, random positions plain, a smaller grid | as the paper says |

    Args:
        digits: longest operand in training.
    """

    headline = Headline("exact_match", OOD)
    axes = {"length": "digits of the first number", "second": "digits of the second number"}
    protocols = ("strict", "paper")
    vocabulary = Vocabulary(FIRST + len(SYMBOLS), digit_ids=tuple(range(ZERO, ZERO + 10)))
    presets = {
        "quick": Preset(
            # A narrow model learns with larger steps, from larger weights: 0.02 is for wide ones.
            TrainConfig(steps=2300, batch_size=64, lr=3e-3),
            TINY,
            {"digits": 5, "gate": 95.0},
        ),
        "small": Preset(TrainConfig(steps=10_000, batch_size=512, lr=5e-4), BASE, {"digits": 20}),
        "paper": Preset(
            TrainConfig(steps=20_000, batch_size=512, micro_batch=128, lr=1e-4),
            LARGE.changed(layers=16, heads=16, width=1024, mlp_width=2048),
            {"digits": 40},
        ),
    }

    def __init__(self, context: TaskContext, *, digits: int = 5, **options: Any) -> None:
        super().__init__(context, **options)
        self.check_range(digits=(digits, 1, 200))
        self.digits = digits

    def cells(self, subset: str) -> list[Cell]:
        cells = []
        for first, second in product(range(1, 2 * self.digits + 1), repeat=2):
            longer = (first > self.digits) + (second > self.digits)
            groups = (("grid",), ("grid", "one-longer"), ("grid", "both-longer"))[longer]
            curve = "diagonal" if first == second else ""
            cells.append(Cell(first, str(second), OOD if longer else ID, groups, curve))
        return cells

    def max_tokens(self, subset: str, cell: Cell) -> int:
        second = int(cell.second_axis)
        # Two numbers, their sum with a carry, +, = and the end; few samples may have no carry.
        return cell.length + second + max(cell.length, second) + 1 + 3

    def items(self, subset: str, cell: Cell) -> Sequences:
        first = cell.length
        second = int(cell.second_axis)
        rng = np.random.default_rng([EVAL_SEED, first, second])
        pairs = 81 * 10 ** (first + second - 2)
        if self.context.protocol == "strict" and pairs <= self.samples:
            a, b = np.divmod(np.arange(81), 9)  # only the cell of single digits is that small
            single = np.ones(81, dtype=np.int64)
            return _equations(a[:, None] + 1, single, b[:, None] + 1, single)
        return _draw(rng, np.full(self.samples, first), np.full(self.samples, second))

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        rng = np.random.default_rng([seed, step])
        first, second = rng.integers(1, self.digits + 1, (2, self.train.batch_size))
        return _draw(rng, first, second).batch()


def _draw(rng: np.random.Generator, first: TokenIds, second: TokenIds) -> Sequences:
    """Return equations of random numbers of `first` (N,) and `second` (N,) digits."""
    return _equations(_numbers(rng, first), first, _numbers(rng, second), second)


def _numbers(rng: np.random.Generator, sizes: TokenIds) -> TokenIds:
    """Return uniform numbers of `sizes` digits (N,), the last digit first: (N, max_size)."""
    digits = rng.integers(0, 10, (len(sizes), int(sizes.max())))
    digits[np.arange(len(sizes)), sizes - 1] = rng.integers(1, 10, len(sizes))
    return np.where(np.arange(digits.shape[1]) < sizes[:, None], digits, 0)


def _equations(a: TokenIds, a_size: TokenIds, b: TokenIds, b_size: TokenIds) -> Sequences:
    # Without a loop over rows: the paper's grid has 640,000 items.
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
    for column in range(width - 1):
        total[:, column + 1] += total[:, column] // 10
        total[:, column] %= 10
    return total
