"""Bits per byte and perplexity up to 4 times the training length, on any text (default: Python)."""

import hashlib
from functools import cached_property, partial
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
    Journal,
    Measurement,
    Metric,
    Preset,
    Task,
    TaskContext,
    TrainConfig,
    progress,
)
from pe_bench.tasks.perplexity.ngram_tables import MAX_TOKENS, NAMES, NgramTables
from pe_bench.tasks.perplexity.rows import (
    VIEWS,
    context_curve,
    make_items,
    row_of,
    summary_rows,
)
from pe_bench.tasks.perplexity.scored_windows import ScoredWindows
from pe_bench.tasks.perplexity.source import open_source
from pe_bench.tasks.perplexity.training_text import TrainingText
from pe_bench.tasks.perplexity.windows import Windows, find_windows, make_spans

EVAL_LENGTH_FACTORS = (0.25, 0.5, 1, 2, 4)


class Perplexity(Task):
    """Trains on windows of the concatenated train split, each with a BOS before it.

    Evaluation takes windows of the test split, each four times as long as those of training.

    | rows | tokens that count |
    |---|---|
    | `context` | the last `stride` of each window, given more and more of what comes before them |
    | `key-tokens` | those of them that a longer context than in training makes predictable |
    | `bits_per_byte`, `perplexity` of `test` | all of the first n of each window |
    | `tail_bits_per_byte`, `tail_perplexity` | the last `stride` of these |
    | `position` | of the windows up to an offset, from half of it on |

    The headline, `4x-context`, is the loss under the whole window, `1x-context` that of the same
    tokens under as much context as in training, and `context_gain` the difference. Text, initial
    weights, batches and targets are equal for all encodings, so what differs is what they make of
    context. The gain alone does not rank: a model that ignores its context gains and loses nothing,
    and would be above one that predicts far better at either length. `1x-window` and `4x-window`
    are `test` at two lengths: they compare encodings at either, but over lengths they mix length
    and content, as longer windows have other text.

    Key tokens follow LongPPL (Fang et al. 2024), with an evaluator that has no weights: see
    `key_tokens.py`. References are tables of 1, 2 and 3 tokens, counted in the training text.

    Standard errors and intervals are over documents, not over windows. Bits per byte compare across
    tokenizers, perplexities do not.

    | TAPE's and LongLoRA's evaluation | protocol strict | protocol paper |
    |---|---|---|
    | a window starts every 256 tokens | windows do not overlap | every `stride` tokens |
    | windows without a BOS | with one, as in training | as strict |
    | windows across documents | only in .bin files, which do not say where they are | as strict |
    | starts that only shorter windows have | the starts of the longest | as strict |
    | last window of a text left out | counted | as strict |
    | means of the means of batches | a ratio of sums | as strict |
    | half precision | float32 unless asked for | as strict |

    Published numbers (Llama 2 7B, lengths 1024 to 8192, pg19 and proofpile) are of fine-tuned
    pre-trained models; nothing here is trained like that.

    Args:
        corpus: what to train and score on. With --data it names what is there: DIR/NAME or DIR, a
            folder of text, of JSON lines, of copies of the hub's files, or .bin files of ids.
            Without --data pg19, proofpile and c4 are downloaded, not for preset quick. None: what
            --data has, else stdlib.
        windows: number of test windows, spread evenly over all; 0: all.
        stride: tokens of a tail; None: those of the shortest windows.
        train_files: number of files of a public corpus' train split, used one after the other.
    """

    version = 3
    headline = Headline("bits_per_byte", "4x-context")
    all_subsets = ("test",)
    metrics = {
        "context_gain": Metric("gain over 1x-context, bits per byte", higher_is_better=True),
        "effective_length": Metric("effective length", "tokens", higher_is_better=True),
    }
    views = VIEWS
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
            {"train_files": 35},  # of C4: 5.2 billion Llama tokens, none of them twice
        ),
    }

    def __init__(
        self,
        context: TaskContext,
        *,
        corpus: Literal["stdlib", "pg19", "proofpile", "code", "c4"] | None = None,
        windows: int = 0,
        stride: int | None = None,
        train_files: int = 1,
    ) -> None:
        super().__init__(context)
        self.lengths = sorted({max(1, int(f * self.length)) for f in EVAL_LENGTH_FACTORS})
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
        self.tokenizer, self.tokens = open_source(context, corpus, train_files)
        self.vocabulary = self.tokenizer
        self.data_label = f"{self.tokens.name}-{self.tokens.fingerprint[:8]}"
        self.fingerprint = f"{self.tokens.fingerprint}+{self.tokenizer.fingerprint}"
        self.training = TrainingText(
            self.tokens, self.tokenizer.bos, self.train, self.length, context.hold_out
        )

    def skip(self, encoding: Encoding) -> str | None:
        """Return why the task cannot be run, also where no test document is long enough."""
        return super().skip(encoding) or self._too_short()

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        return self.training.batch(seed, step)

    def held_out_batch(self, subset: str | None, step: int) -> Batch:
        return self.training.held_out_batch(step)

    def evaluate(self, model: Decoder, subset: str, seed: int, journal: Journal) -> Evaluation:
        too_short = self._too_short()
        if too_short:
            raise InputError(too_short)
        scored = self.scored_windows
        count = len(scored.windows)
        device = model.lm_head.weight.device

        def losses(tokens: Tensor, targets: Tensor) -> Tensor:
            return model.token_losses(tokens.to(device), targets.to(device))

        encoding = model.encoding
        consistent = encoding.prefix_consistent and not encoding.needs_final_length
        with progress(f"{self.data_label} · evaluate", count, unit="window") as bar:
            for first, stop in scored.slices():
                if str(stop - 1) not in journal.items:
                    nats = scored.nats(losses, first, stop, consistent=consistent)
                    journal.add({str(first + i): row for i, row in enumerate(nats.tolist())})
                bar.update(stop - first)
        nats = np.array([journal.items[str(i)] for i in range(count)])  # (N, spans)
        items = make_items(scored, nats)
        return Evaluation([row_of(cell) for cell in items], (self._definitions(),), items)

    def references(self) -> dict[str, list[Measurement]]:
        """Return the rows of tables of n-grams, counted in the training text."""
        tables = self._references.items()
        return {name: [*rows, *self.summarize(rows)] for name, rows in tables}

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        """Return what the table shows; only what is better than a trigram table is ranked."""
        if not measured:
            return []
        trigrams = context_curve(self._references[NAMES[-1]])
        threshold = trigrams[self.length].value
        return summary_rows(measured, self.length, self.max_eval_tokens, threshold)

    def provenance(self) -> dict[str, Any]:
        windows = self.test_windows
        places = np.concatenate([[self.max_eval_tokens, self.stride], windows.starts]).astype("<i8")
        return {
            "label": self.data_label,
            "corpus": self.tokens.name,
            "fingerprint": self.tokens.fingerprint,
            "tokenizer": self.tokenizer.name,
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
            "windows": len(windows),
            "documents": len(np.unique(windows.clusters)) if windows.text.bounded else None,
            # Which stretches of the text with that fingerprint.
            "windows_sha256": hashlib.sha256(places.tobytes()).hexdigest(),
        }

    @cached_property
    def test_windows(self) -> Windows:
        """Windows of the test documents."""
        step = self.max_eval_tokens if self.context.protocol == "strict" else self.stride
        return find_windows(self.tokens.test(), self.max_eval_tokens, step, self.windows)

    @cached_property
    def scored_windows(self) -> ScoredWindows:
        """The test windows with the tokens that count in each."""
        text = self.training.at_step(0)
        ids = text.read(0, min(self.training.border(text), MAX_TOKENS))
        return ScoredWindows(
            self.test_windows,
            make_spans(self.lengths, self.stride),
            self.tokenizer,
            NgramTables(ids, self.tokenizer.vocab_size),
            tail=self.stride,
            trained=self.length,
        )

    @cached_property
    def _references(self) -> dict[str, list[Measurement]]:
        """The rows of each table of n-grams, without a summary."""
        scored = self.scored_windows
        found = {}
        for order, name in enumerate(NAMES, start=1):
            losses = partial(scored.tables.token_losses, order=order)
            nats = [scored.nats(losses, *part, consistent=True) for part in scored.slices()]
            found[name] = [row_of(cell) for cell in make_items(scored, np.concatenate(nats))]
        return found

    def _too_short(self) -> str | None:
        if len(self.test_windows):
            return None
        return (
            f"no test document of {self.tokens.name} has {self.max_eval_tokens} tokens, four times "
            "the training length: use longer documents or a smaller --train.length"
        )

    def _definitions(self) -> str:
        windows = self.test_windows
        keys = self.scored_windows.keys
        documents = len(np.unique(windows.clusters))
        source = (
            f"{documents} documents"
            if windows.text.bounded
            else "a file that does not tell where documents begin, so they may cross documents"
        )
        return (
            f"{len(windows)} windows of {source}: the headline is the loss of the last "
            f"{self.stride} tokens of each after all others, {self.max_eval_tokens} in all; "
            f"{keys.sum()} of these {keys.size} are key tokens, which can be copied "
            f"from the window but not from its last {self.length} tokens"
        )
