"""Sums of given numbers, as hard at every position: what new positions alone cost."""

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
)

START = FIRST
FIRST_NUMBER = FIRST + 1
RULES = ("recurrent", "chain", "semi-recurrent")
EVAL_LENGTH_FACTORS = (0.5, 1, 1.5, 2, 3, 4)
EVAL_SEED = 20_250_110


class Posgen(LengthGeneralizationTask):
    """PosGen (Wang et al. 2024, arXiv 2403.00071) with fresh numbers: `^ 1 0 2 5 10 ..`.

    In longer texts, tokens tend to be harder to predict, and they stand at new positions. Here the
    model predicts after each number the sum of `near` + `far` numbers of the row, modulo `modulus`,
    by one rule at every position. A lower score beyond the trained length is then due to positions.

    | rule | adds the last `near` numbers and | like |
    |---|---|---|
    | `recurrent` | the `far` before them | Fibonacci's sequence |
    | `chain` | the first `far` of the row | a chain of thought on a question |
    | `semi-recurrent` | `far` that move on by one for every two numbers | words taken in turn |

    All numbers of a row are drawn independently, and the sums do not stand in the row. A sum of
    which one number is unknown is uniform. So whoever does not find the distant number guesses: no
    table of n-grams and no difference of earlier sums tells it. `recurrent` alone is local, and a
    table of `near` + `far` tokens solves it, as intended: it is the control, which shows whether
    the sum itself holds for longer rows. Rows are drawn afresh for every step: training has every
    combination of `near` + `far` numbers, and there are no rows to learn by heart.

    Each rule has its own model. Training scores every sum. Evaluation has `samples` rows for
    each length, from half to 4 times the trained one and one number more, and scores the last sum.
    Preset quick runs `chain`.

    | published | here |
    |---|---|
    | numbers are the sums of those before | fresh numbers, with a sum after each |
    | the last four tell the next (`chain`: 2 x_(t-1) - x_(t-4)) | the distant one is needed |
    | 3 near and 1 far, modulo 17, trained on 64 numbers | the same (preset paper) |
    | 10,000 training rows for 150 epochs of batches of 128 | as many steps, fresh rows |
    | the code tests on beginnings that it has trained on | other rows |
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
        sizes = {self.trained + 1, *(int(factor * self.trained) for factor in EVAL_LENGTH_FACTORS)}
        return [EvalPoint(n, split=ID if n <= self.trained else OOD) for n in sorted(sizes)]

    def max_tokens(self, subset: str, point: EvalPoint) -> int:
        return point.length + 1

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        rng = np.random.default_rng([EVAL_SEED, RULES.index(subset), point.length])
        return self._rows(rng, subset, self.samples, point.length, point.length - 1)

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        assert subset is not None  # every rule is trained on its own
        rng = np.random.default_rng([seed, step])
        first = self.near + self.far - 1
        return self._rows(rng, subset, self.train.batch_size, self.trained, first).batch()

    def _rows(
        self, rng: np.random.Generator, rule: str, rows: int, size: int, first: int
    ) -> Sequences:
        """Return rows of `size` numbers, with the sums after the number at `first` and later."""
        numbers = rng.integers(0, self.modulus, (rows, size))  # (N, T)
        sums = np.full((rows, size), IGNORE)  # (N, T)
        for place in range(first, size):
            latest = place + 1 - self.near - self.far  # place where the far numbers can start
            start = {"recurrent": latest, "chain": 0}.get(rule, latest // 2)
            far = numbers[:, start : start + self.far]  # (N, far)
            near = numbers[:, place + 1 - self.near : place + 1]  # (N, near)
            sums[:, place] = FIRST_NUMBER + (far.sum(1) + near.sum(1)) % self.modulus
        ids = np.pad(FIRST_NUMBER + numbers, ((0, 0), (1, 0)), constant_values=START)
        targets = np.pad(sums, ((0, 0), (1, 0)), constant_values=IGNORE)
        return Sequences(ids, targets != IGNORE, np.full(rows, size + 1), targets)
