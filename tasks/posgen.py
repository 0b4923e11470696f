"""Sums that are equally hard at every position: the cost of new positions alone."""

from typing import Any

import numpy as np

from pe_bench.api import (
    BASE,
    FIRST,
    ID,
    IGNORE,
    OOD,
    SMALL,
    TINY,
    Batch,
    EvalPoint,
    Headline,
    LengthGeneralizationTask,
    Preset,
    Sequences,
    TaskContext,
    TrainConfig,
    Vocabulary,
    scale_lengths,
)

START = FIRST
FIRST_NUMBER = FIRST + 1
RULES = ("recurrent", "chain", "semi-recurrent")
EVAL_LENGTH_FACTORS = (0.5, 1, 1.5, 2, 3, 4)
EVAL_SEED = 20_250_110


class Posgen(LengthGeneralizationTask):
    """PosGen (Wang et al. 2024, arXiv 2403.00071) with fresh numbers: `^ 1 0 2 5 10 ..`.

    Usually the tokens of longer texts are both harder to predict and at new positions. Here every
    position is equally hard: after each number the model predicts the sum of `near` + `far` numbers
    of the row, modulo `modulus`, by the same rule. A lower score beyond the training length is
    therefore due to positions.

    | rule | adds the last `near` numbers and | similar to |
    |---|---|---|
    | `recurrent` | the `far` numbers before them | the Fibonacci sequence |
    | `chain` | the first `far` numbers of the row | a chain of thought about a question |
    | `semi-recurrent` | `far` numbers, moving on by one for every two | alternating words |

    The numbers of a row are drawn independently, and the sums are not part of the row. If one
    number of a sum is unknown, the sum is uniform. So a model that does not find the distant number
    can only guess; neither an n-gram table nor a difference of earlier sums helps. Only `recurrent`
    is local, and a table of `near` + `far` tokens solves it. This is intended: it is the control
    that shows whether addition itself extends to longer rows. Every training step has fresh rows,
    so that there are no rows to memorise.

    Each rule has its own model. Training scores every sum. Evaluation has `samples` rows for each
    length, from half to 4 times the training length and one number more than trained, and scores
    the last sum. Preset quick runs `chain`.

    | published | here |
    |---|---|
    | each number is a sum of earlier numbers | independent numbers, and a sum after each |
    | the last four predict the next (`chain`: 2 x_(t-1) - x_(t-4)) | the distant one is needed |
    | 3 near and 1 far, modulo 17, trained on 64 numbers | the same (preset paper) |
    | 10,000 training rows for 150 epochs of batches of 128 | the same number of steps, fresh rows |
    | the code tests on prefixes that it has trained on | other rows |
    | means over positions up to 64 and up to 256 | single positions, also in between |
    | 2 layers, T5's width of 512 with an MLP of 2048, ReLU | three matrices of 1365, SwiGLU |

    Args:
        max_train_numbers: number of numbers in a training row.
        modulus: number of different numbers.
        near: how many of the last numbers are added.
        far: how many other numbers are added.
        samples: number of items of each point; at a far length about `far_samples` items in total.
    """

    headline = Headline("exact_match", OOD)
    all_subsets = RULES
    quick_subsets = ("chain",)
    version = 3
    axes = {"length": "numbers of the row", "second": ""}
    autoregressive = False
    trains_each_subset = True
    averages_each_subset = True
    presets = {
        "quick": Preset(
            TrainConfig(steps=1600, batch_size=64, lr=3e-3, schedule="linear", beta2=0.95),
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

    def eval_points(self, subset: str) -> list[EvalPoint]:
        sizes = scale_lengths(self.trained, EVAL_LENGTH_FACTORS)
        return [EvalPoint(n, split=ID if n <= self.trained else OOD) for n in sizes]

    def max_tokens(self, subset: str, point: EvalPoint) -> int:
        return point.length + 1

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        rng = np.random.default_rng([EVAL_SEED, RULES.index(subset), point.length])
        return self._rows(rng, subset, self.samples, point.length, point.length - 1)

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        assert subset is not None  # each rule has its own model
        rng = np.random.default_rng([seed, step])
        first = self.near + self.far - 1
        return self._rows(rng, subset, self.train.batch_size, self.trained, first).batch()

    def _rows(
        self, rng: np.random.Generator, rule: str, rows: int, size: int, first: int
    ) -> Sequences:
        """Return rows of `size` numbers, with the sums after the number at `first` and later."""
        numbers = rng.integers(0, self.modulus, (rows, size))  # (N, T)
        sums = np.full((rows, size), IGNORE)  # (N, T)
        for index in range(first, size):
            latest = index + 1 - self.near - self.far  # last start of the far numbers
            start = {"recurrent": latest, "chain": 0}.get(rule, latest // 2)
            far = numbers[:, start : start + self.far]  # (N, far)
            near = numbers[:, index + 1 - self.near : index + 1]  # (N, near)
            sums[:, index] = FIRST_NUMBER + (far.sum(1) + near.sum(1)) % self.modulus
        ids = np.pad(FIRST_NUMBER + numbers, ((0, 0), (1, 0)), constant_values=START)
        targets = np.pad(sums, ((0, 0), (1, 0)), constant_values=IGNORE)
        return Sequences(ids, targets != IGNORE, np.full(rows, size + 1), targets)
