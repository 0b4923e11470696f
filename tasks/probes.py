"""Addressing by index, after and before a marker, in two halves; to 8 times the trained length."""

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
REACH = 4  # farthest that a marker is asked about, and the shortest list
PROBES = ("index", "after", "before", "halves")
EVAL_LENGTH_FACTORS = (0.25, 0.5, 1, 1.5, 2, 4, 8)
EVAL_SEED = 20_250_106


class Probes(LengthGeneralizationTask):
    """Which symbol of a list stands at a place, and four ways of saying which place.

    | probe | the answer is the symbol | example | addressing |
    |---|---|---|---|
    | `index` | k-th of the list | `^abcd:3` c | absolute |
    | `after` | k-th after a marker, k to 4 | `^ab*cd:2` d | relative to content |
    | `before` | k-th before a marker, k to 4 | `^ab*cd:2` a | relative to content |
    | `halves` | at the place of the second half's marker | `^abcd:xy*z:` c | relative to a start |

    Each has its own model, trained on lists of 4 to `max_train_symbols` symbols (of 16), all
    lengths, places and symbols evenly. All else in the second half is drawn independently, so its
    content is no hint. These are ours.

    Evaluation has `samples` items for each length up to 8 times the longest trained. Numbers are
    single tokens, so longer lists are asked for no k above `max_train_symbols`, which no
    model could know; places relative to the marker are drawn from the whole list. Each probe has
    its own means and gate; the headline is the mean over those that were run. Preset quick runs
    `index` and `after`; for the others, which are seldom learned in minutes, name --subsets.

    Args:
        max_train_symbols: symbols of the longest list in training, half of a row for `halves`.
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
            # A phase for each probe: narrow layers, so that two take less than two minutes.
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
        return 2 * point.length + 4  # of `halves`: the models of all probes have one length

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        rng = np.random.default_rng([EVAL_SEED, PROBES.index(subset), point.length])
        return self._draw(rng, subset, np.full(self.samples, point.length))

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        assert subset is not None  # every probe is trained on its own
        rng = np.random.default_rng([seed, step])
        sizes = rng.integers(REACH, self.trained + 1, self.train.batch_size)
        return self._draw(rng, subset, sizes).batch()

    def _draw(self, rng: np.random.Generator, probe: str, sizes: TokenIds) -> Sequences:
        """Return questions about lists of these many symbols (N,)."""
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
