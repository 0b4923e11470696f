"""Recall of many values by their keys, with more pairs and longer gaps than in training."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch

from pe_bench.api import (
    FIRST,
    IGNORE,
    Batch,
    Decoder,
    Figure,
    GeneratedTask,
    Headline,
    Ids,
    InputError,
    Journal,
    Measurement,
    ModelConfig,
    Preset,
    Setup,
    Task,
    TrainConfig,
    exact_match_rows,
    mean,
    progress,
)

POWER = 0.01  # of the gaps' distribution, the paper's
EVALUATION = 20_250_105  # seed of the items that everybody is measured on


class Rows(NamedTuple):
    """Rows of one length.

    Attributes:
        tokens: (N, length).
        places: (N, queries) of the queries, in no order.
        values: (N, queries) what is asked for there.
    """

    tokens: Ids
    places: Ids
    values: Ids


class MQAR(GeneratedTask):
    """Multi-query associative recall (Arora et al. 2023, arXiv 2312.04927): `a7 c9 .. c . a`.

    A row begins with pairs of a key and a value, all different. Then every key comes once more, at
    a random even place, and the model has to give its value there, which the row does not show; on
    nothing else is there a loss. (If it were shown, half of the answers could be had by leaving out
    what was given already, and models would learn that first.) Places are drawn without
    replacement, the g-th after the pairs with a weight of g^(0.01 - 1): mostly near, sometimes as
    far as there is room. All else is random keys and values, but no key of that row. Two things
    differ from the published generator: there a key may come again by chance, before its query too,
    and the earlier a pair, the sooner it tends to be asked for.

    Training mixes five kinds of row, a batch of one kind: T = `length` tokens with T/16, T/8 and
    T/4 pairs, T/2 tokens with T/32 and, five times as often, T/4 tokens with T/64, but never fewer
    than 2 pairs. Evaluation takes the same `samples` rows for everybody: each length from T/4 to
    8 T with each number of pairs that fits, from the smallest trained on, doubling. `accuracy` is
    the per cent of queries that are right, `exact_match` that of rows in which all are.

    Means over cells: `inside` is at most T long; `longer` is longer with no more than T/4 pairs,
    `more-pairs` has more of them, `beyond` both. Where `inside` is below `gate` per cent, `beyond`
    is not ranked: its metric is called `unsolved_accuracy` then. `gap`: T/8 pairs at the start of
    8 T tokens and a single query, that many tokens after the last pair: how far an encoding sees,
    apart from how much it can tell apart.

    No table of encodings is published for this task. Preset paper has the sizes of the published
    repository (vocabulary, mix, batch, width, as many steps as 32 epochs of 180,000 rows, here
    drawn anew) with the decoder of this suite; theirs has a convolution beside each attention and
    no MLP. The eight lengths with most pairs that it tests are cells of the grid here.

    Args:
        length: tokens of the longest training rows, a power of two.
        vocabulary: keys and values together, half each.
        samples: rows for each length and number of pairs.
        gate: per cent of `inside` from which on `beyond` counts.
    """

    name, made = "mqar", "rows"
    headline = Headline("accuracy", "beyond", higher_is_better=True)
    shown = dict.fromkeys(("inside", "longer", "more-pairs"), "accuracy")
    curves = {"gap": "exact_match"}
    axes = {"length": "tokens (gap: between pairs and query)", "aux": "pairs"}
    presets = {
        "quick": Preset(
            # Two layers are what recall takes; narrow ones learn it within two minutes.
            TrainConfig(steps=1200, batch_size=64, length=32, lr=3e-3, warmup=0.05),
            ModelConfig(layers=2, heads=4, width=64, mlp_width=192, init_std=0.05),
            {"length": 32, "vocabulary": 128, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=10_000, batch_size=256, length=256, lr=1e-3, warmup=0.05),
            ModelConfig(layers=3, heads=4, width=256, mlp_width=768),
            {"length": 256, "vocabulary": 8192},
        ),
        "paper": Preset(
            TrainConfig(steps=22_500, batch_size=256, length=256, lr=1e-3, warmup=0.1),
            ModelConfig(layers=2, heads=1, width=128, mlp_width=384),
            {"length": 256, "vocabulary": 8192, "samples": 1000},
        ),
    }

    def __init__(
        self,
        setup: Setup,
        start: Task | None,
        *,
        length: int = 32,
        vocabulary: int = 128,
        samples: int = 100,
        gate: float = 99.0,
    ) -> None:
        super().__init__(setup, start, gate=gate, samples=(samples, 1, 100_000))
        if length & (length - 1) or not 32 <= length <= 4096:
            raise InputError(f"mqar:length must be a power of two from 32 to 4096, not {length}")
        if not 4 * length <= vocabulary <= 2**20 or vocabulary % 2:
            raise InputError(
                f"mqar:vocabulary must be even, from {4 * length} (so that the longest rows have "
                f"different keys) to {2**20}, not {vocabulary}"
            )
        self.refuse_length("write mqar:length=N for longer rows")
        self.length, self.symbols = length, vocabulary // 2
        self.samples = samples
        kinds = [(4, 64)] * 5 + [(2, 32), (1, 16), (1, 8), (1, 4)]
        self.mix = [(length // part, max(2, length // share)) for part, share in kinds]
        self.lengths = [length * 2**i // 4 for i in range(6)]
        self.subsets = self.chosen(["grid", "gap"])
        self.vocab_size = FIRST + vocabulary
        self.data_label = self.fingerprint = "mqar-v1"
        self.train_length = self.trained_to = length
        self.longest = 8 * length
        self.figures = (
            Figure(
                "heatmap",
                "grid",
                "accuracy",
                "Values recalled, by length and number of pairs (dashed: trained)",
                "accuracy, %",
                trained=(length // 4, length),
            ),
        )

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        random = np.random.default_rng([seed, step])
        length, pairs = self.mix[random.integers(len(self.mix))]
        tokens, places, values = self._write(random, self.setup.train.batch_size, length, pairs)
        targets = np.full(tokens.shape, IGNORE)
        np.put_along_axis(targets, places, values, axis=1)
        return Batch(torch.from_numpy(tokens), torch.from_numpy(targets))

    def items(self, length: int, pairs: int, gap: int | None = None) -> Rows:
        """The evaluation rows of one cell.

        Args:
            length: tokens.
            pairs: keys with their values.
            gap: tokens between the pairs and the only query; None: as in training.
        """
        random = np.random.default_rng([EVALUATION, length, pairs, gap or 0])
        return self._write(random, self.samples, length, pairs, gap)

    def cells(self, subset: str) -> list[tuple[int, int, int | None]]:
        """Length, pairs and gap of all that is measured."""
        start = max(2, self.length // 64)
        if subset == "grid":
            return [
                (length, start << i, None)
                for length in self.lengths
                for i in range((length // (4 * start)).bit_length())
            ]
        pairs, room = self.length // 8, self.longest - self.length // 4
        return [(self.longest, pairs, 2**i) for i in range(1, 20) if 2**i <= room - 2]

    def evaluate(
        self, model: Decoder, subset: str, seed: int, journal: Journal
    ) -> list[Measurement]:
        rows: list[Measurement] = []
        cells = self.cells(subset)
        with progress(f"mqar · {subset}", len(cells), unit="cell") as bar:
            for length, pairs, gap in cells:
                key = f"{length} {pairs} {gap}"
                if key not in journal.items:
                    journal.add({key: _right(model, self.items(length, pairs, gap))})
                right = np.array(journal.items[key])
                if gap is not None:
                    rows += exact_match_rows("gap", int(right.sum()), len(right), length=gap)
                else:
                    rows += _measure(right, pairs, length)
                bar.update(1)
        return rows

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        cells = {(r.length or 0, int(r.aux)): r for r in measured if r.metric == "accuracy"}
        most = self.length // 4
        groups = {
            "inside": [r for (length, _), r in cells.items() if length <= self.length],
            "longer": [r for (length, n), r in cells.items() if length > self.length and n <= most],
            "more-pairs": [r for (_, n), r in cells.items() if n > most],
            "beyond": [r for (length, _), r in cells.items() if length > self.length],
        }
        if not cells:
            return []
        solved = self.solved(mean("inside", groups["inside"]))
        return [
            mean(name, group, solved=solved or name != "beyond") for name, group in groups.items()
        ]

    def evaluated(self) -> Iterable[Ids]:
        cells = (*self.cells("grid"), *self.cells("gap"))
        return (ids for cell in cells for ids in self.items(*cell))

    def _write(
        self,
        random: np.random.Generator,
        rows: int,
        length: int,
        pairs: int,
        gap: int | None = None,
    ) -> Rows:
        """Rows of so many tokens with so many pairs; all keys are asked for, or one at a gap."""
        keys = _distinct(random, rows, pairs, self.symbols) + FIRST
        values = _distinct(random, rows, pairs, self.symbols) + FIRST + self.symbols
        row = np.arange(rows)[:, None]
        if gap is None:
            asked = random.permuted(np.tile(np.arange(pairs), (rows, 1)), axis=1)
            places = 2 * (pairs + _places(random, rows, pairs, length // 2 - pairs))
        else:
            asked = random.integers(0, pairs, (rows, 1))
            places = np.full((rows, 1), 2 * pairs + gap)
        tokens = random.integers(FIRST, self.vocab_size, (rows, length))
        taken = np.zeros((rows, self.vocab_size), dtype=np.bool_)
        taken[row, keys] = True
        while (wrong := taken[row, tokens]).any():
            tokens[wrong] = random.integers(FIRST, self.vocab_size, int(wrong.sum()))
        tokens[:, : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
        tokens[row, places] = keys[row, asked]
        return Rows(tokens, places, values[row, asked])


def _right(model: Decoder, rows: Rows, budget: int = 16_384) -> list[int]:
    """How many queries of each row get the likeliest token right, `budget` tokens at a time."""
    device = model.lm_head.weight.device
    found: list[int] = []
    size = max(1, budget // rows.tokens.shape[1])
    for start in range(0, len(rows.tokens), size):
        tokens, places, values = (
            torch.from_numpy(x[start : start + size]).to(device) for x in rows
        )
        hidden = model.hidden(tokens)[torch.arange(len(tokens), device=device)[:, None], places]
        found += (model.lm_head(hidden).argmax(-1) == values).sum(1).tolist()
    return found


def _distinct(random: np.random.Generator, rows: int, count: int, below: int) -> Ids:
    """Ordered draws without replacement, all equally likely: (rows, count).

    What has come earlier in its row is drawn again: no symbol is treated unlike another, so no
    outcome is. Far cheaper than a permutation of all symbols where few of many are drawn.
    """
    if 2 * count > below:
        return random.permuted(np.tile(np.arange(below), (rows, 1)), axis=1)[:, :count]
    found = random.integers(0, below, (rows, count))
    while True:
        order = found.argsort(axis=1, kind="stable")
        ordered = np.take_along_axis(found, order, axis=1)
        again = np.zeros(found.shape, dtype=np.bool_)
        np.put_along_axis(again, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
        if not again.any():
            return found
        found[again] = random.integers(0, below, int(again.sum()))


def _places(random: np.random.Generator, rows: int, count: int, room: int) -> Ids:
    """Draws from 0 to room - 1 without replacement, weighted by a power law: (rows, count).

    The smallest of exponential waiting times with these rates, in order, are such draws.
    """
    rates = np.arange(1.0, room + 1) ** (POWER - 1)
    return (random.exponential(size=(rows, room)) / rates).argsort(axis=1)[:, :count]


def _measure(right: Ids, pairs: int, length: int) -> list[Measurement]:
    """Queries that are right, their standard error over rows, and rows in which all are."""
    shares = 100 * right / pairs
    error = float(shares.std()) / len(shares) ** 0.5
    value = float(shares.mean())
    return [
        Measurement("grid", "accuracy", value, right.size * pairs, error, length, str(pairs)),
        *exact_match_rows(
            "grid", int((right == pairs).sum()), len(right), length=length, aux=str(pairs)
        ),
    ]
