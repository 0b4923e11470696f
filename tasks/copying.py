"""Copying and reversing symbols, up to twice as many as in training (exact match)."""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

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

COPY, REVERSE, REPLACE, WITH, IN, SEP, NEXT = range(FIRST, FIRST + 7)
SYMBOL = NEXT + 1  # the first of them
EVALUATION, TRAINING = 20_230_531, 20_230_532  # seeds of what is the same for everybody
TRAINING_ITEMS = 100_000  # of protocol paper


class Variant(NamedTuple):
    """What one of them asks for.

    Attributes:
        command: first token of a row.
        answer: "s" is the sequence, "r" the same backwards, "o" the other symbol as often as the
            sequence is long, "|" the token NEXT.
        repeated: the sequence is one symbol again and again.
    """

    command: int
    answer: str
    repeated: bool = False


VARIANTS = {
    "rsc": Variant(COPY, "s", True),
    "rsc2x": Variant(COPY, "ss", True),
    "rdc": Variant(REPLACE, "o", True),
    "cmc": Variant(COPY, "s"),
    "cmc2x": Variant(COPY, "s|s"),
    "mc": Variant(REVERSE, "r"),
    "mc2x": Variant(REVERSE, "r|r"),
    "mcrv": Variant(REVERSE, "r|s"),
}
QUICK = ("cmc", "mc")


class Copying(GeneratedTask):
    """Eight variants, each with a training of its own, named as by Kazemnejad et al. (2023).

    A row of `cmc` is `COPY c a c SEP c a c END`. `cmc2x` writes the sequence twice with NEXT in
    between; `mc` writes it backwards (and begins with REVERSE), `mc2x` backwards twice, `mcrv`
    backwards and then forwards, both with NEXT in between. The sequence of `rsc` is one symbol
    again and again, so that only its length has to be found; `rsc2x` writes twice as many, without
    NEXT. `rdc` is `REPLACE a WITH b IN a a a SEP b b b END`. The loss is on what follows SEP.

    Training draws lengths evenly from `shortest` to `longest`; evaluation takes the same items for
    everybody, `samples` for each length from `shortest` to twice `longest`. An item counts if all
    symbols and the end are right. Means are over lengths: those of `rsc`, `rsc2x` and so on are
    over the lengths that were not trained, which is what was published, `rsc-inside` over those
    that were; `inside` and `beyond` are the means of the variants that were run. Where one of them
    is below `gate` per cent inside, the headline `beyond` is not ranked: its metric is called
    `unsolved_exact_match` then. Preset quick runs `cmc` and `mc`, for the others name --subsets.

    Protocol strict: fresh sequences for every step; where a length has no more than `samples`
    different items (`rsc` has one for each symbol), each counts once. Protocol paper: 100,000
    sequences, about as many of each length, shuffled anew when all have been seen; test items
    are drawn with replacement. In the published data `rsc` and `rsc2x` were of some 6,800 tokens
    of T5's vocabulary and `rdc` of 82, the others of 100 as here: `symbols` makes it so.

    Args:
        shortest: symbols of the shortest sequence.
        longest: symbols of the longest sequence in training.
        symbols: how many there are to copy.
        samples: items for each length.
        gate: per cent in distribution from which on `beyond` counts.
    """

    name = "copying"
    headline = Headline("exact_match", "beyond", higher_is_better=True)
    shown = dict.fromkeys(("inside", *VARIANTS), "exact_match")
    curves = {f"{name}-by-length": "exact_match" for name in VARIANTS}
    axes = {"length": "symbols", "aux": ""}
    protocols = ("strict", "paper")
    trains_each_subset = True
    presets = {
        "quick": Preset(
            TrainConfig(steps=800, batch_size=64, length=23, lr=3e-3, warmup=0.05),
            ModelConfig(layers=3, heads=4, width=64, mlp_width=192, init_std=0.1),
            {"shortest": 2, "longest": 10, "symbols": 20, "samples": 100, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=5000, batch_size=64, length=64, lr=5e-4, warmup=0.05),
            ModelConfig(layers=6, heads=8, width=256, mlp_width=768),
            {"samples": 200},
        ),
        "paper": Preset(
            TrainConfig(
                steps=40_000,
                batch_size=64,
                length=64,
                lr=3e-5,
                schedule="linear",
                warmup=0.06,
                weight_decay=0.05,
            ),
            # T5's MLP is two matrices of 3072; three of 2048 have as many parameters.
            ModelConfig(layers=12, heads=12, width=768, mlp_width=2048),
        ),
    }

    def __init__(
        self,
        setup: Setup,
        start: Task | None,
        *,
        shortest: int = 4,
        longest: int = 20,
        symbols: int = 100,
        samples: int = 500,
        gate: float = 99.0,
    ) -> None:
        ranges = {
            "longest": (longest, 1, 1000),
            "shortest": (shortest, 1, longest),
            "symbols": (symbols, 2, 100_000),
            "samples": (samples, 1, 100_000),
        }
        super().__init__(setup, start, gate=gate, **ranges)
        self.refuse_length("write copying:longest=N for longer sequences")
        self.symbols, self.samples = symbols, samples
        self.trained = range(shortest, longest + 1)
        self.lengths = range(shortest, 2 * longest + 1)
        self.subsets = self.chosen(tuple(VARIANTS), QUICK)
        # What has not been run shall not be a column of dashes.
        self.shown = dict.fromkeys(("inside", *self.subsets), "exact_match")
        self.vocab_size = SYMBOL + symbols
        self.separator_ids = (SEP, NEXT)
        self.data_label = "copying-v1"
        self.fingerprint = "+".join((self.data_label, *self.subsets))  # they make up the means
        self.trained_to = longest
        self.train_length = max(_tokens(name, longest) for name in self.subsets)
        self.longest = max(_tokens(name, 2 * longest) for name in self.subsets)
        self._fixed: dict[str, Ids] = {}

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        assert subset is not None  # every variant is trained on its own
        size = self.setup.train.batch_size
        if self.setup.protocol == "strict":
            random = np.random.default_rng([seed, step])
            sizes = random.integers(self.trained.start, self.trained.stop, size)
            return self._write(subset, self._draw(random, subset, size), sizes).batch()
        if subset not in self._fixed:
            random = np.random.default_rng([TRAINING, *subset.encode()])
            self._fixed[subset] = self._draw(random, subset, TRAINING_ITEMS)
        epochs, places = np.divmod(np.arange(step * size, (step + 1) * size), TRAINING_ITEMS)
        rows = np.array([_order(seed, int(e))[p] for e, p in zip(epochs, places, strict=True)])
        sizes = self.trained.start + rows % len(self.trained)
        return self._write(subset, self._fixed[subset][rows], sizes).batch()

    def items(self, name: str, size: int) -> Sequences:
        """The evaluation items of a variant and a length."""
        kind = VARIANTS[name]
        different = self.symbols ** (1 if kind.repeated else size)
        if "o" in kind.answer:
            different *= self.symbols - 1
        if self.setup.protocol == "strict" and different <= self.samples:
            powers = self.symbols ** np.arange(2 if kind.repeated else size)
            numbers = np.arange(different)[:, None] // powers % self.symbols
        else:
            random = np.random.default_rng([EVALUATION, *name.encode(), size])
            numbers = self._draw(random, name, self.samples, size)
        return self._write(name, numbers, np.full(len(numbers), size))

    def evaluate(
        self, model: Decoder, subset: str, seed: int, journal: Journal
    ) -> list[Measurement]:
        rows: list[Measurement] = []
        with progress(f"{subset} · evaluate", len(self.lengths), unit="length") as bar:
            for size in self.lengths:
                if str(size) not in journal.items:
                    exact = answer(model, self.items(subset, size)).exact
                    journal.add({str(size): [int(exact.sum()), len(exact)]})
                right, n = journal.items[str(size)]
                rows += exact_match_rows(f"{subset}-by-length", right, n, length=size)
                bar.update(1)
        return rows

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        inside, beyond = {}, {}
        for name in self.subsets:
            cells = {
                row.length: row
                for row in measured
                if (row.subset, row.metric) == (f"{name}-by-length", "exact_match")
            }
            if cells:
                inside[name] = mean(f"{name}-inside", [cells[n] for n in self.trained])
                longer = [row for n, row in cells.items() if n not in self.trained]
                beyond[name] = mean(name, longer)
        if not inside:
            return []
        return [
            mean("beyond", [*beyond.values()], solved=self.solved(*inside.values())),
            mean("inside", [*inside.values()]),
            *beyond.values(),
            *inside.values(),
        ]

    def evaluated(self) -> Iterable[Ids]:
        return (self.items(name, size).ids for name in self.subsets for size in self.lengths)

    def _draw(
        self, random: np.random.Generator, name: str, rows: int, width: int | None = None
    ) -> Ids:
        """The numbers that make rows: of one symbol it and how far the other is, or all symbols."""
        if VARIANTS[name].repeated:
            return random.integers(0, [self.symbols, self.symbols - 1], (rows, 2))
        return random.integers(0, self.symbols, (rows, width or self.trained[-1]))

    def _write(self, name: str, numbers: Ids, sizes: Ids) -> Sequences:
        """Rows of a variant from such numbers and the lengths of the sequences."""
        kind, rows, columns = VARIANTS[name], len(sizes), np.arange(int(sizes.max()))
        if kind.repeated:
            other = (numbers[:, :1] + 1 + numbers[:, 1:]) % self.symbols
            numbers = np.repeat(numbers[:, :1], len(columns), axis=1)
        else:
            other = numbers[:, :1]
        backwards = np.maximum(sizes[:, None] - 1 - columns, 0)
        text = SYMBOL + numbers[:, : len(columns)]
        answers = {
            "s": Part(text, sizes, scored=True),
            "r": Part(np.take_along_axis(text, backwards, axis=1), sizes, scored=True),
            "o": Part(np.repeat(SYMBOL + other, len(columns), axis=1), sizes, scored=True),
            "|": Part(np.array([NEXT]), scored=True),
        }
        asked = [Part(np.array([kind.command]))]
        if kind.command == REPLACE:
            asked += [Part(text[:, :1]), Part(np.array([WITH])), Part(SYMBOL + other)]
            asked += [Part(np.array([IN]))]
        return join(
            rows,
            *asked,
            Part(text, sizes),
            Part(np.array([SEP])),
            *(answers[piece] for piece in kind.answer),
            Part(np.array([END]), scored=True),
        )


def _tokens(name: str, size: int) -> int:
    """Of a row of a variant with so many symbols in the sequence."""
    kind = VARIANTS[name]
    written = sum(1 if piece == "|" else size for piece in kind.answer)
    return (5 if kind.command == REPLACE else 1) + size + 1 + written + 1


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int) -> Ids:
    return np.random.default_rng([seed, epoch]).permutation(TRAINING_ITEMS)
