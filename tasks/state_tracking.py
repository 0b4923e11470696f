"""State tracking: parity, majority, sums and products of permutations, also in longer rows."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np

from pe_bench.api import (
    FIRST,
    ID,
    IGNORE,
    LARGE,
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
STATES = ("majority", "parity", "sum", "group")
EVAL_LENGTH_FACTORS = (0.5, 1, 1.5, 2, 3, 4)
EVAL_SEED = 20_250_108


class StateTracking(LengthGeneralizationTask):
    """Predict a state after every symbol of a row; each kind of state has its own model.

    | kind | symbols | state after each | C-RASP predicts longer rows |
    |---|---|---|---|
    | `majority` | bits | 1 where 1 has been more frequent than 0 | yes |
    | `parity` | bits | the sum, modulo 2 | no |
    | `sum` | 0 to `modulus` - 1 | the sum, modulo `modulus` | - |
    | `group` | permutations of `points` points | their product | - |

    Huang et al. 2024 (arXiv 2410.02140) predict that a transformer trained on short rows
    generalises to longer rows if the rule has a program in C-RASP, a language of counting
    operations. Majority has such a program and parity has none. The paper does not treat the other
    two kinds, where one symbol also changes every later state. The fraction of ones is drawn for
    each row, uniformly from 0 to 1, so that every number of ones is equally likely. Symbols that
    are not bits are uniform.

    Training rows have `max_train_symbols` symbols and ask for every state. With `dense=false` they
    have 1 to `max_train_symbols` symbols and ask for the last state only. Evaluation has `samples`
    rows for each length, from half to 4 times the training length and one symbol more than trained,
    and asks for the last state. Each kind has its own means and gate; the headline is the mean over
    the kinds that were run. Preset quick runs `majority` and `parity`. The others take longer to
    learn; `--subsets` selects them.

    | Huang et al. | here |
    |---|---|
    | trained on 0 to 50 bits, tested on up to 150 | 1 to 50 (preset paper), up to 200 |
    | a separator asks for the answer, followed by an end | the last symbol asks for it, no end |
    | no ties in majority | a tie is 0 |
    | learned positions with random offsets; NoPE | any encoding |
    | architecture and learning rate searched, stops at 100 % | one for all, all steps |
    | sums and permutations are not included | ours, after Liu et al. 2022 (arXiv 2210.10749) |

    Shortcuts:
        last token of majority: the fraction of ones is drawn for each row, so most bits are the
            more frequent one. Rows with nearly equal numbers of zeros and ones need a model.
        n-gram table of majority: the last six bits are right even more often. Parity has no such
            shortcut.

    Args:
        max_train_symbols: number of symbols in the longest training rows.
        modulus: modulus of `sum`.
        points: number of points that `group` permutes, from 3 (6 permutations) to 5 (120, a group
            without a shortcut by sums).
        dense: whether training asks for every state.
        samples: number of items of each point; at a far length about `far_samples` items in total.
    """

    headline = Headline("exact_match", OOD)
    all_subsets = STATES
    quick_subsets = ("majority", "parity")
    axes = {"length": "symbols", "second": ""}
    autoregressive = False
    trains_each_subset = True
    averages_each_subset = True
    presets = {
        "quick": Preset(
            TrainConfig(steps=1000, batch_size=64, lr=3e-3, schedule="linear", beta2=0.95),
            TINY,
            {"max_train_symbols": 16, "samples": 300, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=10_000, batch_size=64, lr=1e-3),
            SMALL.changed(heads=4, width=128, mlp_width=384),
            {"max_train_symbols": 32},
        ),
        "mid": Preset(TrainConfig(steps=20_000, batch_size=64, lr=5e-4), SMALL),
        "paper": Preset(
            TrainConfig(steps=60_000, batch_size=64, lr=3e-5, schedule="linear"),
            LARGE,
            {"samples": 2000, "dense": False},
        ),
    }

    def __init__(
        self,
        context: TaskContext,
        *,
        max_train_symbols: int = 50,
        modulus: int = 5,
        points: int = 3,
        dense: bool = True,
        samples: int = 500,
        **options: Any,
    ) -> None:
        super().__init__(context, samples=samples, **options)
        self.check_range(
            max_train_symbols=(max_train_symbols, 4, 4096),
            modulus=(modulus, 2, 100),
            points=(points, 2, 5),
        )
        self.trained = max_train_symbols
        self.dense = dense
        elements = [*permutations(range(points))]
        self.products = _multiply(elements)  # (elements, elements)
        self.symbols = {"majority": 2, "parity": 2, "sum": modulus, "group": len(elements)}
        self.vocabulary = Vocabulary(FIRST_SYMBOL + max(self.symbols.values()))

    def eval_points(self, subset: str) -> list[EvalPoint]:
        sizes = scale_lengths(self.trained, EVAL_LENGTH_FACTORS)
        return [EvalPoint(n, split=ID if n <= self.trained else OOD) for n in sizes]

    def max_tokens(self, subset: str, point: EvalPoint) -> int:
        return point.length + 1

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        rng = np.random.default_rng([EVAL_SEED, STATES.index(subset), point.length])
        return self._draw(rng, subset, np.full(self.samples, point.length), dense=False)

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        assert subset is not None  # each kind has its own model
        rng = np.random.default_rng([seed, step])
        sizes = np.full(self.train.batch_size, self.trained)
        if not self.dense:
            sizes = rng.integers(1, self.trained + 1, self.train.batch_size)
        return self._draw(rng, subset, sizes, dense=self.dense).batch()

    def states(self, kind: str, symbols: TokenIds) -> TokenIds:
        """Return the state after each symbol, as numbers from 0: (N, T) -> (N, T)."""
        if kind == "majority":
            return ((2 * symbols - 1).cumsum(axis=1) > 0).astype(np.int64)
        if kind != "group":
            return symbols.cumsum(axis=1) % self.symbols[kind]
        states = symbols.copy()
        for column in range(1, symbols.shape[1]):
            states[:, column] = self.products[states[:, column - 1], symbols[:, column]]
        return states

    def _draw(
        self, rng: np.random.Generator, kind: str, sizes: TokenIds, *, dense: bool
    ) -> Sequences:
        """Return rows with (N,) symbols that ask for every state, or for the last one."""
        shape = (len(sizes), int(sizes.max()))
        if self.symbols[kind] == 2:
            share = rng.random((len(sizes), 1))
            symbols = (rng.random(shape) < share).astype(np.int64)  # (N, T)
        else:
            symbols = rng.integers(0, self.symbols[kind], shape)
        place = np.arange(1, shape[1] + 1)
        given = place <= sizes[:, None]
        scored = given if dense else place == sizes[:, None]
        ids = np.where(given, FIRST_SYMBOL + symbols, PAD)
        targets = np.where(scored, FIRST_SYMBOL + self.states(kind, symbols), IGNORE)
        start = np.full((len(sizes), 1), START)
        ids = np.concatenate([start, ids], axis=1)  # (N, T + 1)
        targets = np.concatenate([np.full_like(start, IGNORE), targets], axis=1)
        return Sequences(ids, targets != IGNORE, sizes + 1, targets)


def _multiply(elements: Sequence[tuple[int, ...]]) -> TokenIds:
    """Return the number of each product of two permutations, indexed by the left factor first."""
    number = {element: n for n, element in enumerate(elements)}
    products = []
    for left in elements:
        row = []
        for right in elements:
            product = tuple(left[place] for place in right)
            row.append(number[product])
        products.append(row)
    return np.array(products)  # (elements, elements)
