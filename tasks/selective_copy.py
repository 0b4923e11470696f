"""Copying tokens and leaving out the blanks among them, more or fewer than in training."""

import math
from collections.abc import Iterable

import numpy as np

from pe_bench.api import (
    END,
    FIRST,
    Batch,
    Decoder,
    GeneratedTask,
    Headline,
    Ids,
    Journal,
    Measurement,
    ModelConfig,
    Part,
    Preset,
    Sequences,
    Setup,
    Task,
    TrainConfig,
    answer,
    exact_match_rows,
    join,
    mean,
    progress,
)

START, SEP, BLANK = range(FIRST, FIRST + 3)
SYMBOL = BLANK + 1  # the first of them
EVALUATION = 20_240_529  # seed of the items that everybody is measured on
SHARES = (0.25, 0.5, 1, 2, 4)  # evaluated numbers of blanks, in those of training


class SelectiveCopy(GeneratedTask):
    """`START c _ _ a c _ SEP c a c END`: what is not blank is written in its order.

    Always `tokens` symbols, drawn with repetition; training has `blanks` blanks scattered evenly
    among them, so that it knows one length only. What is counted from the start or back from the
    end is somewhere else where there are more blanks or fewer, the order of the symbols is not.
    The loss is on what follows SEP, the data are new for every step.

    Evaluation takes the same items for everybody, `samples` for each number of blanks from a
    quarter to four times that of training. `in-distribution` is as in training, `dense` half the
    blanks, `sparse` twice as many: the settings of Golovneva et al. (2024), who train on 128
    symbols and 128 blanks. `beyond` is the mean of the last two. An item counts if all symbols
    and the end are right; the token accuracy is the share of these tokens that are likeliest after
    the right ones before them. Where `in-distribution` is below `gate` per cent the headline
    `beyond` is not ranked: its metric is called `unsolved_exact_match` then.

    Ours are START, without which nothing tells an encoding that sees no positions where the
    sequence begins, the number of symbols, and the model and training of preset paper; its numbers
    of blanks and tokens are the published ones.

    Args:
        blanks: how many there are in training.
        tokens: how many there are to copy.
        symbols: how many different ones.
        samples: items for each number of blanks.
        gate: per cent in distribution from which on `beyond` counts.
    """

    name = "selective-copy"
    headline = Headline("exact_match", "beyond", higher_is_better=True)
    shown = dict.fromkeys(("in-distribution", "dense", "sparse"), "exact_match")
    curves = {"by-blanks": "exact_match", "tokens-by-blanks": "token_accuracy"}
    axes = {"length": "blanks", "aux": ""}
    presets = {
        "quick": Preset(
            TrainConfig(steps=1000, batch_size=64, length=27, lr=3e-3, warmup=0.05),
            ModelConfig(layers=3, heads=4, width=64, mlp_width=192, init_std=0.1),
            {"blanks": 8, "tokens": 8, "samples": 100, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=20_000, batch_size=64, length=195, lr=5e-4, warmup=0.05),
            ModelConfig(layers=4, heads=8, width=256, mlp_width=768),
            {"blanks": 64, "tokens": 64, "samples": 200},
        ),
        "paper": Preset(
            TrainConfig(steps=50_000, batch_size=64, length=387, lr=3e-4, warmup=0.05),
            ModelConfig(layers=4, heads=8, width=512, mlp_width=1536),
        ),
    }

    def __init__(
        self,
        setup: Setup,
        start: Task | None,
        *,
        blanks: int = 128,
        tokens: int = 128,
        symbols: int = 16,
        samples: int = 500,
        gate: float = 99.0,
    ) -> None:
        ranges = {
            "blanks": (blanks, 4, 10_000),  # a quarter of them is one at least
            "tokens": (tokens, 1, 10_000),
            "symbols": (symbols, 2, 100_000),
            "samples": (samples, 1, 100_000),
        }
        super().__init__(setup, start, gate=gate, **ranges)
        self.refuse_length("write selective-copy:blanks=N,tokens=N for longer sequences")
        self.blanks, self.tokens, self.symbols = blanks, tokens, symbols
        self.samples = samples
        self.settings = {share: int(share * blanks) for share in SHARES}
        self.subsets = self.chosen(["by-blanks"])
        self.vocab_size = SYMBOL + symbols
        self.separator_ids = (SEP,)
        self.data_label = self.fingerprint = "selective-copy-v1"
        self.trained_to = blanks
        self.train_length = blanks + 2 * tokens + 3
        self.longest = self.settings[SHARES[-1]] + 2 * tokens + 3

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        random = np.random.default_rng([seed, step])
        return self._draw(random, self.setup.train.batch_size, self.blanks).batch()

    def items(self, blanks: int) -> Sequences:
        """The evaluation items with so many blanks."""
        random = np.random.default_rng([EVALUATION, self.tokens, blanks])
        return self._draw(random, self.samples, blanks)

    def evaluate(
        self, model: Decoder, subset: str, seed: int, journal: Journal
    ) -> list[Measurement]:
        rows: list[Measurement] = []
        with progress("selective-copy · evaluate", len(SHARES), unit="setting") as bar:
            for blanks in self.settings.values():
                if str(blanks) not in journal.items:
                    items = self.items(blanks)
                    found = answer(model, items)
                    # What was written freely says nothing of tokens after right ones.
                    given = model.encoding.prefix_consistent
                    share = (found if given else answer(model, items, free=False)).share
                    spread = float(share.std()) / math.sqrt(len(share))
                    journal.add(
                        {str(blanks): [int(found.exact.sum()), float(share.mean()), spread]}
                    )
                right, accuracy, spread = journal.items[str(blanks)]
                rows += exact_match_rows("by-blanks", right, self.samples, length=blanks)
                rows += [
                    Measurement(
                        *("tokens-by-blanks", "token_accuracy", 100 * accuracy, self.samples),
                        *(100 * spread, blanks),
                    )
                ]
                bar.update(1)
        return rows

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        groups: dict[str, list[float]] = {
            "in-distribution": [1],
            "dense": [0.5],
            "sparse": [2],
            "beyond": [0.5, 2],
        }
        found = {(row.metric, row.length): row for row in measured}
        if not found:
            return []
        solved = self.solved(found["exact_match", self.blanks])
        return [
            mean(
                subset,
                [found[metric, self.settings[share]] for share in shares],
                solved=solved or (subset, metric) != ("beyond", "exact_match"),
            )
            for metric in ("exact_match", "token_accuracy")
            for subset, shares in groups.items()
        ]

    def evaluated(self) -> Iterable[Ids]:
        return (self.items(blanks).ids for blanks in self.settings.values())

    def _draw(self, random: np.random.Generator, rows: int, blanks: int) -> Sequences:
        symbols = SYMBOL + random.integers(0, self.symbols, (rows, self.tokens))
        taken = np.tile(np.arange(self.tokens + blanks) < self.tokens, (rows, 1))
        taken = random.permuted(taken, axis=1)
        text = np.full(taken.shape, BLANK)
        text[taken] = symbols.ravel()  # in the same order, row by row
        return join(
            rows,
            Part(np.array([START])),
            Part(text),
            Part(np.array([SEP])),
            Part(symbols, scored=True),
            Part(np.array([END]), scored=True),
        )
