"""Sorting digits, up to twice as many as in training (exact match)."""

from typing import Any

import numpy as np

from pe_bench.api import (
    END,
    FIRST,
    ID,
    OOD,
    TINY,
    EvalPoint,
    Headline,
    LengthGeneralizationTask,
    Preset,
    TaskContext,
    TrainConfig,
    Turn,
    Vocabulary,
)

EQUALS = FIRST + 10  # the digits are FIRST to FIRST + 9


class Sorting(LengthGeneralizationTask):
    """`312=123` and an end: digits, then the same ones in ascending order.

    Args:
        digits: most digits of a row in training.
    """

    headline = Headline("exact_match", OOD)
    axes = {"length": "digits", "second": ""}
    vocabulary = Vocabulary(FIRST + 11, digit_ids=tuple(range(FIRST, EQUALS)))
    presets = {"quick": Preset(TrainConfig(steps=1000, batch_size=64, lr=3e-3), TINY)}

    def __init__(self, context: TaskContext, *, digits: int = 8, **options: Any) -> None:
        super().__init__(context, **options)
        self.check_range(digits=(digits, 1, 1000))
        self.digits = digits

    def eval_points(self, subset: str) -> list[EvalPoint]:
        lengths = range(1, 2 * self.digits + 1)
        return [EvalPoint(n, split=ID if n <= self.digits else OOD) for n in lengths]

    def sample(self, rng: np.random.Generator, subset: str, point: EvalPoint) -> list[Turn]:
        digits = rng.integers(FIRST, EQUALS, point.length).tolist()
        return [Turn([*digits, EQUALS], [*sorted(digits), END])]
