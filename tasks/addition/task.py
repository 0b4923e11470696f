"""Addition of two numbers with up to twice as many digits as in training (exact match)."""

from itertools import product
from typing import Any

import numpy as np

from pe_bench.api import (
    BASE,
    FIRST,
    ID,
    LARGE,
    OOD,
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
from pe_bench.tasks.addition.equations import SYMBOLS, ZERO, all_equations, draw

EVAL_SEED = 20_250_101


class Addition(LengthGeneralizationTask):
    """a + b = c, with the last digit of each number first: 12 + 9 = 21 is `21+9=12` and an end
    token.

    Training draws the lengths of a and b uniformly from 1 to `digits`, then each number uniformly
    from those of its length (without 0). The loss is on the tokens after `=`. Evaluation has
    `samples` items for each pair of lengths up to twice the trained maximum. `exact_match` counts
    items whose digits and end are all correct, `token_accuracy` counts digits and ends given the
    correct tokens before them.

    | mean over points | pairs of lengths |
    |---|---|
    | `in-distribution` | both lengths were trained: a quarter of the grid |
    | `one-longer`, `both-longer` | one or both lengths exceed training |
    | `one-digit-more` | the longer number has one digit more than trained |
    | `out-of-distribution` (headline) | all pairs that are not in distribution |
    | `grid`, `diagonal` | all pairs; pairs of equal lengths |

    | published (Zhu et al. 2025) | here |
    |---|---|
    | items of small points drawn with replacement | strict: each pair once; paper: as published |
    | rotation thrown away, random positions plain, a smaller grid | as the paper says |

    | published code | preset paper, after the paper's Table 5 |
    |---|---|
    | 16 layers of width 1024, 16 heads, gated MLP of width 1024 | the same |
    | GELU-GLU, post-norm (eps 1e-12), DeepNorm initialisation | SwiGLU, pre-norm, std 0.02 |
    | a norm of the embeddings, an MLP before the output head | neither |
    | random initial states, also in evaluation | none |
    | AdamW: beta2 0.98, eps 1e-12, clip 0.5, decay 0.01 | 0.999, 1e-8, 1.0, 0.01 |
    | 1e-4, trapezoidal in wall-clock time; batch grows to 8192 | cosine, 20,000 steps of 512 |
    | half precision with loss scaling | bf16 on a GPU |
    | mean loss over the tokens of a micro-batch | over the tokens of a step |
    | 20 million sums, 12,500 for each pair of lengths | drawn for every step |

    Args:
        digits: maximum number of digits of an operand in training.
    """

    headline = Headline("token_accuracy", OOD)
    point_metrics = ("exact_match", "token_accuracy")
    version = 2
    axes = {"length": "digits of the first number", "second": "digits of the second number"}
    protocols = ("strict", "paper")
    vocabulary = Vocabulary(FIRST + len(SYMBOLS), digit_ids=tuple(range(ZERO, ZERO + 10)))
    presets = {
        "quick": Preset(
            # A narrow model needs a higher learning rate and larger initial weights.
            TrainConfig(steps=4000, batch_size=64, lr=3e-3),
            TINY,
            {"digits": 4, "gate": 95.0},
        ),
        "small": Preset(TrainConfig(steps=10_000, batch_size=512, lr=5e-4), BASE, {"digits": 20}),
        "mid": Preset(
            TrainConfig(steps=15_000, batch_size=512, micro_batch=256, lr=2e-4),
            LARGE.changed(layers=8, mlp_width=2048),
            {"digits": 30},
        ),
        "paper": Preset(
            TrainConfig(steps=20_000, batch_size=512, micro_batch=128, lr=1e-4),
            LARGE.changed(layers=16, heads=16, width=1024, mlp_width=1024),
            {"digits": 40},
        ),
    }

    def __init__(self, context: TaskContext, *, digits: int = 5, **options: Any) -> None:
        super().__init__(context, **options)
        self.check_range(digits=(digits, 1, 200))
        self.digits = digits

    def eval_points(self, subset: str) -> list[EvalPoint]:
        points = []
        for first, second in product(range(1, 2 * self.digits + 1), repeat=2):
            longer = (first > self.digits) + (second > self.digits)
            groups = ["grid"]
            if longer:
                groups.append("one-longer" if longer == 1 else "both-longer")
            if max(first, second) == self.digits + 1:
                groups.append("one-digit-more")
            curve = "diagonal" if first == second else ""
            split = OOD if longer else ID
            points.append(EvalPoint(first, str(second), split, tuple(groups), curve))
        return points

    def max_tokens(self, subset: str, point: EvalPoint) -> int:
        second = int(point.second_axis)
        # Two numbers, their sum with a carry, +, = and the end; few samples may have no carry.
        return point.length + second + max(point.length, second) + 1 + 3

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        first = point.length
        second = int(point.second_axis)
        pairs = 81 * 10 ** (first + second - 2)
        if self.context.protocol == "strict" and pairs <= self.samples:
            return all_equations(first, second)
        rng = np.random.default_rng([EVAL_SEED, first, second])
        return draw(rng, np.full(self.samples, first), np.full(self.samples, second))

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        rng = np.random.default_rng([seed, step])
        first, second = rng.integers(1, self.digits + 1, (2, self.train.batch_size))
        return draw(rng, first, second).batch()
