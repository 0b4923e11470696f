"""Adding two numbers digit by digit, up to twice as many digits as in training (exact match)."""

from collections.abc import Iterable

import numpy as np

from pe_bench.api import (
    END,
    FIRST,
    Batch,
    Decoder,
    Figure,
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
    decoding_tokens,
    exact_match_rows,
    join,
    mean,
    progress,
    stack,
)

ZERO = FIRST  # the digits are ZERO to ZERO + 9
PLUS, EQUALS = ZERO + 10, ZERO + 11
SYMBOLS = "0123456789+="
EVALUATION = 20_250_101  # seed of the items that everybody is measured on


class Addition(GeneratedTask):
    """a + b = c, each number from its last digit to its first: 12 + 9 = 21 is `21+9=12` and an end.

    Training draws the lengths of a and b evenly from 1 to `digits`, the numbers evenly from those
    of that length (without 0), anew for every step; the loss is on what follows `=`. Evaluation
    takes the same items for everybody: `samples` for each pair of lengths up to twice the longest
    trained. An item counts if all digits and the end are right.

    Means over cells: `inside` both lengths were trained; `one-longer`, `both-longer`; `beyond`, all
    that are not inside; `diagonal` equal lengths; `grid` all, of which `inside` is a quarter. Where
    `inside` is below `gate` per cent the model has not learned what was to be extrapolated, and
    the headline `beyond` is not ranked: its metric is called `unsolved_exact_match` then.

    Protocol strict: small cells hold every pair once. Protocol paper (Zhu et al. 2025): they are
    drawn with replacement as well. The published code of that paper did not do what the paper
    says (the rotation was computed and thrown away, the random positions were the plain ones, the
    grid was smaller): neither protocol repeats that.

    Args:
        digits: longest operand in training.
        samples: items for each pair of lengths.
        gate: per cent of `inside` from which on `beyond` counts.
    """

    name, made = "addition", "numbers"
    headline = Headline("exact_match", "beyond", higher_is_better=True)
    shown = dict.fromkeys(("inside", "one-longer", "both-longer", "grid"), "exact_match")
    curves = {"diagonal": "exact_match"}
    axes = {"length": "digits of the first number", "aux": "digits of the second number"}
    protocols = ("strict", "paper")
    presets = {
        "quick": Preset(
            # A narrow model learns with larger steps, from larger weights: 0.02 is for wide ones.
            TrainConfig(steps=2300, batch_size=64, length=19, lr=3e-3, warmup=0.05),
            ModelConfig(layers=3, heads=4, width=64, mlp_width=192, init_std=0.1),
            {"digits": 5, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=10_000, batch_size=512, length=64, lr=5e-4, warmup=0.05),
            ModelConfig(layers=6, heads=8, width=512, mlp_width=1536),
            {"digits": 20},
        ),
        "paper": Preset(
            TrainConfig(
                steps=20_000, batch_size=512, micro_batch=128, length=124, lr=1e-4, warmup=0.05
            ),
            ModelConfig(layers=16, heads=16, width=1024, mlp_width=2048),
            {"digits": 40},
        ),
    }

    def __init__(
        self,
        setup: Setup,
        start: Task | None,
        *,
        digits: int = 5,
        samples: int = 100,
        gate: float = 99.0,
    ) -> None:
        ranges = {"digits": (digits, 1, 200), "samples": (samples, 1, 100_000)}
        super().__init__(setup, start, gate=gate, **ranges)
        self.refuse_length("write addition:digits=N for longer numbers")
        self.digits, self.samples = digits, samples
        self.longest_operand = 2 * digits
        self.subsets = self.chosen(["grid"])
        self.vocab_size = FIRST + len(SYMBOLS)
        self.digit_ids = tuple(range(ZERO, ZERO + 10))
        self.data_label = self.fingerprint = "addition-v1"
        self.train_length, self.trained_to = _tokens(digits), digits
        self.longest = _tokens(self.longest_operand)
        self.figures = (
            Figure(
                "heatmap",
                "cells",
                "exact_match",
                "Exact match by the lengths of both numbers (dashed: trained lengths)",
                "exact match, %",
                trained=(digits, digits),
            ),
        )

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        random = np.random.default_rng([seed, step])
        sizes = random.integers(1, self.digits + 1, (2, self.setup.train.batch_size))
        return _write(*(_numbers(random, size) for size in sizes)).batch()

    def items(self, first: int, second: int) -> Sequences:
        """The evaluation items of one cell: operands of so many digits."""
        random = np.random.default_rng([EVALUATION, first, second])
        pairs = 81 * 10 ** (first + second - 2)
        if self.setup.protocol == "strict" and pairs <= self.samples:
            a, b = np.divmod(np.arange(81), 9)  # only the cell of single digits is that small
            rows = a[:, None] + 1, b[:, None] + 1
            return _write(*((digits, np.ones(81, dtype=np.int64)) for digits in rows))
        sizes = (np.full(self.samples, size) for size in (first, second))
        return _write(*(_numbers(random, size) for size in sizes))

    def evaluate(
        self, model: Decoder, subset: str, seed: int, journal: Journal
    ) -> list[Measurement]:
        lengths = range(1, self.longest_operand + 1)
        rows: list[Measurement] = []
        used = decoded = 0
        with progress("addition · evaluate", len(lengths), unit="row") as bar:
            for first in lengths:
                if str(first) not in journal.items:
                    cells = [self.items(first, second) for second in lengths]
                    found = answer(model, stack(cells))
                    parts = np.split(found.exact, np.cumsum([len(cell) for cell in cells])[:-1])
                    tokens = found.forward_tokens, sum(map(decoding_tokens, cells))
                    right = [[int(part.sum()), len(part)] for part in parts]
                    journal.add({str(first): {"right": right, "tokens": tokens}})
                item = journal.items[str(first)]
                used, decoded = used + item["tokens"][0], decoded + item["tokens"][1]
                for second, (right, n) in zip(lengths, item["right"], strict=True):
                    rows += exact_match_rows("cells", right, n, length=first, aux=str(second))
                bar.update(1)
        print(
            f"{used:,} tokens for the grid, 1/{decoded / used:.0f} of the {decoded:,} that "
            "decoding without a cache takes"
        )
        return rows

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        cells = {
            (row.length or 0, int(row.aux)): row for row in measured if row.metric == "exact_match"
        }
        groups: dict[str, list[Measurement]] = {
            "inside": [r for (i, j), r in cells.items() if max(i, j) <= self.digits],
            "one-longer": [
                r for (i, j), r in cells.items() if (i > self.digits) != (j > self.digits)
            ],
            "both-longer": [r for (i, j), r in cells.items() if min(i, j) > self.digits],
            "beyond": [r for (i, j), r in cells.items() if max(i, j) > self.digits],
            "grid": list(cells.values()),
        }
        if not cells:
            return []
        solved = self.solved(mean("inside", groups["inside"]))
        rows = [
            mean(name, group, solved=solved or name != "beyond") for name, group in groups.items()
        ]
        diagonal = [
            Measurement("diagonal", row.metric, row.value, row.n, row.stderr, i)
            for (i, j), row in cells.items()
            if i == j
        ]
        return [*rows, *diagonal]

    def evaluated(self) -> Iterable[Ids]:
        lengths = range(1, self.longest_operand + 1)
        return (self.items(first, second).ids for first in lengths for second in lengths)


def _tokens(digits: int) -> int:
    """Of two operands of so many digits, their sum, `+`, `=` and the end."""
    return 3 * digits + 4


def _numbers(random: np.random.Generator, sizes: Ids) -> tuple[Ids, Ids]:
    """Uniform numbers of so many digits, the last digit first: (N, longest), and the sizes."""
    digits = random.integers(0, 10, (len(sizes), int(sizes.max())))
    digits[np.arange(len(sizes)), sizes - 1] = random.integers(1, 10, len(sizes))
    return np.where(np.arange(digits.shape[1]) < sizes[:, None], digits, 0), sizes


def _write(first: tuple[Ids, Ids], second: tuple[Ids, Ids]) -> Sequences:
    """The equations of two columns of numbers."""
    (a, a_size), (b, b_size) = first, second
    c, c_size = _add(a, b)
    return join(
        len(a),
        Part(a + ZERO, a_size),
        Part(np.array([PLUS])),
        Part(b + ZERO, b_size),
        Part(np.array([EQUALS])),
        Part(c + ZERO, c_size, scored=True),
        Part(np.array([END]), scored=True),
    )


def _add(a: Ids, b: Ids) -> tuple[Ids, Ids]:
    """Sums of numbers given by their digits, and how many digits the sums have."""
    width = max(a.shape[1], b.shape[1]) + 1
    a, b = (np.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in (a, b))
    total = a + b
    for column in range(width - 1):
        total[:, column + 1] += total[:, column] // 10
        total[:, column] %= 10
    sizes = width - (total[:, ::-1] != 0).argmax(1)
    return total, sizes
