"""Finding five digits hidden in a text up to 8 times as long as in training (exact match)."""

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from pe_bench.api import (
    Batch,
    ByteTokenizer,
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
    Sequences,
    Setup,
    Task,
    Tokenizer,
    TrainConfig,
    answer,
    collate,
    exact_match_rows,
    folder_corpus,
    load_tokenizer,
    progress,
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

SHARES = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8)  # evaluated lengths, in training lengths
DEPTHS = [tenth / 10 for tenth in range(11)]
EVALUATION = 20_250_301  # seed of the items that everybody is measured on
TOKENS_PER_FORWARD = 16_384  # beyond the fused path, memory is this times the length

INTERVAL, POINTS, TRIALS = 1000, 8, 20  # of the published script


class Passkey(GeneratedTask):
    """Prompts of exactly so many tokens that hide a number; the answer is the number.

    `passkey`: one key, in the wording of Mohtashami and Jaggi 2023. `multikey`: four keys, each
    with a name, of which one is asked for. `keyvalue`: no filler but a list of names and numbers.
    One model is trained on all three in equal parts, on prompts of every length up to
    `train.length`, the key anywhere; the loss is on the answer. Keys are drawn evenly from 10000 to
    99999, anew for every step. An item counts if the whole number is right, written greedily.

    Protocol strict evaluates depths 0 to 1 in tenths (the share of the filler, or of the list,
    before what is asked for) times lengths up to 8 times the training length, `samples` keys for
    each, the same for everybody. Protocol paper (the script of LongLoRA, Chen et al. 2024, which
    TAPE used) has `passkey` alone: filler cut by characters, 20 trials for each length, numbers
    below 50000, depth and number drawn from the trial's index (so keys repeat across lengths). Its
    lengths are called 1000 to 8000, at 3.75 characters for a token; `prompt_tokens` says what they
    are. Those up to 8 times the training length are taken.

    Means over cells: `inside` up to the training length, `beyond` longer ones, of each subset too;
    by length and by depth (of what is beyond). Where the `inside` of a subset is below `gate` per
    cent, the model has not learned what was to be extrapolated and `beyond` is not ranked: its
    metric is called `unsolved_exact_match` then. There is no gate where nothing measured is inside,
    as is usual in protocol paper.

    Preset quick trains on `passkey` alone; `passkey:kinds=all` adds the others.

    Args:
        vocabulary: `words`, a token for each word and digit of these texts, which small models
            learn in minutes; or that of `--tokenizer`, of bytes a prompt has four times as many.
        samples: keys for each depth and length of protocol strict.
        gate: per cent of `inside` from which on `beyond` counts.
    """

    name, made = "passkey", "prompts"
    takes_data = True
    headline = Headline("exact_match", "beyond", higher_is_better=True)
    shown = dict.fromkeys(["inside", *(f"{kind}-beyond" for kind in FORMATS)], "exact_match")
    curves = {f"{kind}-length": "exact_match" for kind in FORMATS}
    axes = {"length": "tokens of the prompt", "aux": "depth of the key"}
    protocols = ("strict", "paper")
    presets = {
        "quick": Preset(
            TrainConfig(
                steps=1200, batch_size=16, length=128, lr=3e-3, schedule="linear", beta2=0.95
            ),
            ModelConfig(layers=3, heads=4, width=64, mlp_width=192, init_std=0.05),
            {"kinds": "passkey", "vocabulary": "words", "samples": 10, "gate": 95.0},
        ),
        "small": Preset(
            TrainConfig(steps=5000, batch_size=64, length=512, lr=5e-4, warmup=0.05),
            ModelConfig(layers=6, heads=8, width=512, mlp_width=1536),
            {"vocabulary": "words"},
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
            ModelConfig(layers=12, heads=12, width=768, mlp_width=3072),
        ),
    }

    def __init__(
        self,
        setup: Setup,
        start: Task | None,
        *,
        kinds: Literal["passkey", "all"] = "all",
        vocabulary: Literal["words", "tokenizer"] = "tokenizer",
        samples: int = 20,
        gate: float = 99.0,
    ) -> None:
        super().__init__(setup, start, gate=gate, samples=(samples, 1, 100_000))
        self.samples = samples
        trained, longest = setup.train.length, int(SHARES[-1] * setup.train.length)
        # Where each name is a token of its own, no more than the longest list has entries.
        known = nonsense_names(longest // 9 if vocabulary == "words" else None)
        self.tokenizer = self._tokenizer(vocabulary, known)
        self.vocab_size = self.tokenizer.vocab_size
        self.digit_ids = self.tokenizer.digit_ids
        self.separator_ids = self.tokenizer.separator_ids
        strict = setup.protocol == "strict"
        numbers = (10_000, 100_000) if strict else (1, 50_000)
        self.prompts = Prompts(self.tokenizer, longest, known, numbers)
        self.data_label = f"passkey-v1-{self.tokenizer.name}"
        self.fingerprint = f"passkey-v1+{self.tokenizer.fingerprint}"
        self.kinds = tuple(FORMATS) if strict and kinds == "all" else ("passkey",)
        self.subsets = self.chosen(self.kinds)
        self.shortest = {kind: self.prompts.min_lengths(kind, trained) for kind in self.kinds}
        needed = max(sizes[0] for sizes in self.shortest.values())
        if trained < needed:
            raise InputError(
                f"a prompt of {trained} tokens ({self.tokenizer.name}) has no room for its text: "
                f"give --train.length {needed} or more"
            )
        self.train_length = trained + self.prompts.max_number
        if strict:
            self._measure_grid(trained, longest + self.prompts.max_number)
        else:
            self._measure_as_published(trained)
        # What is not measured gets no column.
        each = [f"{kind}-beyond" for kind in self.kinds] if len(self.kinds) > 1 else []
        self.shown = dict.fromkeys(["inside", *each], "exact_match")
        self.curves = {f"{kind}-length": "exact_match" for kind in self.kinds}

    def _measure_grid(self, trained: int, longest: int) -> None:
        """Protocol strict: depths times lengths."""
        lengths = sorted({int(share * trained) for share in SHARES})
        self.lengths = {k: [n for n in lengths if n >= self.shortest[k][0]] for k in self.kinds}
        self.depths = [f"{depth:.1f}" for depth in DEPTHS]
        self.longest = longest
        title = "exact match by depth and length (dashed: trained lengths)"
        about = "exact match, %", (None, float(trained))
        self.figures = tuple(
            Figure("heatmap", kind, "exact_match", f"{kind}: {title}", *about)
            for kind in self.kinds
        )

    def _measure_as_published(self, trained: int) -> None:
        """Protocol paper: lengths that are called what the script takes them for."""
        per_token = len(f" {FILLER}") / len(self.tokenizer.encode(f" {FILLER}"))
        self.trained_to = round(trained * per_token / CHARACTERS_PER_TOKEN)
        points = min(POINTS, max(1, int(SHARES[-1] * self.trained_to) // INTERVAL))
        self.lengths = {"passkey": [INTERVAL * (i + 1) for i in range(points)]}
        self.depths = [""]
        self.longest = int(self.items("passkey", INTERVAL * points).lengths.max())
        self.axes = {"length": "tokens of the prompt, nominal", "aux": ""}

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        rng = np.random.default_rng([seed, step])
        samples = []
        for i, kind in enumerate(self.kinds):
            rows = (self.setup.train.batch_size + (step + i) % len(self.kinds)) // len(self.kinds)
            min_lengths = self.shortest[kind]
            questions = 1 + int(rng.integers(len(min_lengths)))
            if rows:
                least = min_lengths[questions - 1]
                lengths = rng.integers(least, self.setup.train.length + 1, rows)
                samples += self.prompts.samples(kind, rng, lengths, questions=questions)
        return collate(samples).batch()

    def items(self, subset: str, length: int) -> Sequences:
        """The evaluation items of one length, depth by depth."""
        if self.setup.protocol == "paper":
            return collate([self.prompts.published(length, trial) for trial in range(TRIALS)])
        rng = np.random.default_rng([EVALUATION, self.kinds.index(subset), length])
        depths = np.repeat(DEPTHS, self.samples)
        return collate(self.prompts.samples(subset, rng, np.full(len(depths), length), depths))

    def evaluate(
        self, model: Decoder, subset: str, seed: int, journal: Journal
    ) -> list[Measurement]:
        rows: list[Measurement] = []
        with progress(f"{subset} · evaluate", len(self.lengths[subset]), unit="length") as bar:
            for length in self.lengths[subset]:
                if str(length) not in journal.items:
                    items = self.items(subset, length)
                    exact = answer(model, items, budget=TOKENS_PER_FORWARD).exact
                    prompts = items.lengths - items.scored.sum(1)
                    found = exact.reshape(len(self.depths), -1).sum(1).tolist()
                    tokens_ = [len(items), float(prompts.mean())]
                    journal.add({str(length): {"right": found, "tokens": tokens_}})
                item = journal.items[str(length)]
                n, mean = item["tokens"]
                for depth, right in zip(self.depths, item["right"], strict=True):
                    each = n // len(self.depths)
                    rows += exact_match_rows(subset, right, each, length=length, aux=depth)
                if self.setup.protocol == "paper":
                    rows.append(Measurement(subset, "prompt_tokens", mean, n, length=length))
                bar.update(1)
        return rows

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        cells = [row for row in measured if row.metric == "exact_match"]
        kinds = [kind for kind in self.kinds if any(cell.subset == kind for cell in cells)]
        inside = [cell for cell in cells if (cell.length or 0) <= self.trained_to]
        beyond = [cell for cell in cells if (cell.length or 0) > self.trained_to]
        rows: list[Measurement] = []
        overall = "exact_match" if len(kinds) == len(self.kinds) else "partial_exact_match"
        for kind in kinds:
            near, far = ([c for c in some if c.subset == kind] for some in (inside, beyond))
            means = _mean(f"{kind}-inside", near)
            metric = "exact_match"
            if not self.solved(*means[:1]):
                metric = overall = "unsolved_exact_match"
            rows += [*means, *_mean(f"{kind}-beyond", far, metric)]
            for length in self.lengths[kind]:
                some = [cell for cell in near + far if cell.length == length]
                rows += _mean(f"{kind}-length", some, length=length)
            for depth in filter(None, self.depths):
                rows += _mean(f"{kind}-depth", [c for c in far if c.aux == depth], aux=depth)
        return [*rows, *_mean("inside", inside), *_mean("beyond", beyond, overall)[:1]]

    def provenance(self) -> dict[str, Any]:
        return {
            **super().provenance(),
            "tokenizer": self.tokenizer.name,
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
        }

    def evaluated(self) -> Iterable[Ids]:
        for kind, lengths in self.lengths.items():
            for length in lengths:
                yield self.items(kind, length).ids

    def _tokenizer(self, vocabulary: str, known: list[str]) -> Tokenizer:
        spec, data = self.setup.tokenizer, self.setup.data
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
        return load_tokenizer(spec, corpus, self.setup.cache)


def _mean(
    subset: str,
    cells: list[Measurement],
    metric: str = "exact_match",
    *,
    length: int | None = None,
    aux: str = "",
) -> list[Measurement]:
    """The mean over all items of the cells, and the ends of its Wilson interval."""
    if not cells:
        return []
    right = sum(cell.value * cell.n for cell in cells) / 100
    n = sum(cell.n for cell in cells)
    return exact_match_rows(subset, right, n, length=length, aux=aux, metric=metric)
