"""Recall of many values by their keys, with more pairs and longer gaps than in training."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pe_bench.api import (
    FAR,
    FAR_FACTORS,
    FIRST,
    ID,
    OOD,
    SMALL,
    TINY,
    Batch,
    Curve,
    EvalPoint,
    Headline,
    InputError,
    LengthGeneralizationTask,
    Preset,
    Scores,
    Sequences,
    TaskContext,
    TrainConfig,
    View,
    Vocabulary,
)
from pe_bench.tasks.mqar.rows import draw

EVAL_SEED = 20_250_105


class MQAR(LengthGeneralizationTask):
    """Multi-query associative recall (Arora et al. 2023, arXiv 2312.04927): `a7 c9 .. c . a`.

    A row begins with pairs of a key and a value, all of them distinct. Later each key occurs once
    more, at a random even place, and the model predicts its value there. The row does not show the
    value, since half of the answers could otherwise be found by elimination. Places are drawn
    without replacement; the g-th place after the pairs has a weight of g^(0.01 - 1), so most
    queries are near and some are far away. The remaining tokens are random keys and values other
    than the keys of the row.

    Each training batch has one of five kinds of row: T = `length` tokens with T/16, T/8 or T/4
    pairs, T/2 tokens with T/32 pairs or, five times as often, T/4 tokens with T/64 pairs, but at
    least 2 pairs. Evaluation has `samples` rows for each length from T/4 to 8 T and each number of
    pairs that fits, in powers of two from the smallest trained number. `accuracy` is the percentage
    of correct queries, `exact_match` the percentage of rows without an error.

    | mean over points | rows |
    |---|---|
    | `in-distribution` | the five kinds of training rows |
    | none | other rows of at most T tokens |
    | `longer` | more than T tokens, at most T/4 pairs |
    | `more-pairs` | more than T tokens, more pairs |
    | `out-of-distribution` (headline) | both |
    | `far` | 16 T and 32 T tokens, T/16 to T/4 pairs, at most 50 rows of each length |

    `far` is not part of the headline; encodings with too few positions are measured without it. The
    baseline `a value of the row` answers every query with a random value of the row.

    Subset `gap` has T/8 pairs at the start of 8 T tokens and a single query at various distances
    after the last pair. It shows how far an encoding reaches, separately from how many pairs it
    distinguishes.

    | published | here |
    |---|---|
    | a key can occur again by chance, also before its query | never |
    | earlier pairs tend to be queried sooner | any order |
    | a convolution with each attention, no MLP | this suite's decoder |
    | 32 epochs of 180,000 rows | the same number of steps on fresh rows (preset paper) |
    | best rate of 1e-3 to 3e-2, decay 0.1, stops at 99 % | 1e-3 (or `--tune`), 0.01, all steps |
    | tests: T/4 tokens with T/64, T/32, T/16 pairs, T/2 to 4 T with a quarter | among others |

    Args:
        length: number of tokens in the longest training rows, a power of two.
        vocabulary: number of keys and values together, half each.
    """

    headline = Headline("accuracy", OOD)
    version = 2
    all_subsets = ("grid", "gap")
    point_metrics = ("accuracy", "exact_match")
    autoregressive = False
    axes = {"length": "tokens", "second": "pairs"}
    presets = {
        "quick": Preset(
            # Recall takes two layers; narrow ones learn it within two minutes.
            TrainConfig(steps=1600, batch_size=64, lr=3e-3),
            TINY.changed(layers=2, init_std=0.05),
            {"length": 32, "vocabulary": 128, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=10_000, batch_size=256, lr=1e-3),
            SMALL.changed(layers=3, heads=4),
            {"length": 256, "vocabulary": 8192},
        ),
        "mid": Preset(
            TrainConfig(steps=20_000, batch_size=256, lr=1e-3),
            SMALL,
            {"length": 256, "vocabulary": 8192, "samples": 500},
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

    @property
    def views(self) -> tuple[View, ...]:
        """The views of all such tasks, with only one of the two equal curves of `gap`."""
        kept = [view for view in super().views if view != Curve("gap", "exact_match")]
        gap = Curve("gap", "accuracy")
        labelled = replace(gap, x="tokens between pairs and query")
        return tuple(labelled if view == gap else view for view in kept)

    def eval_points(self, subset: str) -> list[EvalPoint]:
        if subset == "gap":
            room = 8 * self.tokens - self.tokens // 4
            return [EvalPoint(2**i) for i in range(1, 20) if 2**i <= room - 2]
        points = []
        for octave in range(6):
            length = self.tokens * 2**octave // 4
            pairs = max(2, self.tokens // 64)
            while 4 * pairs <= length:
                split = ID if (length, pairs) in self.mix else ""
                groups: tuple[str, ...] = ()
                if length > self.tokens:
                    split = OOD
                    groups = ("more-pairs" if pairs > self.tokens // 4 else "longer",)
                curve = "by-length" if (self.tokens, pairs) in self.mix else ""
                points.append(EvalPoint(length, str(pairs), split, groups, curve))
                pairs *= 2
        for factor in FAR_FACTORS:
            for part in (16, 8, 4):
                density = str(self.tokens // part)
                points.append(EvalPoint(factor * self.tokens, density, FAR, curve="by-length"))
        return points

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        if subset == "grid":
            length = point.length
            pairs = int(point.second_axis)
            gap = None
        else:
            length = 8 * self.tokens
            pairs = self.tokens // 8
            gap = point.length
        rng = np.random.default_rng([EVAL_SEED, length, pairs, gap or 0])
        return draw(rng, self.count(subset, point), length, pairs, self.keys, gap)

    def own_baselines(self, subset: str, point: EvalPoint) -> Mapping[str, Scores]:
        pairs = int(point.second_axis) if subset == "grid" else self.tokens // 8
        counts = self.items(subset, point).scored.sum(1)  # (N,) queries
        exact = (1 / pairs) ** counts
        correct = counts / pairs
        return {"a value of the row": Scores(exact, counts, correct, correct)}

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        rng = np.random.default_rng([seed, step])
        length, pairs = self.mix[rng.integers(len(self.mix))]
        return draw(rng, self.train.batch_size, length, pairs, self.keys).batch()
