"""Addressing by index, relative to a marker, or across two halves: up to 8 times longer lists."""

from typing import Any

import numpy as np

from pe_bench.api import (
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
    Sequences,
    TaskContext,
    TokenIds,
    TrainConfig,
    Turn,
    Vocabulary,
    collate,
)

START, ASK, MARK = FIRST, FIRST + 1, FIRST + 2
FIRST_SYMBOL = FIRST + 3
N_SYMBOLS = 16
FIRST_NUMBER = FIRST_SYMBOL + N_SYMBOLS
REACH = 4  # largest distance from the marker, and the length of the shortest list
PROBES = ("index", "after", "before", "halves")
EVAL_LENGTH_FACTORS = (0.25, 0.5, 1, 1.5, 2, 4, 8)
EVAL_SEED = 20_250_106


class Probes(LengthGeneralizationTask):
    """Name the symbol at a position of a list; the position is given in one of four ways.

    | probe | the answer is the symbol | example | addressing |
    |---|---|---|---|
    | `index` | at index k of the list | `^abcd:3` c | absolute |
    | `after` | k places after a marker, k up to 4 | `^ab*cd:2` d | relative to content |
    | `before` | k places before a marker, k up to 4 | `^ab*cd:2` a | relative to content |
    | `halves` | where the second half has its marker | `^abcd:xy*z:` c | relative to a start |

    Each probe has its own model. Training draws lists of 4 to `max_train_symbols` symbols (of 16),
    with lengths, places and symbols uniform. The other symbols of the second half are independent,
    so its content gives no hint. The probes are our design.

    Evaluation has `samples` items for each length up to 8 times the longest in training. Numbers
    are single tokens, so a model cannot know a k above `max_train_symbols`, and longer lists do not
    ask for one. Places relative to the marker are drawn from the whole list. Each probe has its own
    means and gate; the headline is the mean over the probes that were run. Preset quick runs
    `index` and `after`. The others are seldom learned within minutes; `--subsets` selects them.

    Args:
        max_train_symbols: symbols of the longest list in training (of half a row in `halves`).
    """

    headline = Headline("exact_match", OOD)
    all_subsets = PROBES
    quick_subsets = ("index", "after")
    axes = {"length": "symbols of the list", "second": ""}
    autoregressive = False
    trains_each_subset = True
    averages_each_subset = True
    presets = {
        "quick": Preset(
            # Each probe is trained separately; two narrow models take less than two minutes.
            TrainConfig(steps=1200, batch_size=64, lr=3e-3, schedule="linear", beta2=0.95),
            TINY.changed(init_std=0.05),
            {"max_train_symbols": 16, "samples": 200, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=10_000, batch_size=128, lr=1e-3),
            SMALL.changed(heads=4, width=128, mlp_width=384),
            {"max_train_symbols": 64, "samples": 1000},
        ),
        "mid": Preset(
            TrainConfig(steps=15_000, batch_size=128, lr=7e-4),
            SMALL,
            {"max_train_symbols": 64, "samples": 1000},
        ),
        "paper": Preset(
            TrainConfig(steps=20_000, batch_size=256, lr=5e-4),
            SMALL.changed(layers=6),
            {"max_train_symbols": 64, "samples": 1000},
        ),
    }

    def __init__(
        self, context: TaskContext, *, max_train_symbols: int = 16, **options: Any
    ) -> None:
        super().__init__(context, **options)
        self.check_range(max_train_symbols=(max_train_symbols, 4 * REACH, 4096))
        self.trained = max_train_symbols
        self.vocabulary = Vocabulary(FIRST_NUMBER + self.trained, separator_ids=(START, ASK))

    def eval_points(self, subset: str) -> list[EvalPoint]:
        sizes = [int(factor * self.trained) for factor in EVAL_LENGTH_FACTORS]
        return [EvalPoint(size, split=ID if size <= self.trained else OOD) for size in sizes]

    def max_tokens(self, subset: str, point: EvalPoint) -> int:
        return 2 * point.length + 4  # maximum of `halves`, used for all probes

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        rng = np.random.default_rng([EVAL_SEED, PROBES.index(subset), point.length])
        return self._draw(rng, subset, np.full(self.samples, point.length))

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        assert subset is not None  # each probe has its own model
        rng = np.random.default_rng([seed, step])
        sizes = rng.integers(REACH, self.trained + 1, self.train.batch_size)
        return self._draw(rng, subset, sizes).batch()

    def _draw(self, rng: np.random.Generator, probe: str, sizes: TokenIds) -> Sequences:
        """Return questions about lists with the given numbers of symbols, (N,)."""
        shape = (len(sizes), int(sizes.max()))
        lists = rng.integers(FIRST_SYMBOL, FIRST_NUMBER, shape)
        number = np.zeros(len(sizes), dtype=np.int64)  # k - 1
        marker = number
        others = lists
        if probe == "halves":
            place = rng.integers(0, sizes)
            others = rng.integers(FIRST_SYMBOL, FIRST_NUMBER, shape)
        elif probe == "index":
            place = rng.integers(0, np.minimum(sizes, self.trained))
            number = place
        else:
            number = rng.integers(0, REACH, len(sizes))
            first = rng.integers(0, sizes - number)
            last = first + number
            marker, place = (first, last) if probe == "after" else (last + 1, first)
        samples = []
        for row, size in enumerate(sizes):
            text = lists[row, :size].tolist()
            answer = [text[place[row]]]
            question = [ASK, FIRST_NUMBER + number[row]]
            if probe == "halves":
                second = others[row, :size].tolist()
                second[place[row]] = MARK
                question = [ASK, *second, ASK]
            elif probe != "index":
                text.insert(marker[row], MARK)
            samples.append([Turn([START, *text, *question], answer)])
        return collate(samples)
