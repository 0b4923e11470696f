"""Copying tokens without the blanks between them: more or fewer blanks than in training."""

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
    Batch,
    EvalPoint,
    Headline,
    LengthGeneralizationTask,
    Preset,
    Segment,
    Sequences,
    TaskContext,
    TrainConfig,
    Vocabulary,
    concatenate,
)

START, SEP, BLANK = range(FIRST, FIRST + 3)
FIRST_SYMBOL = BLANK + 1
EVAL_SEED = 20_240_529
# Blanks relative to training -> name of the mean; empty: in none.
SHARES = {
    0.25: "",
    0.5: "dense",
    0.75: "slightly-denser",
    1: ID,
    1.25: "slightly-sparser",
    1.5: "sparser",
    2: "sparse",
    4: "",
}


class SelectiveCopy(LengthGeneralizationTask):
    """Copy the symbols in order, without the blanks: `START c _ _ a c _ SEP c a c END`.

    A row always has `tokens` symbols, drawn with replacement. Training rows have `blanks` blanks at
    uniform random places, so all of them have the same length. More or fewer blanks change the
    positions counted from the start or the end, but not the order of the symbols. The loss is on
    the tokens after SEP.

    Evaluation has `samples` items for each number of blanks. An item is correct if all symbols and
    the end are; the token accuracy is teacher-forced, also where answers are generated.

    | blanks relative to training | mean |
    |---|---|
    | 1 | `in-distribution` |
    | 1/2; 2 | `dense`; `sparse` (both as published) |
    | 3/4; 5/4; 3/2 | `slightly-denser`; `slightly-sparser`; `sparser` |
    | all from 1/2 to 2 except 1 | `out-of-distribution` (headline) |
    | 1/4, 4 | none |

    | Golovneva et al. 2024 | here |
    |---|---|
    | 128 symbols, 128 blanks, half and twice as many in evaluation | the same (preset paper) |
    | no START | START, so that encodings without positions can find the beginning |
    | number of symbols, model and training not given | ours |

    Args:
        blanks: number of blanks in a training row.
        tokens: number of symbols to copy.
        symbols: size of the alphabet.
    """

    headline = Headline("token_accuracy", OOD)
    point_metrics = ("exact_match", "token_accuracy")
    version = 2
    all_subsets = ("by-blanks",)
    axes = {"length": "blanks", "second": ""}
    presets = {
        "quick": Preset(
            TrainConfig(steps=1000, batch_size=64, lr=3e-3),
            TINY,
            {"blanks": 8, "tokens": 8, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=20_000, batch_size=64, lr=5e-4),
            SMALL,
            {"blanks": 64, "tokens": 64, "samples": 200},
        ),
        "mid": Preset(
            TrainConfig(steps=30_000, batch_size=64, lr=4e-4),
            SMALL.changed(layers=6),
            {"blanks": 96, "tokens": 96, "samples": 300},
        ),
        "paper": Preset(
            TrainConfig(steps=50_000, batch_size=64, lr=3e-4),
            BASE.changed(layers=4),
            {"samples": 500},
        ),
    }

    def __init__(
        self,
        context: TaskContext,
        *,
        blanks: int = 128,
        tokens: int = 128,
        symbols: int = 16,
        **options: Any,
    ) -> None:
        super().__init__(context, **options)
        self.check_range(
            blanks=(blanks, 4, 10_000),  # so that a quarter is at least one
            tokens=(tokens, 1, 10_000),
            symbols=(symbols, 2, 100_000),
        )
        self.blanks = blanks
        self.tokens = tokens
        self.symbols = symbols
        self.vocabulary = Vocabulary(FIRST_SYMBOL + symbols, separator_ids=(SEP,))

    def eval_points(self, subset: str) -> list[EvalPoint]:
        points = []
        for share, name in SHARES.items():
            groups = (name,) if name not in ("", ID) else ()
            points.append(EvalPoint(int(share * self.blanks), "", OOD if groups else name, groups))
        return points

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        rng = np.random.default_rng([EVAL_SEED, self.tokens, point.length])
        return self._draw(rng, self.samples, point.length)

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        rng = np.random.default_rng([seed, step])
        return self._draw(rng, self.train.batch_size, self.blanks).batch()

    def _draw(self, rng: np.random.Generator, rows: int, blanks: int) -> Sequences:
        symbols = FIRST_SYMBOL + rng.integers(0, self.symbols, (rows, self.tokens))
        is_symbol = np.tile(np.arange(self.tokens + blanks) < self.tokens, (rows, 1))
        is_symbol = rng.permuted(is_symbol, axis=1)  # (rows, tokens + blanks)
        text = np.full(is_symbol.shape, BLANK)
        text[is_symbol] = symbols.ravel()  # in the same order, row by row
        return concatenate(
            rows,
            Segment(np.array([START])),
            Segment(text),
            Segment(np.array([SEP])),
            Segment(symbols, scored=True),
            Segment(np.array([END]), scored=True),
        )
