"""Bits per byte and perplexity up to 4 times the training length, on any text (default: Python)."""

import hashlib
import math
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pe_bench.api import (
    BASE,
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
    Place,
    Preset,
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
from pe_bench.tasks.perplexity.tokenized_corpus import (
    Places,
    Tokens,
    TokenText,
    corpus_tokens,
    file_tokens,
    is_token_text,
)
from pe_bench.tasks.perplexity.windows import (
    Span,
    Windows,
    find_windows,
    make_spans,
)

EVAL_LENGTH_FACTORS = (0.25, 0.5, 1, 2, 4)
TOKENS_PER_FORWARD = 16_384
RESAMPLES = 1000


class Perplexity(Task):
    """Trains on windows of the concatenated train split, each with a BOS before it.

    Evaluation takes windows of the test split of the longest length, and shorter ones from the same
    starts.

    | rows | tokens that count |
    |---|---|
    | `bits_per_byte`, `perplexity` of `test` | every token of windows of a length |
    | `tail_bits_per_byte`, `tail_perplexity` | the last `stride` of them, as with sliding windows |
    | `position` | of the longest windows up to an offset, from half of it on |
    | `context` | the last `stride` of the longest windows, given more and more before them |

    One forward pass of a window gives all but `context`: the loss at an offset does not depend on
    how long the window is. Where an encoding is not prefix consistent, each length has its own
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

    headline = Headline("bits_per_byte", "4x-train-length")
    all_subsets = ("test",)
    views = (
        Column("test", "bits_per_byte"),
        Curve("test", "bits_per_byte", "whole windows", x="tokens of the window"),
        Curve("position", "bits_per_byte", "by position in the longest windows"),
        Curve(
            "context", "bits_per_byte", "the same targets after more context", x="context, tokens"
        ),
    )
    axes = {"length": "tokens from the start of the window", "second": ""}
    protocols = ("strict", "paper")
    check_options = {"windows": 8}
    presets = {
        "quick": Preset(
            TrainConfig(steps=500, batch_size=4, length=256, lr=3e-3, warmup=0.1),
            TINY.changed(width=128, mlp_width=384, init_std=0.02),
            {"windows": 64},
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
        rng = np.random.default_rng([seed, step])
        starts = rng.integers(0, len(text.ids) - self.length + 1, self.train.batch_size).tolist()
        return self._inputs(np.stack([text.read(start, start + self.length) for start in starts]))

    def evaluate(self, model: Decoder, subset: str, seed: int, journal: Journal) -> Evaluation:
        windows = self._test_windows
        if not len(windows):
            raise InputError(str(self._too_short()))
        size = max(1, TOKENS_PER_FORWARD // self.max_eval_tokens)
        sizes = []  # bytes of each span of each window
        with progress(f"{self.data_label} · evaluate", len(windows), unit="window") as bar:
            for first in range(0, len(windows), size):
                some = windows.take(first, first + size)
                if str(first + len(some) - 1) not in journal.items:
                    nats = self._nats(model, some)
                    journal.add({str(first + i): row for i, row in enumerate(nats)})
                bytes_ = self.tokenizer.byte_lengths[some]
                sizes.append([bytes_[:, slice(*span.scored)].sum(1) for span in self.spans])
                bar.update(len(some))
        losses = np.array([journal.items[str(i)] for i in range(len(windows))])
        rows: list[Measurement] = []
        items: list[Items] = []
        for column, span in enumerate(self.spans):
            bytes_ = np.concatenate([part[column] for part in sizes])
            rows += _rows(span, losses[:, column], bytes_, windows.clusters)
            items += self._items(span, losses[:, column], bytes_, windows.clusters)
        return Evaluation(rows, (self._definitions(),), items)

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        """Return the headline: bits per byte at four times the training length."""
        wanted = ("test", self.headline.metric, self.max_eval_tokens)
        return [
            replace(row, subset=self.headline.subset)
            for row in measured
            if (row.subset, row.metric, row.length) == wanted
        ]

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

    def _nats(self, model: Decoder, windows: TokenIds) -> list[list[float]]:
        """Summed loss of each span of each window."""
        device = model.lm_head.weight.device
        encoding = model.encoding
        consistent = encoding.prefix_consistent and not encoding.needs_final_length
        losses: dict[tuple[int, int], Tensor] = {}
        columns = []
        for span in self.spans:
            # What comes after a token changes nothing, so one forward serves all that begin here.
            seen = (0, self.max_eval_tokens) if consistent and span.seen[0] == 0 else span.seen
            if seen not in losses:
                batch = self._inputs(windows[:, slice(*seen)])
                tokens, targets = batch.tokens.to(device), batch.targets.to(device)
                losses[seen] = model.token_losses(tokens, targets).double()
            first, stop = (place - seen[0] for place in span.scored)
            columns.append(losses[seen][:, first:stop].sum(1))
        nats: list[list[float]] = torch.stack(columns, dim=1).tolist()
        return nats

    def _items(
        self, span: Span, nats: npt.NDArray[np.float64], bytes_: Places, clusters: Places
    ) -> list[Items]:
        """Return what the rows of one span are made of; the arguments are those of `_rows`."""
        is_headline = span.subset == "test" and span.length == self.max_eval_tokens
        bits = Items(
            span.subset,
            f"{span.family}bits_per_byte",
            nats / math.log(2),
            bytes_.astype(np.float64),
            span.length,
            clusters=clusters,
            groups=(Place(self.headline.subset, length=span.length),)
            if is_headline and not span.family
            else (),
        )
        if span.subset != "test":
            return [bits]
        tokens = np.full(len(nats), float(span.scored[1] - span.scored[0]))
        metric = f"{span.family}perplexity"
        return [
            bits,
            replace(bits, metric=metric, values=nats, weights=tokens, groups=(), combine="exp"),
        ]

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

    def _definitions(self) -> str:
        windows = self._test_windows
        documents = len(np.unique(windows.clusters))
        source = (
            f"{documents} documents"
            if windows.text.bounded
            else "a file that does not tell where documents begin, so they may cross documents"
        )
        return (
            f"{len(windows)} windows of {source}: bits_per_byte and perplexity count every token "
            f"of each, tail_bits_per_byte and tail_perplexity the last {self.stride}"
        )


def _rows(
    span: Span, nats: npt.NDArray[np.float64], bytes_: Places, clusters: Places
) -> list[Measurement]:
    """Return bits per byte of one span, with perplexity but for the curves.

    Args:
        span: tokens that count.
        nats: (N,) their summed loss in each window.
        bytes_: (N,) bytes that they stand for.
        clusters: (N,) cluster of each window.
    """
    tokens = np.full(len(nats), span.scored[1] - span.scored[0])
    tested = span.subset == "test" and not span.family
    bits = ratio(
        span.subset,
        f"{span.family}bits_per_byte",
        nats / math.log(2),
        bytes_,
        clusters,
        length=span.length,
        resamples=RESAMPLES if tested else 0,
    )
    if span.subset != "test":
        return [bits]
    per_token = ratio(
        span.subset, f"{span.family}perplexity", nats, tokens, clusters, length=span.length
    )
    with np.errstate(over="ignore"):
        value, low, high = np.exp([per_token.value, per_token.ci_low, per_token.ci_high])
    perplexity = replace(
        per_token,
        value=float(value),
        stderr=float(value) * per_token.stderr,
        ci_low=float(low),
        ci_high=float(high),
    )
    return [bits, perplexity]
