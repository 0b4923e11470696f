"""Bits per byte and perplexity up to 4 times the training length, on any text (default: Python)."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any, Literal

import numpy as np
from torch import Tensor

from pe_bench.api import (
    BASE,
    LARGE,
    TINY,
    Batch,
    Decoder,
    Encoding,
    Evaluation,
    Headline,
    InputError,
    Items,
    Journal,
    Measurement,
    Metric,
    Preset,
    Task,
    TaskContext,
    TrainConfig,
    View,
    parse_lengths,
    progress,
)
from pe_bench.tasks.perplexity.ngram_tables import MAX_TOKENS, NAMES, NgramTables
from pe_bench.tasks.perplexity.rows import (
    context_curve,
    in_training_lengths,
    make_items,
    make_views,
    mean_rows,
    of_corpus,
    row_of,
    rows_of_corpus,
    summary_rows,
)
from pe_bench.tasks.perplexity.scored_windows import Nats, ScoredWindows
from pe_bench.tasks.perplexity.source import check_tests, open_source, open_tests
from pe_bench.tasks.perplexity.tokenized_corpus import EvalText
from pe_bench.tasks.perplexity.training_text import TrainingText
from pe_bench.tasks.perplexity.windows import Windows, find_windows, make_spans

EVAL_LENGTH_FACTORS = (0.25, 0.5, 1, 2, 4)
TEST = "test"  # the subset for the test part of the training corpus


class Perplexity(Task):
    """Trains on windows of the concatenated train split, each with a BOS before it.

    Evaluation uses windows of the test split, each four times as long as a training window.

    | rows | tokens that count |
    |---|---|
    | `context` | the last `stride` of each window, given increasing parts of the window |
    | `key-tokens` | the `context` tokens that are predictable only with a longer context |
    | `bits_per_byte`, `perplexity` of `test` | all of the first n of each window |
    | `tail_bits_per_byte`, `tail_perplexity` | the last `stride` of these |
    | `position` | tokens from half of an offset up to it |

    The headline, `4x-context`, is the loss with the whole window as context. `1x-context` is the
    loss of the same tokens with the training length as context, and `context_gain` is the
    difference. Text, initial weights, batches and targets are equal for all encodings, so only
    their use of the context differs. The gain does not rank: a model that ignores its context has a
    gain of 0 and could rank above a model that predicts far better at both lengths. `1x-window` and
    `4x-window` are `test` at two lengths. They compare encodings at one length, but not lengths,
    because longer windows contain other text.

    Key tokens follow LongPPL (Fang et al. 2024), with an evaluator without weights: see
    `key_tokens.py`. Baselines are tables of 1, 2 and 3 tokens, counted in the training text.

    Standard errors and intervals are over documents, not over windows. Bits per byte are comparable
    across tokenizers, perplexities are not.

    With `test=pg19+code` each of these corpora is a subset. Its rows begin with its name
    (`pg19-context`) and have their own baselines. Rows without a name are means over corpora.

    | TAPE's and LongLoRA's evaluation | protocol strict | protocol paper |
    |---|---|---|
    | a window starts every 256 tokens | windows do not overlap | every `stride` tokens |
    | windows without a BOS | with one, as in training | as strict |
    | windows across documents | only in .bin files, which do not say where they are | as strict |
    | starts that only shorter windows have | the starts of the longest | as strict |
    | last window of a text left out | counted | as strict |
    | means of the means of batches | a ratio of sums | as strict |
    | half precision | float32 unless asked for | as strict |

    | the TAPE paper's training on C4 | preset paper |
    |---|---|
    | Llama 2's 32,000 tokens | `bpe:32000`, fitted to the first file; Llama's as `--tokenizer` |
    | 512 rows of 1024 tokens, 10,000 steps, AdamW, 1e-4 to 0, warm-up 2 % | the same |
    | beta2 0.999, eps 1e-8, decay 0.01, clip 1 | the same; no decay of norms |
    | RMSNorm, eps 1e-5, before each part; SwiGLU | the same |
    | mean loss of each micro-batch, then of these | mean over all targets of a step |
    | documents begin with BOS, no EOS | a row begins with BOS, documents end with EOS |
    | a random tenth of the files, shuffled in a buffer | 35 files, windows at random places |

    Published perplexities (Llama 2 7B, lengths 1024 to 8192, pg19 and proofpile) are for
    fine-tuned pretrained models; nothing here is trained in this way.

    Args:
        corpus: training corpus. With --data, a corpus in that folder: DIR/NAME or DIR, a folder of
            text, of JSON lines, of copies of the hub's files, or .bin files of ids. Without --data,
            pg19, proofpile and c4 are downloaded, except for preset quick. None: the corpus in
            --data, else python for preset quick, pg19 for small, c4 for mid and paper. `python` is
            shipped: 101 modules of CPython 3.11.7's library. `stdlib` is the library of the running
            Python, so its numbers depend on the version.
        test: corpora to measure on, joined by +: pg19+proofpile+code. Each is DIR/NAME of --data,
            or a download. None: the test part of the training corpus.
        windows: number of test windows of each corpus, spread evenly over all; 0: all.
        stride: number of tokens of a tail; None: the length of the shortest windows.
        lengths: lengths of windows and contexts in tokens, joined by +, such as 4096+8192+12288:
            the training length, and a longer one. The names of rows follow the longest, such as
            `1.5x-context`. None: a quarter to 4 times the training length.
        train_files: number of files of a public corpus' train split, used one after the other.
    """

    version = 3
    headline = Headline("bits_per_byte", "4x-context")
    all_subsets: tuple[str, ...] = (TEST,)
    metrics = {
        "context_gain": Metric("gain over 1x-context, bits per byte", higher_is_better=True),
        "effective_length": Metric("effective length", "tokens", higher_is_better=True),
    }
    views: tuple[View, ...] = make_views("4x")
    axes = {"length": "tokens from the start of the window", "second": ""}
    protocols = ("strict", "paper")
    check_options = {"windows": 8}
    presets = {
        "quick": Preset(
            TrainConfig(steps=1500, batch_size=16, length=128, lr=5e-3, beta2=0.95),
            TINY.changed(init_std=0.02),
            {"windows": 512},
        ),
        "small": Preset(
            TrainConfig(steps=1000, batch_size=64, length=1024, lr=6e-4, warmup=0.05),
            BASE.changed(layers=8),
            {"windows": 256},
            tokenizer="bpe:8192",
        ),
        "mid": Preset(
            TrainConfig(
                steps=8000,
                batch_size=256,
                micro_batch=64,
                length=1024,
                lr=6e-4,
                warmup=0.02,
                beta2=0.95,
            ),
            BASE,
            {"windows": 256, "train_files": 14},  # 2.1 billion tokens of C4, none of them twice
            tokenizer="bpe:16384",
        ),
        "paper": Preset(
            TrainConfig(
                steps=10_000,
                batch_size=512,
                micro_batch=16,
                length=1024,
                lr=1e-4,
                schedule="linear",
                warmup=0.02,
            ),
            LARGE,
            {"train_files": 35},  # 5.2 billion Llama tokens of C4, none of them twice
            tokenizer="bpe:32000",
        ),
    }

    def __init__(
        self,
        context: TaskContext,
        *,
        corpus: Literal["python", "stdlib", "pg19", "proofpile", "code", "c4"] | None = None,
        test: str | None = None,
        windows: int = 0,
        stride: int | None = None,
        train_files: int = 1,
        lengths: str | None = None,
    ) -> None:
        super().__init__(context)
        self.lengths = self._lengths(lengths)
        self.lengths_given = lengths is not None
        most = in_training_lengths(self.lengths[-1], self.length)
        self.headline = Headline("bits_per_byte", f"{most}-context")
        self.views = make_views(most)
        self.max_eval_tokens = self.lengths[-1]
        self.stride = self.lengths[0] if stride is None else stride
        if windows < 0:
            raise InputError(f"perplexity:windows must not be negative (0: all), not {windows}")
        if train_files < 1:
            raise InputError(f"perplexity:train_files must be at least 1, not {train_files}")
        if not 1 <= self.stride <= self.lengths[0]:
            raise InputError(
                f"perplexity:stride must be from 1 to {self.lengths[0]}, the shortest window, "
                f"not {stride}"
            )
        self.windows = windows
        if test is not None:
            check_tests(context, corpus, test)
        self.tokenizer, self.tokens = open_source(context, corpus, train_files)
        self.vocabulary = self.tokenizer
        self.texts = {TEST: EvalText(self.tokens.name, "", self.tokens.test)}
        content = self.tokens.fingerprint
        if test is not None:
            self.texts = open_tests(context, corpus, test, self.tokenizer, self.tokens)
            self.all_subsets = tuple(self.texts)
            self.views = make_views(most, self.all_subsets)
            parts = [content, *(text.fingerprint for text in self.texts.values())]
            content = hashlib.sha256("+".join(parts).encode()).hexdigest()
        self.by_corpus = test is not None
        self.data_label = f"{self.tokens.name}-{content[:8]}"
        self.fingerprint = f"{content}+{self.tokenizer.fingerprint}"
        self.windows_of = lru_cache(maxsize=None)(self._find_windows)
        self.scored_windows = lru_cache(maxsize=None)(self._score_windows)
        self._baselines_of = lru_cache(maxsize=None)(self._measure_tables)
        self.training = TrainingText(
            self.tokens, self.tokenizer.bos, self.train, self.length, context.hold_out
        )

    def _lengths(self, given: str | None) -> list[int]:
        """Return the lengths of windows and contexts, in ascending order."""
        if given is None:
            return sorted({max(1, int(f * self.length)) for f in EVAL_LENGTH_FACTORS})
        lengths = parse_lengths(given, "perplexity:lengths")
        if self.length not in lengths or lengths[-1] == self.length:
            raise InputError(
                f"perplexity:lengths must have the training length, {self.length}, and a longer "
                f"one, not {given}"
            )
        return lengths

    def skip(self, encoding: Encoding) -> str | None:
        """Return why the task cannot be run, including that no test document is long enough."""
        reasons = [super().skip(encoding), *map(self._too_short, self.subsets)]
        return next(filter(None, reasons), None)

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        return self.training.batch(seed, step)

    def held_out_batch(self, subset: str | None, step: int) -> Batch:
        return self.training.held_out_batch(step)

    def evaluation_sequences(self) -> Mapping[int, int]:
        passes = set()
        for span in make_spans(self.lengths, self.stride):
            start, stop = span.seen
            passes.add((start, stop if start else self.max_eval_tokens))
        sequences: Counter[int] = Counter()
        for subset in self.subsets:
            for start, stop in passes:
                sequences[stop - start] += len(self.windows_of(subset))
        return sequences

    def evaluate(self, model: Decoder, subset: str, seed: int, journal: Journal) -> Evaluation:
        too_short = self._too_short(subset)
        if too_short:
            raise InputError(too_short)
        scored = self.scored_windows(subset)
        count = len(scored.windows)
        device = model.lm_head.weight.device

        def losses(tokens: Tensor, targets: Tensor) -> Tensor:
            return model.token_losses(tokens.to(device), targets.to(device))

        encoding = model.encoding
        consistent = encoding.prefix_consistent and not encoding.needs_final_length
        title = f"{subset if self.by_corpus else self.data_label} · evaluate"
        with progress(title, count, unit="window") as bar:
            for first, stop in scored.slices():
                if str(stop - 1) not in journal.items:
                    nats = scored.nats(losses, first, stop, consistent=consistent)
                    journal.add({str(first + i): row for i, row in enumerate(nats.tolist())})
                bar.update(stop - first)
        nats = np.array([journal.items[str(i)] for i in range(count)])  # (N, spans)
        items = self._items(subset, nats)
        notes = [self._definitions(subset)]
        ends = [span.scored[1] - span.seen[0] for span in scored.spans]
        lost = np.array(ends)[~np.isfinite(nats).all(axis=0)]
        if len(lost):
            notes.append(
                f"{subset}: the model's logits are NaN or infinite in windows of {lost.min()} or "
                "more tokens, so these have no numbers"
            )
        return Evaluation([row_of(one) for one in items], tuple(notes), items)

    def baselines(self) -> dict[str, list[Measurement]]:
        """Return the rows of n-gram tables counted in the training text."""
        found = {}
        for name in NAMES:
            rows: list[Measurement] = []
            for subset in self.subsets:
                rows += self._baselines_of(subset)[name]
            found[name] = [*rows, *self.summarize(rows)]
        return found

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        """Return the rows in the results table; only models better than a trigram table rank."""
        if not measured:
            return []
        if not self.by_corpus:
            return self._summarize(TEST, measured)
        rows: list[Measurement] = []
        for name in self.subsets:
            own = rows_of_corpus(measured, name)
            if own:
                summary = self._summarize(name, own)
                rows += [replace(row, subset=f"{name}-{row.subset}") for row in summary]
        return [*rows, *mean_rows(rows, self.all_subsets)]

    def _summarize(self, subset: str, measured: list[Measurement]) -> list[Measurement]:
        """Return the summary of one text from its rows, which lack its name."""
        trigrams = self._baselines_of(subset)[NAMES[-1]]
        if self.by_corpus:
            trigrams = rows_of_corpus(trigrams, subset)
        threshold = context_curve(trigrams)[self.length].value
        return summary_rows(measured, self.length, self.max_eval_tokens, threshold)

    def provenance(self) -> dict[str, Any]:
        found = {
            "label": self.data_label,
            "corpus": self.tokens.name,
            "fingerprint": self.tokens.fingerprint,
            "tokenizer": self.tokenizer.name,
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
        }
        if not self.by_corpus:
            return {**found, **self._provenance(TEST)}
        tests = {}
        for name in self.subsets:
            tests[name] = {"fingerprint": self.texts[name].fingerprint, **self._provenance(name)}
        return {**found, "tests": tests}

    def _provenance(self, subset: str) -> dict[str, Any]:
        """Return the identity of the measured windows of a text."""
        windows = self.windows_of(subset)
        places = np.concatenate([[self.max_eval_tokens, self.stride], windows.starts]).astype("<i8")
        return {
            "windows": len(windows),
            "documents": len(np.unique(windows.clusters)) if windows.text.bounded else None,
            # The measured windows of the text with this fingerprint.
            "windows_sha256": hashlib.sha256(places.tobytes()).hexdigest(),
        }

    def _find_windows(self, subset: str) -> Windows:
        """Return the windows of a text's documents."""
        step = self.max_eval_tokens if self.context.protocol == "strict" else self.stride
        return find_windows(self.texts[subset].open(), self.max_eval_tokens, step, self.windows)

    @cached_property
    def tables(self) -> NgramTables:
        """N-gram tables counted in the training text."""
        text = self.training.at_step(0)
        ids = text.read(0, min(self.training.border(text), MAX_TOKENS))
        return NgramTables(ids, self.tokenizer.vocab_size)

    def _score_windows(self, subset: str) -> ScoredWindows:
        """Return the windows of a text with their scored tokens."""
        return ScoredWindows(
            self.windows_of(subset),
            make_spans(self.lengths, self.stride),
            self.tokenizer,
            self.tables,
            tail=self.stride,
            trained=self.length,
        )

    def _items(self, subset: str, nats: Nats) -> list[Items]:
        """Return the losses (N, spans) of a text's windows as items."""
        items = make_items(self.scored_windows(subset), nats)
        return [of_corpus(one, subset) for one in items] if self.by_corpus else items

    def _measure_tables(self, subset: str) -> dict[str, list[Measurement]]:
        """Return the rows of each n-gram table, without a summary."""
        scored = self.scored_windows(subset)
        found = {}
        for order, name in enumerate(NAMES, start=1):
            losses = partial(self.tables.token_losses, order=order)
            nats = [scored.nats(losses, *part, consistent=True) for part in scored.slices()]
            found[name] = [row_of(one) for one in self._items(subset, np.concatenate(nats))]
        return found

    def _too_short(self, subset: str) -> str | None:
        if len(self.windows_of(subset)):
            return None
        factor = self.max_eval_tokens / self.length
        smaller = "shorter perplexity:lengths" if self.lengths_given else "a smaller --train.length"
        return (
            f"no test document of {self.texts[subset].name} has {self.max_eval_tokens} tokens, "
            f"{factor:g} times the training length: use longer documents or {smaller}"
        )

    def _definitions(self, subset: str) -> str:
        windows = self.windows_of(subset)
        keys = self.scored_windows(subset).keys
        documents = len(np.unique(windows.clusters))
        source = (
            f"{documents} documents"
            if windows.text.bounded
            else "a file without document boundaries, so windows may cross documents"
        )
        name = f"{subset}: " if self.by_corpus else ""
        return (
            f"{name}{len(windows)} windows of {source}: the headline is the loss of the last "
            f"{self.stride} tokens of each after all others, {self.max_eval_tokens} in all; "
            f"{keys.sum()} of these {keys.size} are key tokens, which can be copied "
            f"from the window but not from its last {self.length} tokens"
        )
