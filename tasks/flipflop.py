"""One bit of memory among distractor bits: longer, sparser and denser rows than in training."""

from typing import Any

import numpy as np

from pe_bench.api import (
    BASE,
    FIRST,
    ID,
    OOD,
    SMALL,
    TINY,
    Batch,
    EvalPoint,
    Headline,
    InputError,
    LengthGeneralizationTask,
    Preset,
    Sequences,
    TaskContext,
    TrainConfig,
    Vocabulary,
)

WRITE, READ, SKIP = range(FIRST, FIRST + 3)
ZERO = FIRST + 3
ONE = FIRST + 4
IGNORED = {ID: 0.8, "sparse": 0.98, "dense": 0.1}  # fraction of instructions that are i
EVAL_SEED = 20_250_103


class Flipflop(LengthGeneralizationTask):
    """Flip-flop language modelling (Liu et al. 2023, arXiv 2306.00946): `w1i0i1r1w0r0`.

    A row consists of pairs of an instruction and a bit: w writes the bit, i means that the bit is
    to be ignored, and r reads: it is followed by the bit that was last written. A row begins with w
    and ends with r. In between, an instruction is i with probability 0.8 in training, and w or r
    with equal probability otherwise. Bits are uniform. Only the bit after an r can be predicted, so
    only this bit has a loss and is scored, given the correct tokens before it. `accuracy` is the
    percentage of correct reads, `exact_match` the percentage of rows without an error. (The paper
    reports the error of reads, 100 - accuracy.)

    Evaluation has `samples` rows for each of three fractions of i: 0.8, 0.98 (`sparse`) and 0.1
    (`dense`). The means with these names are at the training length. Longer rows, up to `times` the
    training length, are our addition: `longer` is the mean over longer rows with the trained
    fraction, `longer-sparse` and `longer-dense` with the other two. The headline is the mean over
    everything except `in-distribution`.

    | Liu et al. | preset paper |
    |---|---|
    | 1.6 million rows of 512 tokens | the same number, drawn independently |
    | optimizer settings | ours |

    Shortcuts:
        n-gram table: many reads follow their write, or another read of the same bit, within six
            tokens; in dense rows nearly all do. In `sparse` and `longer-sparse` few do, and the
            table is only slightly above chance.

    Args:
        pairs: instructions in a training row; half of its tokens.
        times: factor between the longest evaluated rows and the training rows, a power of two.
    """

    headline = Headline("accuracy", OOD)
    all_subsets = tuple(IGNORED)
    point_metrics = ("accuracy", "exact_match")
    autoregressive = False
    vocabulary = Vocabulary(ONE + 1, digit_ids=(ZERO, ONE))
    presets = {
        "quick": Preset(
            TrainConfig(steps=900, batch_size=64, lr=3e-3, schedule="linear", beta2=0.95),
            TINY,
            {"pairs": 32},
        ),
        "small": Preset(
            TrainConfig(steps=10_000, batch_size=64, lr=5e-4),
            SMALL,
            {"pairs": 256, "times": 4, "samples": 500},
        ),
        "mid": Preset(
            TrainConfig(steps=25_000, batch_size=64, lr=4e-4, warmup=0.02),
            BASE.changed(layers=4),
            {"pairs": 256, "times": 4, "samples": 500},
        ),
        "paper": Preset(
            TrainConfig(steps=50_000, batch_size=32, lr=3e-4, warmup=0.02),
            BASE.changed(mlp_width=1408),
            {"pairs": 256, "times": 4, "samples": 1000},
        ),
    }

    def __init__(
        self, context: TaskContext, *, pairs: int = 32, times: int = 8, **options: Any
    ) -> None:
        super().__init__(context, **options)
        self.check_range(pairs=(pairs, 2, 8192), times=(times, 2, 64))
        if times & (times - 1):
            raise InputError(f"{self.name}:times must be a power of two, not {times}")
        self.pairs = pairs
        self.times = times

    def eval_points(self, subset: str) -> list[EvalPoint]:
        trained = 2 * self.pairs
        first = EvalPoint(trained, split=ID)
        if subset != ID:
            first = EvalPoint(trained, split=OOD, groups=(subset,))
        points = [first]
        for doublings in range(1, self.times.bit_length()):
            groups = ("longer",) if subset == ID else (f"longer-{subset}",)
            points.append(EvalPoint(trained << doublings, "", OOD, groups))
        return points

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        pairs = point.length // 2
        rng = np.random.default_rng([EVAL_SEED, self.all_subsets.index(subset), pairs])
        return _texts(rng, self.samples, pairs, IGNORED[subset])

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        rng = np.random.default_rng([seed, step])
        return _texts(rng, self.train.batch_size, self.pairs, IGNORED[ID]).batch()


def _texts(rng: np.random.Generator, rows: int, pairs: int, ignored: float) -> Sequences:
    """Return rows of `pairs` pairs with a given fraction of i among the instructions."""
    drawn = rng.random((rows, pairs))
    instructions = np.full((rows, pairs), READ)
    instructions[drawn < (1 + ignored) / 2] = WRITE
    instructions[drawn < ignored] = SKIP
    instructions[:, 0] = WRITE
    instructions[:, -1] = READ
    bits = rng.integers(ZERO, ONE + 1, (rows, pairs))
    places = np.where(instructions == WRITE, np.arange(pairs), 0)
    last_write = np.maximum.accumulate(places, axis=1)  # (rows, pairs)
    reads = instructions == READ
    bits[reads] = np.take_along_axis(bits, last_write, axis=1)[reads]
    ids = np.stack([instructions, bits], axis=2)  # (rows, pairs, 2)
    scored = np.stack([np.zeros_like(reads), reads], axis=2)
    lengths = np.full(rows, 2 * pairs)
    return Sequences(ids.reshape(rows, -1), scored.reshape(rows, -1), lengths)
