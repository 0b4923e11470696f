"""Finding five digits hidden in a text up to 8 times as long as in training (exact match)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from pe_bench.api import (
    BASE,
    ID,
    LARGE,
    OOD,
    TINY,
    Batch,
    ByteTokenizer,
    Cell,
    Curve,
    Headline,
    InputError,
    LengthGeneralizationTask,
    Measurement,
    Preset,
    Scores,
    Sequences,
    Status,
    TaskContext,
    Tokenizer,
    TrainConfig,
    collate,
    folder_corpus,
    load_tokenizer,
    proportion,
    stdlib_corpus,
)
from pe_bench.tasks.passkey.prompts import (
    CHARACTERS_PER_TOKEN,
    FILLER,
    FORMATS,
    TEXTS,
    Prompts,
    nonsense_names,
)
from pe_bench.tasks.passkey.word_tokenizer import WordTokenizer

EVAL_LENGTH_FACTORS = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8)
DEPTHS = [tenth / 10 for tenth in range(11)]
EVAL_SEED = 20_250_301

INTERVAL, POINTS, TRIALS = 1000, 8, 20  # of the published script


class Passkey(LengthGeneralizationTask):
    """Prompts of an exact number of tokens that hide a number; the answer is the number.

    `passkey`: one key, in the wording of Mohtashami and Jaggi 2023. `multikey`: four keys, each
    with a name, of which one is asked for. `keyvalue`: no filler but a list of names and numbers.
    One model is trained on all three in equal parts, on prompts of every length up to
    `train.length`, the key anywhere; the loss is on the answer. Keys are drawn evenly from 10000 to
    99999. An item counts if the whole number is correct, written greedily.

    | | protocol strict | protocol paper (LongLoRA, Chen et al. 2024, which TAPE used) |
    |---|---|---|
    | subsets | all three | `passkey` |
    | lengths | tokens, up to 8 times the training length | 1000 to 8000, nominal, within the same |
    | filler | cut between tokens | cut by characters, 3.75 for a token |
    | depths | 0 to 1 in tenths of the filler or list | drawn from the trial's index |
    | keys | `samples` for each cell | 20 trials below 50000, which repeat across lengths |

    Means over cells: in and out of distribution, of each subset too; by length and by depth (of
    what is out of distribution). There is no gate where nothing measured is in distribution, as is
    usual in protocol paper. `prompt_tokens` says how long the nominal lengths are.

    Preset quick trains on `passkey` alone; `passkey:kinds=all` adds the others.

    Args:
        kinds: `passkey`, or `all` three.
        vocabulary: `words`, a token for each word and digit of these texts, which small models
            learn in minutes; or that of `--tokenizer`, of bytes a prompt has four times as many.
    """

    takes_data = True
    averages_each_subset = True
    headline = Headline("exact_match", OOD)
    axes = {"length": "tokens of the prompt", "second": "depth of the key"}
    protocols = ("strict", "paper")
    presets = {
        "quick": Preset(
            TrainConfig(
                steps=1200, batch_size=16, length=128, lr=3e-3, schedule="linear", beta2=0.95
            ),
            TINY.changed(init_std=0.05),
            {"kinds": "passkey", "vocabulary": "words", "samples": 10, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=5000, batch_size=64, length=512, lr=5e-4),
            BASE,
            {"vocabulary": "words", "samples": 20},
        ),
        "paper": Preset(
            TrainConfig(
                steps=10_000,
                batch_size=128,
                micro_batch=16,
                length=1024,
                lr=1e-4,
                schedule="linear",
                warmup=0.02,
            ),
            LARGE,
            {"samples": 20},
        ),
    }

    def __init__(
        self,
        context: TaskContext,
        *,
        kinds: Literal["passkey", "all"] = "all",
        vocabulary: Literal["words", "tokenizer"] = "tokenizer",
        **options: Any,
    ) -> None:
        super().__init__(context, **options)
        trained = self.length
        longest = int(EVAL_LENGTH_FACTORS[-1] * trained)
        # Where each name is a token of its own, no more than the longest list has entries.
        known = nonsense_names(longest // 9 if vocabulary == "words" else None)
        self.tokenizer = self._tokenizer(vocabulary, known)
        self.vocabulary = self.tokenizer
        self.strict = context.protocol == "strict"
        numbers = (10_000, 100_000) if self.strict else (1, 50_000)
        self.prompts = Prompts(self.tokenizer, longest, known, numbers)
        self.data_label = f"passkey-v1-{self.tokenizer.name}"
        self.fingerprint = f"passkey-v1+{self.tokenizer.fingerprint}"
        self.all_subsets = tuple(FORMATS) if self.strict and kinds == "all" else ("passkey",)
        self.shortest = {kind: self.prompts.min_lengths(kind, trained) for kind in self.all_subsets}
        needed = max(sizes[0] for sizes in self.shortest.values())
        if trained < needed:
            raise InputError(
                f"a prompt of {trained} tokens ({self.tokenizer.name}) has no room for its text: "
                f"give --train.length {needed} or more"
            )
        self.train_length = trained + self.prompts.max_number
        if self.strict:
            self._measure_grid(trained)
        else:
            self._measure_as_published(trained)
        for kind in self.subsets if self.strict else ():
            self.views += (Curve(f"{kind}-length", "exact_match"),)
        self._prompts = lru_cache(maxsize=2)(self._all_depths)

    def _measure_grid(self, trained: int) -> None:
        """Protocol strict: depths times lengths."""
        lengths = sorted({int(factor * trained) for factor in EVAL_LENGTH_FACTORS})
        self.lengths = {
            kind: [n for n in lengths if n >= self.shortest[kind][0]] for kind in self.all_subsets
        }
        self.depths = [f"{depth:.1f}" for depth in DEPTHS]
        self.max_train_axis = trained
        self.max_eval_tokens = lengths[-1] + self.prompts.max_number

    def _measure_as_published(self, trained: int) -> None:
        """Protocol paper: lengths that are called what the script takes them for."""
        per_token = len(f" {FILLER}") / len(self.tokenizer.encode(f" {FILLER}"))
        self.max_train_axis = round(trained * per_token / CHARACTERS_PER_TOKEN)
        points = min(POINTS, max(1, int(EVAL_LENGTH_FACTORS[-1] * self.max_train_axis) // INTERVAL))
        self.lengths = {"passkey": [INTERVAL * (i + 1) for i in range(points)]}
        self.depths = [""]
        self.max_eval_tokens = int(self._all_depths("passkey", INTERVAL * points).lengths.max())
        self.axes = {"length": "tokens of the prompt, nominal", "second": ""}

    def cells(self, subset: str) -> list[Cell]:
        cells = []
        for length in self.lengths[subset]:
            split = ID if length <= self.max_train_axis else OOD
            cells += [Cell(length, depth, split) for depth in self.depths]
        return cells

    def items(self, subset: str, cell: Cell) -> Sequences:
        prompts = self._prompts(subset, cell.length)
        each = len(prompts) // len(self.depths)
        return prompts.take(np.arange(each) + each * self.depths.index(cell.second_axis))

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        rng = np.random.default_rng([seed, step])
        samples = []
        for i, kind in enumerate(self.all_subsets):
            among = len(self.all_subsets)
            rows = (self.train.batch_size + (step + i) % among) // among
            min_lengths = self.shortest[kind]
            questions = 1 + int(rng.integers(len(min_lengths)))
            if rows:
                lengths = rng.integers(min_lengths[questions - 1], self.length + 1, rows)
                samples += self.prompts.samples(kind, rng, lengths, questions=questions)
        return collate(samples).batch()

    def measure(self, subset: str, cell: Cell, scores: Scores) -> list[Measurement]:
        rows = super().measure(subset, cell, scores)
        if not self.strict:
            items = self.items(subset, cell)
            tokens = float((items.lengths - items.scored.sum(1)).mean())
            row = Measurement(subset, "prompt_tokens", tokens, len(items), length=cell.length)
            rows.append(row)
        return rows

    def mean(
        self, name: str, rows: Sequence[Measurement], status: Status = "ranked"
    ) -> Measurement:
        correct = sum(row.value * row.n for row in rows) / 100
        mean = proportion(name, "exact_match", correct, sum(row.n for row in rows))
        return replace(mean, status=status)

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        rows = super().summarize(measured)
        cells = [row for row in measured if row.metric == "exact_match"]
        for kind in self.all_subsets:
            for length in self.lengths[kind]:
                some = [c for c in cells if c.subset == kind and c.length == length]
                if some:
                    rows.append(replace(self.mean(f"{kind}-length", some), length=length))
            far = [c for c in cells if c.subset == kind and (c.length or 0) > self.max_train_axis]
            for depth in filter(None, self.depths):
                some = [c for c in far if c.second_axis == depth]
                if some:
                    rows.append(replace(self.mean(f"{kind}-depth", some), second_axis=depth))
        return rows

    def provenance(self) -> dict[str, Any]:
        return {
            **super().provenance(),
            "tokenizer": self.tokenizer.name,
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
        }

    def _all_depths(self, subset: str, length: int) -> Sequences:
        """Return the evaluation items of one length, depth by depth."""
        if not self.strict:
            return collate([self.prompts.published(length, trial) for trial in range(TRIALS)])
        rng = np.random.default_rng([EVAL_SEED, self.all_subsets.index(subset), length])
        depths = np.repeat(DEPTHS, self.samples)
        return collate(self.prompts.samples(subset, rng, np.full(len(depths), length), depths))

    def _tokenizer(self, vocabulary: str, known: list[str]) -> Tokenizer:
        spec, data = self.context.tokenizer, self.context.data
        if data is not None and not (vocabulary == "tokenizer" and spec.startswith("bpe:")):
            raise InputError(
                "passkey makes its own prompts: leave out --data (only a tokenizer bpe:N with "
                "passkey:vocabulary=tokenizer is fitted to text)"
            )
        if vocabulary == "words":
            if spec != "bytes":
                raise InputError(
                    f"--tokenizer {spec} has no effect on a vocabulary of whole words: write "
                    "passkey:vocabulary=tokenizer"
                )
            return WordTokenizer([*TEXTS, *(f" {name}" for name in known)])
        if spec == "bytes":
            return ByteTokenizer()
        corpus = stdlib_corpus() if data is None else folder_corpus(data)
        return load_tokenizer(spec, corpus, self.context.cache)
