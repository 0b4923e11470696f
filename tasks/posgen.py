"""Sums of earlier numbers, as hard at every position: what new positions alone cost."""

from typing import Any

import numpy as np

from pe_bench.api import (
    BASE,
    FIRST,
    ID,
    OOD,
    SMALL,
    TINY,
    Batch,
    Cell,
    Headline,
    LengthGeneralizationTask,
    Preset,
    Sequences,
    TaskContext,
    TokenIds,
    TrainConfig,
    Vocabulary,
)

START = FIRST
FIRST_NUMBER = FIRST + 1
RULES = ("recurrent", "chain", "semi-recurrent")
EVAL_LENGTH_FACTORS = (0.5, 1, 1.5, 2, 3, 4)
EVAL_SEED = 20_250_109
HELD_OUT = 8  # every so many-th beginning is kept for the evaluation


class Posgen(LengthGeneralizationTask):
    """PosGen (Wang et al. 2024, arXiv 2403.00071): `^ 1 0 2 3 5 10 7 ..`, sums modulo 11.

    In longer texts, tokens tend to be harder to predict, and stand at new positions. Here every
    number is the sum of `far` + `near` earlier ones, modulo `modulus`, by one rule at any position.
    So what is lost beyond the trained length is lost to positions.

    | rule | adds the last `near` numbers and | like |
    |---|---|---|
    | `recurrent` | the `far` before them | Fibonacci's sequence |
    | `chain` | the first `far` of the row | a chain of thought on a question |
    | `semi-recurrent` | `far` that move on by one for every two numbers | words taken in turn |

    Each rule has a model of its own. The first `far` + `near` numbers are given; training scores
    all others. Evaluation has `samples` rows for each length, from half to 4 times the trained one
    and one number more, and scores the last number after the correct ones before it. No training
    row begins as one of the evaluation does. Preset quick runs `recurrent` and `chain`: it learns
    the rows of `semi-recurrent` by heart, which new beginnings show.

    | published | here |
    |---|---|
    | 3 near and 1 far, modulo 17, trained on 64 numbers | the same (preset paper) |
    | 10,000 training rows for 150 epochs of batches of 128 | as many steps, fresh rows |
    | rows begin with 4 different numbers in ascending order | any numbers |
    | the code tests on beginnings that it has trained on | others |
    | means over all positions to the 64th, and to the 256th | places, also between |
    | 2 layers, T5's width of 512 with an MLP of 2048, ReLU | three matrices of 1365, SwiGLU |

    Args:
        max_train_numbers: numbers of a training row.
        modulus: how many different numbers there are.
        near: last numbers that are added.
        far: other numbers that are added.
    """

    headline = Headline("exact_match", OOD)
    all_subsets = RULES
    quick_subsets = ("recurrent", "chain")
    axes = {"length": "numbers of the row", "second": ""}
    autoregressive = False
    trains_each_subset = True
    averages_each_subset = True
    presets = {
        "quick": Preset(
            TrainConfig(steps=800, batch_size=64, lr=3e-3, schedule="linear", beta2=0.95),
            TINY,
            {"max_train_numbers": 16, "modulus": 11, "near": 2, "samples": 300, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=10_000, batch_size=64, lr=1e-3),
            SMALL.changed(layers=2),
            {"max_train_numbers": 32, "near": 2},
        ),
        "mid": Preset(TrainConfig(steps=12_000, batch_size=128, lr=5e-4), SMALL),
        "paper": Preset(
            TrainConfig(steps=11_850, batch_size=128, lr=2e-4, warmup=0.1),
            BASE.changed(layers=2, mlp_width=1365),
            {"samples": 1000},
        ),
    }

    def __init__(
        self,
        context: TaskContext,
        *,
        max_train_numbers: int = 64,
        modulus: int = 17,
        near: int = 3,
        far: int = 1,
        samples: int = 500,
        **options: Any,
    ) -> None:
        super().__init__(context, samples=samples, **options)
        self.check_range(
            near=(near, 1, 4),
            far=(far, 1, 4),
            modulus=(modulus, 2, 100),
            max_train_numbers=(max_train_numbers, 2 * (near + far) + 2, 4096),
        )
        self.trained = max_train_numbers
        self.modulus = modulus
        self.near = near
        self.far = far
        self.vocabulary = Vocabulary(FIRST_NUMBER + modulus)

    def cells(self, subset: str) -> list[Cell]:
        sizes = {self.trained + 1, *(int(factor * self.trained) for factor in EVAL_LENGTH_FACTORS)}
        return [Cell(size, split=ID if size <= self.trained else OOD) for size in sorted(sizes)]

    def max_tokens(self, subset: str, cell: Cell) -> int:
        return cell.length + 1

    def items(self, subset: str, cell: Cell) -> Sequences:
        rng = np.random.default_rng([EVAL_SEED, RULES.index(subset), cell.length])
        rows = self._rows(rng, subset, self.samples, cell.length, held_out=True)
        rows.scored[:, :-1] = False
        return rows

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        assert subset is not None  # every rule is trained on its own
        rng = np.random.default_rng([seed, step])
        return self._rows(rng, subset, self.train.batch_size, self.trained, held_out=False).batch()

    def _rows(
        self, rng: np.random.Generator, rule: str, rows: int, size: int, *, held_out: bool
    ) -> Sequences:
        """Return rows of `size` numbers, beginning as in the evaluation or as in training."""
        given = self.near + self.far
        numbers = np.zeros((rows, size), dtype=np.int64)
        numbers[:, :given] = self._beginnings(rng, rows, held_out)
        for place in range(given, size):
            first = {"recurrent": place - given, "chain": 0}.get(rule, (place - given) // 2)
            far = numbers[:, first : first + self.far]
            near = numbers[:, place - self.near : place]
            numbers[:, place] = (far.sum(1) + near.sum(1)) % self.modulus
        ids = np.pad(FIRST_NUMBER + numbers, ((0, 0), (1, 0)), constant_values=START)
        scored = np.tile(np.arange(size + 1) > given, (rows, 1))
        return Sequences(ids, scored, np.full(rows, size + 1))

    def _beginnings(self, rng: np.random.Generator, rows: int, held_out: bool) -> TokenIds:
        """Return the given numbers of rows, (rows, far + near).

        They are digits of a number, whose multiples of HELD_OUT are those of the evaluation.
        """
        powers = self.modulus ** np.arange(self.far + self.near)
        kept = -(-int(powers[-1]) * self.modulus // HELD_OUT)  # for the evaluation
        if held_out:
            drawn = HELD_OUT * rng.integers(0, kept, rows)
        else:
            drawn = rng.integers(0, int(powers[-1]) * self.modulus - kept, rows)
            drawn += 1 + drawn // (HELD_OUT - 1)
        return drawn[:, None] // powers % self.modulus
