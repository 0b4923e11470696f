"""Addition of several numbers with running totals: more and longer numbers than in training."""

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

PLUS, EQUALS, NEXT = range(FIRST + 10, FIRST + 13)  # the digits are FIRST to FIRST + 9


class MultiAddition(LengthGeneralizationTask):
    """Numbers of equal length and their running totals (Cho et al. 2025, arXiv 2410.15787).

    Each number is written with its last digit first. 21 + 40 + 45 is `120+040+540=120>160>601` and
    an end token. All numbers are padded with zeros to the length of the largest possible total.
    Without `scratchpad` the answer is only the last total.

    Training draws the number of operands uniformly from 2 to `operands`, the number of digits from
    1 to `digits`, and then every digit. The loss is on the tokens after `=`. Evaluation has
    `samples` items for each number of operands and digits, up to twice the trained maximum.
    `exact_match` counts items whose digits and end are all correct, `token_accuracy` counts digits
    and ends given the correct tokens before them.

    | mean over points | items |
    |---|---|
    | `in-distribution` | as trained |
    | `more-operands`, `more-digits`, `more-of-both` | sums that exceed training in this way |
    | `out-of-distribution` (headline) | all three |
    | `trained-operands` | a curve over digits, with trained numbers of operands |

    | published | here |
    |---|---|
    | first digit of the operands first | last digit first |
    | totals begin with 0 | with the first operand |
    | operands of equal length; in half of the rows of different lengths | of equal length |
    | first digits are not zero | they may be zero |
    | 500,000 rows; up to 30 operands of 30 digits | fresh rows; up to 20 of 20 (preset paper) |
    | learning rate decays to a tenth, no weight decay | to zero, 0.01 |

    Args:
        digits: maximum number of digits of an operand in training, without leading zeros.
        operands: maximum number of operands in training.
        scratchpad: whether the answer has all running totals.
    """

    headline = Headline("token_accuracy", OOD)
    point_metrics = ("exact_match", "token_accuracy")
    axes = {"length": "digits", "second": "operands"}
    vocabulary = Vocabulary(NEXT + 1, tuple(range(FIRST, PLUS)), separator_ids=(EQUALS,))
    presets = {
        "quick": Preset(
            TrainConfig(steps=3500, batch_size=64, lr=3e-3),
            TINY,
            {"digits": 3, "operands": 3, "samples": 50, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=10_000, batch_size=256, lr=5e-4),
            SMALL.changed(layers=6),
            {"digits": 6, "operands": 6},
        ),
        "mid": Preset(
            TrainConfig(steps=20_000, batch_size=400, micro_batch=200, lr=2e-4),
            BASE,
            {"digits": 8, "operands": 8},
        ),
        "paper": Preset(
            TrainConfig(
                steps=50_000, batch_size=400, micro_batch=100, lr=3e-5, warmup=0.01, beta2=0.95
            ),
            LARGE.changed(layers=6, heads=8, width=1024, mlp_width=2048),
            {"digits": 10, "operands": 10},
        ),
    }

    def __init__(
        self,
        context: TaskContext,
        *,
        digits: int = 3,
        operands: int = 3,
        scratchpad: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(context, **options)
        self.check_range(digits=(digits, 1, 100), operands=(operands, 2, 100))
        self.digits = digits
        self.operands = operands
        self.scratchpad = scratchpad

    def eval_points(self, subset: str) -> list[EvalPoint]:
        groups = {(True, False): "more-digits", (False, True): "more-operands"}
        points = []
        for digits, operands in product(
            range(1, 2 * self.digits + 1), range(2, 2 * self.operands + 1)
        ):
            more = (digits > self.digits, operands > self.operands)
            group = groups.get(more, "more-of-both")
            curve = "" if more[1] else "trained-operands"
            split = OOD if any(more) else ID
            found = (group,) if any(more) else ()
            points.append(EvalPoint(digits, str(operands), split, found, curve))
        return points

    def sample(self, rng: np.random.Generator, subset: str, point: EvalPoint) -> list[Turn]:
        operands = int(point.second_axis)
        width = len(str((10**point.length - 1) * operands))
        numbers = np.zeros((operands, width), dtype=np.int64)  # the last digit first
        numbers[:, : point.length] = rng.integers(0, 10, (operands, point.length))
        totals = numbers.cumsum(axis=0)  # (operands, width)
        carry(totals)
        answer = _join(totals if self.scratchpad else totals[-1:], NEXT)
        return [Turn([*_join(numbers, PLUS), EQUALS], [*answer, END])]


def _join(numbers: np.ndarray[Any, np.dtype[np.int64]], symbol: int) -> list[int]:
    """Return the tokens of numbers (N, width) with a symbol between them."""
    tokens = np.full((len(numbers), numbers.shape[1] + 1), symbol)
    tokens[:, :-1] = numbers + FIRST
    ids: list[int] = tokens.flatten().tolist()
    return ids[:-1]
