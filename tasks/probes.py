"""Addressing by index, after and before a marker, in two halves; to 8 times the trained length."""

from collections.abc import Iterable

import numpy as np

from pe_bench.api import (
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

START, ASK, MARK = FIRST, FIRST + 1, FIRST + 2
SYMBOL = FIRST + 3  # the first of `SYMBOLS`; numbers come after them
SYMBOLS = 16
REACH = 4  # farthest that a marker is asked about, and the shortest list
PROBES = ("index", "after", "before", "halves")
QUICK = PROBES[:2]  # the others are seldom learned in minutes
EVALUATION = 20_250_106  # seed of the items that everybody is measured on


class Probes(GeneratedTask):
    """Which symbol of a list stands at a place, and four ways of saying which place.

    `index`: the k-th of the list, `^abcd:3` gives c. `after`, `before`: the k-th after or before a
    marker, k up to 4, `^ab*cd:2` gives d or a. `halves`: the one of the first half that stands
    where the second half has the marker, `^abcd:xy*z` gives c; all else in the second half is drawn
    anew, so that no content tells. Each has a model of its own, trained on lists of 4 to `longest`
    symbols (of 16), all lengths, places and symbols evenly. These are ours: the first tells
    absolute addressing, the next two relative to content, the last the same offset from two starts.

    Evaluation takes the same `samples` items for everybody, for each length up to 8 times
    `longest`. Numbers are tokens of their own, so longer lists are asked for no k above `longest`,
    which nobody would know; places relative to the marker are drawn from the whole list. An item
    counts if the symbol is right; guessing is right in one of 16.

    `index-inside` and so on: the mean over lengths that were trained; `index-beyond` over longer
    ones. Where the former is below `gate` per cent, the latter is not ranked: its metric is called
    `unsolved_exact_match` then. `beyond`: the mean over those that were run, ranked where all
    are solved. Preset quick runs `index` and `after`; for the others name --subsets.

    Args:
        longest: symbols of the longest list in training, half of a row for `halves`.
        samples: items for each length.
        gate: per cent inside from which on beyond counts, for each probe.
    """

    name, made = "probes", "lists"
    headline = Headline("exact_match", "beyond", higher_is_better=True)
    shown = {
        f"{probe}-{where}": "exact_match" for probe in PROBES for where in ("inside", "beyond")
    }
    curves = dict.fromkeys(PROBES, "exact_match")
    axes = {"length": "symbols of the list", "aux": ""}
    trains_each_subset = True
    presets = {
        "quick": Preset(
            # A phase for each probe: narrow layers, so that two take less than two minutes.
            TrainConfig(
                steps=900, batch_size=64, length=36, lr=3e-3, schedule="linear", beta2=0.95
            ),
            ModelConfig(layers=3, heads=4, width=64, mlp_width=192, init_std=0.05),
            {"longest": 16, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=10_000, batch_size=128, length=132, lr=1e-3, warmup=0.05),
            ModelConfig(layers=4, heads=4, width=128, mlp_width=384),
            {"longest": 64, "samples": 1000},
        ),
        "paper": Preset(
            TrainConfig(steps=20_000, batch_size=256, length=132, lr=5e-4, warmup=0.05),
            ModelConfig(layers=6, heads=8, width=256, mlp_width=768),
            {"longest": 64, "samples": 1000},
        ),
    }

    def __init__(
        self,
        setup: Setup,
        start: Task | None,
        *,
        longest: int = 16,
        samples: int = 200,
        gate: float = 99.0,
    ) -> None:
        ranges = {"longest": (longest, 4 * REACH, 4096), "samples": (samples, 1, 100_000)}
        super().__init__(setup, start, gate=gate, **ranges)
        self.refuse_length("write probes:longest=N for longer lists")
        self.trained, self.samples = longest, samples
        self.sizes = [longest * share // 4 for share in (1, 2, 4, 6, 8, 16, 32)]
        self.subsets = self.chosen(PROBES, QUICK)
        # What has not been run shall not be a column of dashes.
        parts = [f"{probe}-{where}" for probe in self.subsets for where in ("inside", "beyond")]
        self.shown = dict.fromkeys(parts, "exact_match")
        self.vocab_size = SYMBOL + SYMBOLS + longest
        self.separator_ids = (START, ASK)
        self.data_label = "probes-v1"
        self.fingerprint = "+".join((self.data_label, *self.subsets))  # they make up the mean
        self.train_length, self.trained_to = _tokens(longest), longest
        self.longest = _tokens(self.sizes[-1])

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        assert subset is not None
        random = np.random.default_rng([seed, step])
        sizes = random.integers(REACH, self.trained + 1, self.setup.train.batch_size)
        return self._write(random, subset, sizes).batch()

    def items(self, probe: str, size: int) -> Sequences:
        """The evaluation items of a probe on lists of so many symbols."""
        random = np.random.default_rng([EVALUATION, PROBES.index(probe), size])
        return self._write(random, probe, np.full(self.samples, size))

    def evaluate(
        self, model: Decoder, subset: str, seed: int, journal: Journal
    ) -> list[Measurement]:
        rows: list[Measurement] = []
        with progress(f"probes · {subset}", len(self.sizes), unit="length") as bar:
            for size in self.sizes:
                if str(size) not in journal.items:
                    found = answer(model, self.items(subset, size), free=False)
                    journal.add({str(size): int(found.exact.sum())})
                rows += exact_match_rows(
                    subset, journal.items[str(size)], self.samples, length=size
                )
                bar.update(1)
        return rows

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        found = [row for row in measured if row.metric == "exact_match"]
        rows: list[Measurement] = []
        beyond: list[Measurement] = []
        longer: list[Measurement] = []
        for probe in self.subsets:
            own = [(row.length or 0, row) for row in found if row.subset == probe]
            if not own:
                continue
            inside = [row for size, row in own if size <= self.trained]
            outside = [row for size, row in own if size > self.trained]
            rows.append(mean(f"{probe}-inside", inside))
            beyond.append(mean(f"{probe}-beyond", outside, solved=self.solved(rows[-1])))
            longer += outside
        if len(beyond) == len(self.subsets):  # a mean over some of them would be another number
            beyond.append(mean("beyond", longer, solved=self.solved(*rows)))
        return [*rows, *beyond]

    def evaluated(self) -> Iterable[Ids]:
        return (self.items(probe, size).ids for probe in PROBES for size in self.sizes)

    def _write(self, random: np.random.Generator, probe: str, sizes: Ids) -> Sequences:
        """Questions about lists of these lengths."""
        rows, widest = len(sizes), int(sizes.max())
        row = np.arange(rows)
        listed = random.integers(SYMBOL, SYMBOL + SYMBOLS, (rows, widest))
        ask = Part(np.array([ASK]))
        if probe == "halves":
            place = random.integers(0, sizes)
            second = random.integers(SYMBOL, SYMBOL + SYMBOLS, (rows, widest))
            second[row, place] = MARK
            parts = [Part(listed, sizes), ask, Part(second, sizes), ask]
        elif probe == "index":
            place = random.integers(0, np.minimum(sizes, self.trained))
            parts = [Part(listed, sizes), ask, Part(SYMBOL + SYMBOLS + place[:, None])]
        else:
            number = random.integers(0, REACH, rows)  # one less than k
            first = random.integers(0, sizes - number)
            last = first + number
            marker, place = (first, last) if probe == "after" else (last + 1, first)
            parts = [
                Part(_insert(listed, marker), sizes + 1),
                ask,
                Part(SYMBOL + SYMBOLS + number[:, None]),
            ]
        answers = Part(listed[row, place][:, None], scored=True)
        return join(rows, Part(np.array([START])), *parts, answers)


def _insert(listed: Ids, places: Ids) -> Ids:
    """The rows, each with the marker before one of its places."""
    columns = np.arange(listed.shape[1] + 1)
    source = columns - (columns > places[:, None])
    moved = np.take_along_axis(listed, source.clip(max=listed.shape[1] - 1), axis=1)
    return np.where(columns == places[:, None], MARK, moved)


def _tokens(symbols: int) -> int:
    """Of two halves of so many symbols, the start, two questions and the answer."""
    return 2 * symbols + 4
