"""Bits per byte and perplexity up to 4 times the training length, on any text (default: Python)."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pe_bench.api import (
    BASE,
    HELD_OUT_SEED,
    LARGE,
    TINY,
    Batch,
    Column,
    Corpus,
    Curve,
    DataError,
    Decoder,
    Encoding,
    Evaluation,
    Headline,
    InputError,
    Items,
    Journal,
    Measurement,
    Metric,
    Place,
    Preset,
    Status,
    Task,
    TaskContext,
    TokenIds,
    Tokenizer,
    TrainConfig,
    folder_corpus,
    load_tokenizer,
    progress,
    ratio,
    stdlib_corpus,
)
from pe_bench.tasks.perplexity.hub_corpora import copied_corpus, public_corpus
from pe_bench.tasks.perplexity.key_tokens import Mask, MatchModel, find_keys
from pe_bench.tasks.perplexity.ngram_tables import MAX_TOKENS, NAMES, NgramTables
from pe_bench.tasks.perplexity.tokenized_corpus import (
    Places,
    Tokens,
    TokenText,
    corpus_tokens,
    file_tokens,
    is_token_text,
)
from pe_bench.tasks.perplexity.windows import (
    Windows,
    find_windows,
    make_spans,
)

EVAL_LENGTH_FACTORS = (0.25, 0.5, 1, 2, 4)
TOKENS_PER_FORWARD = 16_384
CALIBRATION_WINDOWS = 256  # of the training text, to see how often matches are right
RESAMPLES = 1000
HELD_OUT = 0.05  # of the training tokens, where learning rates are chosen
KEPT = 0.85  # of the score at the trained length, up to the effective length
CONTEXT_AXIS = "context, tokens (those that count among them)"

Losses = Callable[[Tensor, Tensor], Tensor]  # tokens and targets (B, T) -> nats (B, T)
Nats = npt.NDArray[np.float64]


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

    One forward pass of a window gives `test` and `position`: the loss at an offset does not depend
    on how long the window is. Where an encoding is not prefix consistent, each length has its own
    pass. Sums are float64. Standard errors and intervals are over documents, not over windows. Bits
    per byte compare across tokenizers, perplexities do not.

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
    views = (
        Column("1x-context", "bits_per_byte"),
        Column("4x-context", "context_gain"),
        Column("4x-context", "effective_length", "context"),
        Column("4x-key-tokens", "bits_per_byte"),
        Column("1x-window", "bits_per_byte"),
        Column("4x-window", "bits_per_byte"),
        Curve("context", "bits_per_byte", "the same tokens under more context", CONTEXT_AXIS),
        Curve("key-tokens", "bits_per_byte", "the key tokens among them", CONTEXT_AXIS),
        Curve(
            "test",
            "bits_per_byte",
            "whole windows: mixes length and content",
            x="tokens of the window",
        ),
        Curve("position", "bits_per_byte", "by position in the longest windows"),
    )
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
        self.tokenizer, self.tokens = self._open(corpus, train_files)
        self.vocabulary = self.tokenizer
        self.data_label = f"{self.tokens.name}-{self.tokens.fingerprint[:8]}"
        self.fingerprint = f"{self.tokens.fingerprint}+{self.tokenizer.fingerprint}"
        self.spans = make_spans(self.lengths, self.stride)

    def skip(self, encoding: Encoding) -> str | None:
        """Also where no test document is long enough: better said before training than after."""
        return super().skip(encoding) or self._too_short()

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        text = self._train_text(step)
        return self._draw(text, 0, self._border(text), [seed, step])

    def held_out_batch(self, subset: str | None, step: int) -> Batch:
        """Return windows of the last training documents, which `batch` leaves out."""
        text = self._train_text(0)
        return self._draw(text, self._border(text), len(text.ids), [HELD_OUT_SEED, step])

    def evaluate(self, model: Decoder, subset: str, seed: int, journal: Journal) -> Evaluation:
        windows = self._test_windows
        if not len(windows):
            raise InputError(str(self._too_short()))
        device = model.lm_head.weight.device

        def losses(tokens: Tensor, targets: Tensor) -> Tensor:
            return model.token_losses(tokens.to(device), targets.to(device))

        encoding = model.encoding
        consistent = encoding.prefix_consistent and not encoding.needs_final_length
        with progress(f"{self.data_label} · evaluate", len(windows), unit="window") as bar:
            for first, stop in self._slices():
                if str(stop - 1) not in journal.items:
                    nats = self._nats(losses, first, stop, consistent=consistent)
                    journal.add({str(first + i): row for i, row in enumerate(nats.tolist())})
                bar.update(stop - first)
        nats = np.array([journal.items[str(i)] for i in range(len(windows))])  # (N, spans)
        items = self._items(nats)
        return Evaluation([_row(cell) for cell in items], (self._definitions(),), items)

    def references(self) -> dict[str, list[Measurement]]:
        """Return the rows of tables of n-grams, counted in the training text."""
        tables = self._references.items()
        return {name: [*rows, *self.summarize(rows)] for name, rows in tables}

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        """Return what the table shows of the context curves, the headline among it.

        A model that is no better than a trigram table after as much context as in training has not
        learned to use it: what it makes of more is "not_learned", and its effective length is 0.
        """
        curve = _context_curve(measured)
        if self.length not in curve:
            return []
        best = _context_curve(self._references[NAMES[-1]])[self.length]
        learned = curve[self.length].value < best.value
        status: Status = "ranked" if learned else "not_learned"
        rows = []
        for row in measured:
            name = self._summary(row.subset, row.metric, row.length)
            if name:
                trained = row.length == self.length
                shown: Status = "ranked" if trained else status
                rows.append(replace(row, subset=name, length=None, status=shown))
        longest = self._effective_length(curve) if learned else 0
        n = sum(row.n for row in curve.values())
        effective = Measurement("4x-context", "effective_length", longest, n, status=status)
        return [*rows, effective]

    def _effective_length(self, curve: Mapping[int, Measurement]) -> int:
        """Return the longest context up to which the loss grows to 1 / 0.85 at most.

        RULER (Hsieh et al. 2024, arXiv 2404.06654) asks for a fixed score at every length; this is
        relative to the model's own loss at the trained length.
        """
        most = curve[self.length].value / KEPT
        longest = 0
        for length in sorted(n for n in curve if n >= self.length):
            if curve[length].value > most:
                break
            longest = length
        return longest

    def _summary(self, subset: str, metric: str, length: int | None) -> str:
        """Return the subset under which a row is shown once more; empty: it is not."""
        shown = {
            ("context", "bits_per_byte", self.length): "1x-context",
            ("context", "bits_per_byte", self.max_eval_tokens): "4x-context",
            ("context", "context_gain", self.max_eval_tokens): "4x-context",
            ("key-tokens", "bits_per_byte", self.max_eval_tokens): "4x-key-tokens",
            ("test", "bits_per_byte", self.length): "1x-window",
            ("test", "bits_per_byte", self.max_eval_tokens): "4x-window",
        }
        return shown.get((subset, metric, length or 0), "")

    def provenance(self) -> dict[str, Any]:
        windows = self._test_windows
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

    def _open(self, corpus: str | None, train_files: int) -> tuple[Tokenizer, Tokens]:
        setup = self.context
        if setup.data is None:
            text = self._without_data(corpus, train_files)
        elif corpus == "stdlib":
            raise InputError(
                "perplexity:corpus=stdlib comes with Python: leave out --data or name another one"
            )
        else:
            folder = setup.data / corpus if corpus else setup.data
            path = folder if folder.exists() else setup.data
            if is_token_text(path):
                return self._open_ids(path, corpus)
            copied = copied_corpus(corpus, path, train_files) if corpus else None
            text = copied or folder_corpus(path)
            text = replace(text, name=corpus or text.name)
        tokenizer = load_tokenizer(setup.tokenizer, text, setup.cache)
        return tokenizer, corpus_tokens(text, tokenizer, setup.cache)

    def _without_data(self, corpus: str | None, train_files: int) -> Corpus:
        if corpus is None and self.context.preset == "paper":
            raise DataError(
                "preset paper trains on C4: give a folder of its text with --data perplexity=DIR, "
                "or write perplexity:corpus=c4 to download files of 0.3 GB, 36 in all, as training "
                "goes on"
            )
        if corpus in (None, "stdlib"):
            return stdlib_corpus()
        if self.context.preset == "quick":
            raise DataError(
                f"preset quick downloads nothing: give a folder with the text of {corpus} with "
                "--data perplexity=DIR, or use --preset small"
            )
        return public_corpus(corpus, train_files, self.context.cache)

    def _open_ids(self, path: Path, corpus: str | None) -> tuple[Tokenizer, Tokens]:
        spec = self.context.tokenizer
        if spec.startswith("bpe:"):
            raise InputError(
                f"{path} holds ids, which have their vocabulary already, not text to fit {spec} "
                "to: give its tokenizer.json as --tokenizer"
            )
        nothing = Corpus(corpus or path.stem)
        tokenizer = load_tokenizer(spec, nothing, self.context.cache)
        tokens = file_tokens(path, tokenizer)
        return tokenizer, replace(tokens, name=corpus or tokens.name)

    def _slices(self) -> list[tuple[int, int]]:
        """Return first window and end of what goes through a model at once."""
        count = len(self._test_windows)
        size = max(1, TOKENS_PER_FORWARD // self.max_eval_tokens)
        return [(first, min(first + size, count)) for first in range(0, count, size)]

    def _nats(self, losses: Losses, first: int, stop: int, *, consistent: bool) -> Nats:
        """Return the summed loss of each span of some windows, (stop - first, spans).

        Args:
            losses: of a model or a table.
            first, stop: which windows.
            consistent: whether what comes after a token changes nothing.
        """
        windows = self._test_windows.take(first, stop)
        keys = torch.from_numpy(self._keys[first:stop])
        passes: dict[tuple[int, int], Tensor] = {}
        columns = []
        for span in self.spans:
            # If nothing that follows matters, one forward serves all spans that begin here.
            seen = (0, self.max_eval_tokens) if consistent and span.seen[0] == 0 else span.seen
            if seen not in passes:
                passes[seen] = losses(*self._inputs(windows[:, slice(*seen)])).double().cpu()
            begin, end = (place - seen[0] for place in span.scored)
            scored = passes[seen][:, begin:end]
            columns.append((scored * keys if span.keys else scored).sum(1))
        return torch.stack(columns, dim=1).numpy()

    def _items(self, nats: Nats) -> list[Items]:
        """Return the loss of each window, for all spans; nats: (N, spans)."""
        clusters = self._test_windows.clusters
        cells: list[Items] = []
        before: dict[int, Nats] = {}
        for span, some, bytes_ in zip(self.spans, nats.T, self._bytes.T, strict=True):
            counts = bytes_ > 0 if span.keys else np.ones(len(some), np.bool_)
            if not counts.any():  # no key token
                continue
            values: Nats = some[counts] / math.log(2)
            bits = Items(
                span.subset,
                f"{span.family}bits_per_byte",
                values,
                bytes_[counts].astype(np.float64),
                span.length,
                clusters=clusters[counts],
            )
            cells.append(bits)
            if span.subset == "test":
                tokens = np.full(len(some), float(span.scored[1] - span.scored[0]))
                metric = f"{span.family}perplexity"
                cells.append(
                    replace(bits, metric=metric, values=some, weights=tokens, combine="exp")
                )
            if span.subset == "context":
                before[span.length] = values
                if span.length > self.length:
                    gain = before[self.length] - values
                    cells.append(replace(bits, metric="context_gain", values=gain))
        named = [(cell, self._summary(cell.subset, cell.metric, cell.length)) for cell in cells]
        return [replace(cell, groups=(Place(name),) if name else ()) for cell, name in named]

    @cached_property
    def _bytes(self) -> Places:
        """Bytes that count in each window and span, (N, spans)."""
        windows = self._test_windows
        lengths = self.tokenizer.byte_lengths[windows.take(0, len(windows))]  # (N, T)
        columns = []
        for span in self.spans:
            scored = lengths[:, slice(*span.scored)]
            columns.append((scored * self._keys if span.keys else scored).sum(1))
        return np.stack(columns, axis=1)

    @cached_property
    def _references(self) -> dict[str, list[Measurement]]:
        """The rows of each table of n-grams, without a summary."""
        found = {}
        for order, name in enumerate(NAMES, start=1):
            losses = partial(self._tables.token_losses, order=order)
            nats = [self._nats(losses, *part, consistent=True) for part in self._slices()]
            found[name] = [_row(cell) for cell in self._items(np.concatenate(nats))]
        return found

    @cached_property
    def _tables(self) -> NgramTables:
        text = self.tokens.train[0]()
        ids = text.read(0, min(self._border(text), MAX_TOKENS))
        return NgramTables(ids, self.tokenizer.vocab_size)

    @cached_property
    def _keys(self) -> Mask:
        """Which of the last `stride` tokens of each window are key tokens, (N, stride)."""
        length = min(self.max_eval_tokens, len(self._tables.ids))
        last = len(self._tables.ids) - length
        starts = np.linspace(0, last, CALIBRATION_WINDOWS).astype(int).tolist()
        seen = np.stack([self._tables.ids[start : start + length] for start in starts])
        model = MatchModel(self._tables, seen, self.stride)
        windows = self._test_windows
        return find_keys(model, windows.take(0, len(windows)).astype(np.int64), self.length)

    def _inputs(self, windows: TokenIds) -> Batch:
        targets = torch.from_numpy(windows.astype(np.int64))
        tokens = targets.roll(1, dims=1)
        tokens[:, 0] = self.tokenizer.bos
        return Batch(tokens, targets)

    @cached_property
    def _test_windows(self) -> Windows:
        step = self.max_eval_tokens if self.context.protocol == "strict" else self.stride
        return find_windows(self.tokens.test(), self.max_eval_tokens, step, self.windows)

    def _too_short(self) -> str | None:
        if len(self._test_windows):
            return None
        return (
            f"no test document of {self.tokens.name} has {self.max_eval_tokens} tokens, four times "
            "the training length: use longer documents or a smaller --train.length"
        )

    def _train_text(self, step: int) -> TokenText:
        """Return the training documents at a step, each followed by EOS where they are known.

        All of them, or one piece of a large corpus after the other, so that the first step waits
        for the first piece only and a resumed run sees the same batches.
        """
        pieces = self.tokens.train
        turn = min(step * len(pieces) // self.train.steps, len(pieces) - 1)
        text = pieces[turn]()
        if len(text.ids) <= self.length:
            raise InputError(
                f"{self.tokens.name} has {len(text.ids)} tokens to train on, one window "
                f"of {self.length} needs more: give more text"
            )
        return text

    def _border(self, text: TokenText) -> int:
        """Return where the held-out documents of a training text begin; its end: there are none."""
        size = len(text.ids)
        if not self.context.hold_out:
            return size
        border = int((1 - HELD_OUT) * size)
        later = text.starts[text.starts >= border]
        if len(later) and size - later[0] > self.length:
            border = int(later[0])  # between two documents
        if min(border, size - border) <= self.length:
            raise InputError(
                f"{self.tokens.name} has {size} tokens to train on, too few to hold a twentieth "
                f"back with a window of {self.length}: leave out --tune or give more text"
            )
        return border

    def _draw(self, text: TokenText, first: int, stop: int, seed: list[int]) -> Batch:
        """Return random windows of a stretch of text."""
        rng = np.random.default_rng(seed)
        starts = rng.integers(first, stop - self.length + 1, self.train.batch_size).tolist()
        return self._inputs(np.stack([text.read(start, start + self.length) for start in starts]))

    def _definitions(self) -> str:
        windows = self._test_windows
        documents = len(np.unique(windows.clusters))
        source = (
            f"{documents} documents"
            if windows.text.bounded
            else "a file that does not tell where documents begin, so they may cross documents"
        )
        return (
            f"{len(windows)} windows of {source}: the headline is the loss of the last "
            f"{self.stride} tokens of each after all others, {self.max_eval_tokens} in all; "
            f"{self._keys.sum()} of these {self._keys.size} are key tokens, which can be copied "
            f"from the window but not from its last {self.length} tokens"
        )


def _context_curve(measured: list[Measurement]) -> dict[int, Measurement]:
    """Return the loss of the same tokens by the length of their context."""
    curve = {}
    for row in measured:
        if (row.subset, row.metric) == ("context", "bits_per_byte"):
            curve[row.length or 0] = row
    return curve


def _row(cell: Items) -> Measurement:
    """Return the row of a cell; the interval of a perplexity is that of its logarithm."""
    assert cell.weights is not None
    row = ratio(
        cell.subset,
        cell.metric,
        cell.values,
        cell.weights,
        cell.clusters,
        length=cell.length,
        resamples=RESAMPLES if cell.metric == "bits_per_byte" else 0,
    )
    if cell.combine != "exp":
        return row
    with np.errstate(over="ignore"):
        value, low, high = np.exp([row.value, row.ci_low, row.ci_high])
    return replace(
        row,
        value=float(value),
        stderr=float(value) * row.stderr,
        ci_low=float(low),
        ci_high=float(high),
    )
