"""Copying and reversing symbols, up to twice as many as in training (exact match)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pe_bench.api import (
    END,
    FIRST,
    ID,
    LARGE,
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
    Turn,
    Vocabulary,
    collate,
)

COPY, REVERSE, REPLACE, WITH, IN, SEP, NEXT = range(FIRST, FIRST + 7)
FIRST_SYMBOL = NEXT + 1
EVAL_SEED = 20_230_531
TRAIN_SEED = 20_230_532  # of the training items of protocol paper, the same for every run
TRAIN_ITEMS = 100_000  # of protocol paper


@dataclass(frozen=True)
class Variant:
    """One kind of question.

    Attributes:
        published_as: name of the authors' data; it seeds the items.
        command: first token of a row.
        answer: returns the answer to a sequence.
        constant: whether the sequence is one symbol repeated, so that only its length matters.
    """

    published_as: str
    command: int
    answer: Callable[[list[int]], list[int]]
    constant: bool = False


VARIANTS = {
    "copy-constant": Variant("rsc", COPY, lambda s: s, constant=True),
    "copy-constant-twice": Variant("rsc2x", COPY, lambda s: [*s, *s], constant=True),
    "replace": Variant("rdc", REPLACE, lambda s: s, constant=True),
    "copy": Variant("cmc", COPY, lambda s: s),
    "copy-twice": Variant("cmc2x", COPY, lambda s: [*s, NEXT, *s]),
    "reverse": Variant("mc", REVERSE, lambda s: s[::-1]),
    "reverse-twice": Variant("mc2x", REVERSE, lambda s: [*s[::-1], NEXT, *s[::-1]]),
    "reverse-then-copy": Variant("mcrv", REVERSE, lambda s: [*s[::-1], NEXT, *s]),
}


class Copying(LengthGeneralizationTask):
    """Eight variants (Kazemnejad et al. 2023), each with a model of its own.

    A row of `copy` is `COPY c a c SEP c a c END`; `reverse` begins with REVERSE and answers
    backwards. `copy-twice` and `reverse-twice` answer twice, `reverse-then-copy` backwards and then
    forwards, with NEXT in between. The sequence of `copy-constant` is one symbol repeated, so that
    only its length has to be found; `copy-constant-twice` writes twice as many, without NEXT;
    `replace` is `REPLACE a WITH b IN a a a SEP b b b END`. The loss is on what follows SEP.

    Training draws lengths evenly from `min_symbols` to `max_train_symbols`; evaluation has
    `samples` items for each length up to twice that. An item counts if all symbols and the end are
    correct. Each variant has a mean over trained and over longer lengths (the latter was published)
    and its own gate; the headline is the mean of the variants that were run. Preset quick runs
    `copy` and `reverse`; for the others name --subsets, by these names or by the authors'.

    | published | protocol strict | protocol paper |
    |---|---|---|
    | 100,000 training sequences, shuffled | fresh ones for every step | as published |
    | test items drawn with replacement | each once where there are few | as published |
    | `rsc`, `rsc2x` of 6,800 symbols, `rdc` of 82 | `symbols` for all | `symbols` for all |

    Args:
        min_symbols: symbols of the shortest sequence.
        max_train_symbols: symbols of the longest sequence in training.
        symbols: size of the alphabet.
    """

    headline = Headline("exact_match", OOD)
    all_subsets = tuple(VARIANTS)
    quick_subsets = ("copy", "reverse")
    subset_aliases = {variant.published_as: name for name, variant in VARIANTS.items()}
    axes = {"length": "symbols", "second": ""}
    protocols = ("strict", "paper")
    trains_each_subset = True
    averages_each_subset = True
    presets = {
        "quick": Preset(
            TrainConfig(steps=800, batch_size=64, lr=3e-3),
            TINY,
            {"min_symbols": 2, "max_train_symbols": 10, "symbols": 20, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=5000, batch_size=64, lr=5e-4),
            SMALL.changed(layers=6),
            {"samples": 200},
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
            # T5's MLP is two matrices of 3072; three of 2048 have as many parameters.
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
        self._train_items: dict[str, TokenIds] = {}

    def cells(self, subset: str) -> list[Cell]:
        sizes = range(self.train_sizes.start, 2 * self.train_sizes[-1] + 1)
        return [Cell(size, split=ID if size in self.train_sizes else OOD) for size in sizes]

    def items(self, subset: str, cell: Cell) -> Sequences:
        variant = VARIANTS[subset]
        size = cell.length
        count = self.symbols ** (1 if variant.constant else size)
        if variant.command == REPLACE:
            count *= self.symbols - 1
        if self.context.protocol == "strict" and count <= self.samples:
            powers = self.symbols ** np.arange(2 if variant.constant else size)
            numbers: TokenIds = np.arange(count)[:, None] // powers % self.symbols
        else:
            rng = np.random.default_rng([EVAL_SEED, *variant.published_as.encode(), size])
            numbers = self._draw(rng, variant, self.samples, size)
        return self._rows(variant, numbers, np.full(len(numbers), size))

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        assert subset is not None  # every variant is trained on its own
        variant = VARIANTS[subset]
        rows = self.train.batch_size
        longest = self.train_sizes[-1]
        if self.context.protocol == "strict":
            rng = np.random.default_rng([seed, step])
            sizes = rng.integers(self.train_sizes.start, self.train_sizes.stop, rows)
            return self._rows(variant, self._draw(rng, variant, rows, longest), sizes).batch()
        if subset not in self._train_items:
            rng = np.random.default_rng([TRAIN_SEED, *variant.published_as.encode()])
            self._train_items[subset] = self._draw(rng, variant, TRAIN_ITEMS, longest)
        chosen = np.empty(rows, dtype=np.int64)
        for row in range(rows):
            epoch, place = divmod(step * rows + row, TRAIN_ITEMS)
            chosen[row] = _order(seed, epoch)[place]
        sizes = self.train_sizes.start + chosen % len(self.train_sizes)
        return self._rows(variant, self._train_items[subset][chosen], sizes).batch()

    def _draw(self, rng: np.random.Generator, variant: Variant, rows: int, size: int) -> TokenIds:
        """Return the numbers that rows are made of.

        Returns:
            Of a constant sequence its symbol and the distance of the other one, (rows, 2); else all
            of its symbols, (rows, size).
        """
        if variant.constant:
            return rng.integers(0, [self.symbols, self.symbols - 1], (rows, 2))
        return rng.integers(0, self.symbols, (rows, size))

    def _rows(self, variant: Variant, numbers: TokenIds, sizes: TokenIds) -> Sequences:
        samples = []
        for row, size in zip(numbers.tolist(), sizes.tolist(), strict=True):
            samples.append(self._row(variant, row, size))
        return collate(samples)

    def _row(self, variant: Variant, numbers: list[int], size: int) -> list[Turn]:
        text = [FIRST_SYMBOL + number for number in numbers[:size]]
        if variant.constant:
            text = [FIRST_SYMBOL + numbers[0]] * size
        if variant.command == REPLACE:
            other = FIRST_SYMBOL + (numbers[0] + 1 + numbers[1]) % self.symbols
            question = [REPLACE, text[0], WITH, other, IN, *text, SEP]
            return [Turn(question, [other] * size + [END])]
        return [Turn([variant.command, *text, SEP], [*variant.answer(text), END])]


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int) -> TokenIds:
    return np.random.default_rng([seed, epoch]).permutation(TRAIN_ITEMS)
