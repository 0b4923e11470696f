"""A one-bit memory among bits to be ignored, also sparser, denser and longer than in training."""

from collections.abc import Iterable

import numpy as np

from pe_bench.api import (
    FIRST,
    Batch,
    Decoder,
    GeneratedTask,
    Headline,
    Ids,
    InputError,
    Journal,
    Measurement,
    ModelConfig,
    Preset,
    Sequences,
    Setup,
    Task,
    TrainConfig,
    answer,
    exact_match_rows,
    mean,
    progress,
)

WRITE, READ, SKIP = range(FIRST, FIRST + 3)
ZERO, ONE = FIRST + 3, FIRST + 4
SHARES = {"ignore-0.8": 0.8, "ignore-0.98": 0.98, "ignore-0.1": 0.1}  # the first is trained
NAMES = ("in-distribution", "sparse", "dense")  # of these, at the trained length
EVALUATION = 20_250_103  # seed of the texts that everybody is measured on


class FlipFlop(GeneratedTask):
    """Flip-flop language modelling (Liu et al. 2023, arXiv 2306.00946): `w1i0i1r1w0r0`.

    A text is pairs of an instruction and a bit: w writes the bit, i is to be ignored, after r comes
    the bit last written. It begins with w and ends with r. In between, an instruction is i with
    probability 0.8 in training, and w or r with equal probability else; bits are even. Only what
    follows an r can be known, so only that carries loss and counts. The model is given the right
    text all along. (The paper reports the error at reads, which is 100 - accuracy.)

    Evaluation takes the same texts for everybody, `samples` for each of three shares of i, 0.8,
    0.98 (sparse: what is wanted is far) and 0.1 (dense), and each length: as in training, and up to
    `times` as long, which is ours. `accuracy` is the per cent of reads that are right,
    `exact_match` that of texts in which all are.

    At the trained length: `in-distribution`, `sparse`, `dense`. `longer`: the mean over all that
    are longer with the trained share. `beyond`: the mean over shares and lengths but for
    `in-distribution`. Where that is below `gate` per cent, `beyond` is not ranked: its metric is
    called `unsolved_accuracy` then.

    Published: Golovneva et al. 2024 (arXiv 2405.18719) give errors of 6.8 and 21.7 for absolute,
    1.8 and 20.3 for RoPE, 0.0 and 4.9 for CoPE, in distribution and sparse; cited from memory.
    Preset paper has the 512 tokens and the 1.6 million texts of Liu et al., drawn anew; the
    optimizer settings are ours.

    Args:
        pairs: instructions of a training text, half its tokens.
        times: how much longer the longest texts of the evaluation are, a power of two.
        samples: texts for each share and length.
        gate: per cent of `in-distribution` from which on `beyond` counts.
    """

    name, made = "flipflop", "texts"
    headline = Headline("accuracy", "beyond", higher_is_better=True)
    shown = dict.fromkeys((*NAMES, "longer"), "accuracy")
    curves = dict.fromkeys(SHARES, "accuracy")
    axes = {"length": "tokens", "aux": ""}
    presets = {
        "quick": Preset(
            # Two narrow layers: rows of 64 tokens are long for two cores.
            TrainConfig(
                steps=900, batch_size=64, length=64, lr=3e-3, schedule="linear", beta2=0.95
            ),
            ModelConfig(layers=2, heads=4, width=64, mlp_width=192, init_std=0.1),
            {"pairs": 32},
        ),
        "small": Preset(
            TrainConfig(steps=10_000, batch_size=64, length=512, lr=5e-4, warmup=0.05),
            ModelConfig(layers=4, heads=8, width=256, mlp_width=768),
            {"pairs": 256, "times": 4, "samples": 500},
        ),
        "paper": Preset(
            TrainConfig(steps=50_000, batch_size=32, length=512, lr=3e-4, warmup=0.02),
            ModelConfig(layers=6, heads=8, width=512, mlp_width=1408),
            {"pairs": 256, "times": 4, "samples": 1000},
        ),
    }

    def __init__(
        self,
        setup: Setup,
        start: Task | None,
        *,
        pairs: int = 32,
        times: int = 8,
        samples: int = 100,
        gate: float = 99.0,
    ) -> None:
        ranges = {
            "pairs": (pairs, 2, 8192),
            "times": (times, 2, 64),
            "samples": (samples, 1, 100_000),
        }
        super().__init__(setup, start, gate=gate, **ranges)
        if times & (times - 1):
            raise InputError(f"flipflop:times must be a power of two, not {times}")
        self.refuse_length("write flipflop:pairs=N for texts of 2 N tokens")
        self.pairs, self.samples = pairs, samples
        self.sizes = [pairs << i for i in range(times.bit_length())]
        self.subsets = self.chosen(list(SHARES))
        self.vocab_size = ONE + 1
        self.digit_ids = (ZERO, ONE)
        self.data_label = self.fingerprint = "flipflop-v1"
        self.train_length = self.trained_to = 2 * pairs
        self.longest = 2 * self.sizes[-1]

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        random = np.random.default_rng([seed, step])
        return _write(random, self.setup.train.batch_size, self.pairs, 0.8).batch()

    def items(self, subset: str, pairs: int) -> Sequences:
        """The evaluation texts of one share of i and one number of pairs."""
        random = np.random.default_rng([EVALUATION, list(SHARES).index(subset), pairs])
        return _write(random, self.samples, pairs, SHARES[subset])

    def evaluate(
        self, model: Decoder, subset: str, seed: int, journal: Journal
    ) -> list[Measurement]:
        rows: list[Measurement] = []
        with progress(f"flipflop · {subset}", len(self.sizes), unit="length") as bar:
            for pairs in self.sizes:
                if str(pairs) not in journal.items:
                    items = self.items(subset, pairs)
                    found = answer(model, items, free=False)
                    reads = items.scored.sum(1)
                    right = (found.share * reads).round().astype(int)
                    journal.add({str(pairs): {"right": right.tolist(), "reads": reads.tolist()}})
                item = journal.items[str(pairs)]
                rows += _measure(
                    subset, 2 * pairs, np.array(item["right"]), np.array(item["reads"])
                )
                bar.update(1)
        return rows

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        accuracies = {
            (row.subset, row.length or 0): row for row in measured if row.metric == "accuracy"
        }
        trained, *longer = (2 * pairs for pairs in self.sizes)
        usual = next(iter(SHARES))
        groups = {
            name: [accuracies[share, trained]]
            for name, share in zip(NAMES, SHARES, strict=True)
            if (share, trained) in accuracies
        }
        if (usual, trained) in accuracies:
            groups["longer"] = [accuracies[usual, length] for length in longer]
        if len(groups) == len(self.shown):  # a mean over some of them would be another number
            groups["beyond"] = [r for key, r in accuracies.items() if key != (usual, trained)]
        solved = self.solved(*groups.get(NAMES[0], []))
        return [
            mean(name, rows, solved=solved or name != "beyond") for name, rows in groups.items()
        ]

    def evaluated(self) -> Iterable[Ids]:
        return (self.items(subset, pairs).ids for subset in SHARES for pairs in self.sizes)


def _write(random: np.random.Generator, rows: int, pairs: int, ignored: float) -> Sequences:
    """Texts of so many pairs in which so large a share of the instructions is i."""
    draws = random.random((rows, pairs))
    instructions = np.where(draws < ignored, SKIP, np.where(draws < (1 + ignored) / 2, WRITE, READ))
    instructions[:, 0], instructions[:, -1] = WRITE, READ
    reads = instructions == READ
    bits = random.integers(ZERO, ONE + 1, (rows, pairs))
    places = np.where(instructions == WRITE, np.arange(pairs), 0)
    written = np.take_along_axis(bits, np.maximum.accumulate(places, axis=1), axis=1)
    ids = np.stack([instructions, np.where(reads, written, bits)], axis=2)
    scored = np.stack([np.zeros_like(reads), reads], axis=2)
    lengths = np.full(rows, 2 * pairs)
    return Sequences(ids.reshape(rows, -1), scored.reshape(rows, -1), lengths)


def _measure(subset: str, length: int, right: Ids, reads: Ids) -> list[Measurement]:
    """Reads that are right, their standard error over texts, and texts that are."""
    n, share = int(reads.sum()), right.sum() / reads.sum()
    error = float(np.sqrt(np.square(right - share * reads).sum())) / n
    exact = int((right == reads).sum())
    return [
        Measurement(subset, "accuracy", 100 * float(share), n, 100 * error, length),
        *exact_match_rows(subset, exact, len(reads), length=length),
    ]
