"""Indirect indexing: the symbol at a shift from a named symbol, also in longer strings."""

from typing import Any

import numpy as np

from pe_bench.api import (
    BASE,
    FIRST,
    ID,
    IGNORE,
    OOD,
    PAD,
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
    scale_lengths,
)

START = FIRST
FIRST_SYMBOL = FIRST + 1
EVAL_LENGTH_FACTORS = (0.5, 1, 1.5, 2, 4)
EVAL_SEED = 20_250_110


class Indexing(LengthGeneralizationTask):
    """Indirect Indexing (Gopalakrishnan et al. 2025, arXiv 2509.10534): `^abcdef+2c`: e.

    A row has a string of distinct symbols, a signed shift and one of the symbols. The answer is the
    symbol that many places to the right (+) or to the left (-). So a model has to find a position
    by its symbol, and then a symbol by its position. The loss is on the answers only.

    Training draws the length uniformly from `min_symbols` to `max_train_symbols`, the shift from
    those of at most `reach` that fit into the string, and then the named symbol. Evaluation has
    `samples` rows for each shift and length: 0.5, 1, 1.5, 2 and 4 times the longest in training,
    and one symbol more than trained. `left` and `right` are means over the longer strings. A row
    has several questions about its string, in evaluation with the same shift. It does not show
    answers, so no answer can be derived from an earlier one.

    | published | here |
    |---|---|
    | 52 letters, strings of 20 to 40 | the same lengths (preset paper), 4 times as many symbols |
    | shifts of -15 to 15, as sign and digits | all that fit except 0, one token each |
    | source, then shift, with delimiters | shift, then source: learned sooner |
    | one question per string | `questions`; one in preset paper |
    | 1 million training rows, 100,000 steps of 64 | the same steps on fresh rows (preset paper) |
    | 10,000 test rows from the training distribution | longer strings in addition |
    | learning rate decays to a tenth, linear warm-up of 4000 steps | to zero, the same warm-up |

    Args:
        min_symbols: symbols of the shortest string in training.
        max_train_symbols: symbols of the longest string in training.
        reach: largest shift.
        questions: number of questions per string; more questions make the task easier to learn.
    """

    headline = Headline("accuracy", OOD)
    version = 2
    point_metrics = ("accuracy",)
    autoregressive = False
    all_subsets = ("grid",)
    axes = {"length": "symbols of the string", "second": "shift"}
    presets = {
        "quick": Preset(
            # Without short strings and many questions no encoding starts to learn.
            TrainConfig(steps=3000, batch_size=64, lr=3e-3, schedule="linear", beta2=0.95),
            TINY.changed(layers=2, init_std=0.05),
            {"min_symbols": 2, "max_train_symbols": 8, "reach": 2, "questions": 8, "gate": 90.0},
        ),
        "small": Preset(
            TrainConfig(steps=10_000, batch_size=128, lr=1e-3),
            SMALL.changed(heads=4, width=128, mlp_width=384),
            {"min_symbols": 2, "max_train_symbols": 32, "reach": 8, "questions": 8},
        ),
        "mid": Preset(
            TrainConfig(steps=20_000, batch_size=128, lr=5e-4),
            SMALL,
            {"min_symbols": 2, "questions": 8, "samples": 200},
        ),
        "paper": Preset(
            TrainConfig(steps=100_000, batch_size=64, lr=2e-4, warmup=0.04, beta2=0.99),
            BASE.changed(layers=8, mlp_width=1365),
            {"samples": 300},
        ),
    }

    def __init__(
        self,
        context: TaskContext,
        *,
        min_symbols: int = 20,
        max_train_symbols: int = 40,
        reach: int = 15,
        questions: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(context, **options)
        self.check_range(
            max_train_symbols=(max_train_symbols, 4, 4096),
            min_symbols=(min_symbols, 2, max_train_symbols // 2),
            reach=(reach, 1, max_train_symbols // 2 - 1),
            questions=(questions, 1, 1000),
        )
        self.sizes = range(min_symbols, max_train_symbols + 1)
        self.questions = questions
        self.shifts = [*range(-reach, 0), *range(1, reach + 1)]
        self.symbols = 4 * max_train_symbols  # so that the longest string has distinct symbols
        self.first_shift = FIRST_SYMBOL + self.symbols + reach  # its token, plus the shift
        self.vocabulary = Vocabulary(self.first_shift + reach + 1, separator_ids=(START,))

    def eval_points(self, subset: str) -> list[EvalPoint]:
        longest = self.sizes[-1]
        points = []
        for size in scale_lengths(longest, EVAL_LENGTH_FACTORS):
            for shift in self.shifts:
                groups = () if size <= longest else ("left" if shift < 0 else "right",)
                split = ID if size <= longest else OOD
                points.append(EvalPoint(size, f"{shift:+}", split, groups, "by-length"))
        return points

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        rng = np.random.default_rng([EVAL_SEED, point.length, *point.second_axis.encode()])
        return self._rows(rng, np.full(self.samples, point.length), int(point.second_axis))

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        rng = np.random.default_rng([seed, step])
        sizes = rng.integers(self.sizes.start, self.sizes.stop, self.train.batch_size)
        return self._rows(rng, sizes).batch()

    def _rows(self, rng: np.random.Generator, sizes: TokenIds, shift: int = 0) -> Sequences:
        """Return strings of lengths (N,) with questions about one shift; 0: about any that fits."""
        size = sizes[:, None]
        text = rng.random((len(sizes), self.symbols)).argsort(axis=1)[:, : sizes.max()]  # (N, S)
        reach = np.minimum(self.shifts[-1], size - 1)
        shifts = rng.integers(-reach, reach, (len(sizes), self.questions))  # (N, Q)
        shifts[shifts >= 0] += 1  # there is no shift of 0
        if shift:
            shifts[:] = shift
        sources = rng.integers(np.maximum(0, -shifts), size - np.maximum(0, shifts))
        named = np.take_along_axis(text, sources, axis=1)  # (N, Q)
        answers = np.take_along_axis(text, sources + shifts, axis=1)
        given = np.where(np.arange(text.shape[1]) < size, FIRST_SYMBOL + text, PAD)
        ids = np.pad(given, ((0, 0), (1, 2 * self.questions)), constant_values=PAD)
        ids[:, 0] = START
        targets = np.full_like(ids, IGNORE)
        ends = size + 2 * np.arange(1, self.questions + 1)  # (N, Q), the places of the answers
        np.put_along_axis(ids, ends - 1, self.first_shift + shifts, axis=1)
        np.put_along_axis(ids, ends, FIRST_SYMBOL + named, axis=1)
        np.put_along_axis(targets, ends, FIRST_SYMBOL + answers, axis=1)
        return Sequences(ids, targets != IGNORE, sizes + 1 + 2 * self.questions, targets)
