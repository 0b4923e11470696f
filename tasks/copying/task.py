"""Copying and reversing symbols, up to twice as many as in training (exact match)."""

from functools import lru_cache
from typing import Any

import numpy as np

from pe_bench.api import (
    BASE,
    FAR,
    FAR_FACTORS,
    HELD_OUT_SEED,
    ID,
    LARGE,
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
    TokenIds,
    TrainConfig,
    Vocabulary,
)
from pe_bench.tasks.copying.variants import FIRST_SYMBOL, NEXT, SEP, VARIANTS, Variant

EVAL_SEED = 20_230_531
TRAIN_SEED = 20_230_532  # seed of the training items of protocol paper, equal for all runs
TRAIN_ITEMS = 100_000  # number of training items of protocol paper


class Copying(LengthGeneralizationTask):
    """Copy or reverse a sequence: eight variants with a model each (Kazemnejad et al. 2023).

    A row of `copy` is `COPY c a c SEP c a c END`. `reverse` begins with REVERSE, and its answer is
    in reverse order. `copy-twice` and `reverse-twice` answer twice, and `reverse-then-copy` in both
    orders, with NEXT in between. In `copy-constant` the sequence repeats one symbol, so that only
    its length matters; `copy-constant-twice` writes twice as many symbols, without NEXT. `replace`
    is `REPLACE a WITH b IN a a a SEP b b b END`. The loss is on the tokens after SEP.

    Training draws lengths uniformly from `min_symbols` to `max_train_symbols`. Evaluation has
    `samples` items for each length up to twice the maximum. Protocol strict adds 50 items each with
    16 and 32 times the maximum. Their mean `far` is separate from all others, and encodings with
    too few positions are measured without it.

    `exact_match` (published) counts items whose symbols and end are all correct, `token_accuracy`
    counts tokens given the correct tokens before them, and `correct_prefix` counts tokens before
    the first error. Each variant has its own gate and means over trained and over longer lengths
    (the latter was published). The headline is the mean over the variants that were run. Preset
    quick runs `copy` and `reverse`; `--subsets` selects others, by these names or those of the
    authors.

    | published | protocol strict | protocol paper |
    |---|---|---|
    | 100,000 training sequences, shuffled | fresh sequences in every step | as published |
    | test items drawn with replacement | without replacement where there are few | as published |
    | `rsc`, `rsc2x` with 6,800 symbols, `rdc` with 82 | `symbols` for all | `symbols` for all |

    | published | preset paper |
    |---|---|
    | 12 layers, 768 wide, T5's MLP of two matrices of 3072, ReLU | three of 2048, SwiGLU |
    | AdamW, 3e-5, linear, warm-up 6 %, decay 0.05, 40,000 steps of 64 | the same |
    | prompts in T5's vocabulary | one token per symbol |
    | greedy decoding | one forward pass where that is equivalent |

    Args:
        min_symbols: symbols of the shortest sequence.
        max_train_symbols: symbols of the longest sequence in training.
        symbols: size of the alphabet.
    """

    headline = Headline("token_accuracy", OOD)
    point_metrics = ("exact_match", "token_accuracy", "correct_prefix")
    all_subsets = tuple(VARIANTS)
    quick_subsets = ("copy", "reverse")
    subset_aliases = {variant.published_as: name for name, variant in VARIANTS.items()}
    axes = {"length": "symbols", "second": ""}
    protocols = ("strict", "paper")
    trains_each_subset = True
    averages_each_subset = True
    presets = {
        "quick": Preset(
            TrainConfig(steps=1000, batch_size=64, lr=3e-3),
            TINY,
            {"min_symbols": 2, "max_train_symbols": 10, "symbols": 20, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=5000, batch_size=64, lr=5e-4),
            SMALL.changed(layers=6),
            {"samples": 200},
        ),
        "mid": Preset(
            TrainConfig(steps=20_000, batch_size=64, lr=2e-4, warmup=0.06), BASE, {"samples": 300}
        ),
        "paper": Preset(
            TrainConfig(
                steps=40_000,
                batch_size=64,
                lr=3e-5,
                schedule="linear",
                warmup=0.06,
                weight_decay=0.05,
            ),
            # Three matrices of 2048 have as many parameters as T5's two of 3072.
            LARGE.changed(mlp_width=2048),
            {"samples": 500},
        ),
    }

    def __init__(
        self,
        context: TaskContext,
        *,
        min_symbols: int = 4,
        max_train_symbols: int = 20,
        symbols: int = 100,
        **options: Any,
    ) -> None:
        super().__init__(context, **options)
        self.check_range(
            max_train_symbols=(max_train_symbols, 1, 1000),
            min_symbols=(min_symbols, 1, max_train_symbols),
            symbols=(symbols, 2, 100_000),
        )
        self.symbols = symbols
        self.train_sizes = range(min_symbols, max_train_symbols + 1)
        self.vocabulary = Vocabulary(FIRST_SYMBOL + symbols, separator_ids=(SEP, NEXT))

    def eval_points(self, subset: str) -> list[EvalPoint]:
        longest = self.train_sizes[-1]
        groups = {longest + 1: ("one-symbol-more",), longest + 2: ("two-symbols-more",)}
        points = [EvalPoint(size, split=ID) for size in self.train_sizes]
        for size in range(longest + 1, 2 * longest + 1):
            points.append(EvalPoint(size, split=OOD, groups=groups.get(size, ())))
        if self.context.protocol == "strict":
            points += [EvalPoint(factor * longest, split=FAR) for factor in FAR_FACTORS]
        return points

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        variant = VARIANTS[subset]
        size = point.length
        wanted = self.count(subset, point)
        if self.context.protocol == "strict" and variant.count(size, self.symbols) <= wanted:
            numbers = variant.all(size, self.symbols)
        else:
            rng = np.random.default_rng([EVAL_SEED, *variant.published_as.encode(), size])
            numbers = variant.draw(rng, wanted, size, self.symbols)
        return variant.rows(numbers, np.full(len(numbers), size), self.symbols)

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        assert subset is not None  # each variant has its own model
        variant = VARIANTS[subset]
        if self.context.protocol == "strict":
            return self._drawn(variant, seed, step)
        n = self.train.batch_size
        start = step * n
        epochs = range(start // TRAIN_ITEMS, -(-(start + n) // TRAIN_ITEMS))
        order = np.concatenate([_order(seed, epoch, TRAIN_ITEMS) for epoch in epochs])
        chosen = order[start % TRAIN_ITEMS :][:n]
        sizes = self.train_sizes.start + chosen % len(self.train_sizes)
        rows = _training_items(variant, TRAIN_ITEMS, self.train_sizes[-1], self.symbols)
        numbers = rows[chosen]
        return variant.rows(numbers, sizes, self.symbols).batch()

    def held_out_batch(self, subset: str | None, step: int) -> Batch:
        """Return fresh rows, also in protocol paper, whose training set is fixed."""
        assert subset is not None
        return self._drawn(VARIANTS[subset], HELD_OUT_SEED, step)

    def _drawn(self, variant: Variant, seed: int, step: int) -> Batch:
        n = self.train.batch_size
        rng = np.random.default_rng([seed, step])
        sizes = rng.integers(self.train_sizes.start, self.train_sizes.stop, n)
        numbers = variant.draw(rng, n, self.train_sizes[-1], self.symbols)
        return variant.rows(numbers, sizes, self.symbols).batch()


@lru_cache
def _training_items(variant: Variant, rows: int, size: int, symbols: int) -> TokenIds:
    """Return the parameters of all training rows of protocol paper."""
    rng = np.random.default_rng([TRAIN_SEED, *variant.published_as.encode()])
    return variant.draw(rng, rows, size, symbols)


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, rows: int) -> TokenIds:
    return np.random.default_rng([seed, epoch]).permutation(rows)
