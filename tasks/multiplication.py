"""Multiplication by one digit: numbers up to twice as long as in training (exact match)."""

from typing import Any

import numpy as np

from pe_bench.api import (
    BASE,
    END,
    FIRST,
    ID,
    OOD,
    SMALL,
    TINY,
    EvalPoint,
    Headline,
    LengthGeneralizationTask,
    Preset,
    TaskContext,
    TrainConfig,
    Turn,
    Vocabulary,
    carry,
)

TIMES, EQUALS = range(FIRST + 10, FIRST + 12)  # the digits are FIRST to FIRST + 9


class Multiplication(LengthGeneralizationTask):
    """A number of many digits times one digit (Cho et al. 2024, arXiv 2405.20671).

    Numbers are written with their last digit first: 21 x 4 = 84 is `12*4=480` and an end token. The
    product always has one digit more than the number; the additional digit can be zero.

    Training draws the number of digits uniformly from 1 to `digits`, then the digits (the first one
    is not zero) and the factor from 0 to 9. The loss is on the tokens after `=`. Evaluation has
    `samples` items for each number of digits up to twice the trained maximum. `exact_match` counts
    items whose digits and end are all correct, `token_accuracy` counts digits and ends given the
    correct tokens before them.

    | published | here |
    |---|---|
    | numbers of one digit start at 0 | at 1 |
    | first digit of the number first | last digit first, like the product |
    | a million rows, evaluated at 100 digits | fresh rows, up to 80 digits (preset paper) |
    | learning rate decays to a tenth, no weight decay | to zero, 0.01 |

    Shortcuts:
        n-gram table: only in distribution, because six tokens contain a whole number of one or two
            digits and its factor.

    Args:
        digits: maximum number of digits of the number in training.
    """

    headline = Headline("token_accuracy", OOD)
    point_metrics = ("exact_match", "token_accuracy")
    axes = {"length": "digits", "second": ""}
    vocabulary = Vocabulary(EQUALS + 1, tuple(range(FIRST, TIMES)), separator_ids=(EQUALS,))
    presets = {
        "quick": Preset(
            TrainConfig(steps=4000, batch_size=64, lr=3e-3), TINY, {"digits": 4, "gate": 95.0}
        ),
        "small": Preset(
            TrainConfig(steps=10_000, batch_size=512, lr=5e-4),
            SMALL.changed(layers=6),
            {"digits": 20},
        ),
        "mid": Preset(
            TrainConfig(steps=20_000, batch_size=1000, micro_batch=500, lr=2e-4),
            BASE.changed(layers=4),
            {"digits": 40, "samples": 500},
        ),
        "paper": Preset(
            TrainConfig(
                steps=50_000, batch_size=1000, micro_batch=500, lr=1e-4, warmup=0.01, beta2=0.95
            ),
            BASE.changed(layers=2, mlp_width=2048),
            {"digits": 40, "samples": 1000},
        ),
    }

    def __init__(self, context: TaskContext, *, digits: int = 4, **options: Any) -> None:
        super().__init__(context, **options)
        self.check_range(digits=(digits, 1, 200))
        self.digits = digits

    def eval_points(self, subset: str) -> list[EvalPoint]:
        lengths = range(1, 2 * self.digits + 1)
        return [EvalPoint(n, split=ID if n <= self.digits else OOD) for n in lengths]

    def sample(self, rng: np.random.Generator, subset: str, point: EvalPoint) -> list[Turn]:
        number = rng.integers(0, 10, point.length)  # the last digit first
        number[-1] = rng.integers(1, 10)
        factor = int(rng.integers(0, 10))
        product = np.append(number * factor, 0)
        carry(product)
        prompt = [*(number + FIRST).tolist(), TIMES, factor + FIRST, EQUALS]
        return [Turn(prompt, [*(product + FIRST).tolist(), END])]
