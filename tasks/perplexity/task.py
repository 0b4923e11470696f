"""Bits per byte and perplexity up to 4 times the training length, on any text (default: Python)."""

import hashlib
import math
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pe_bench.api import (
    Batch,
    Corpus,
    DataError,
    Decoder,
    Encoding,
    Headline,
    InputError,
    Journal,
    Measurement,
    ModelConfig,
    Preset,
    Setup,
    Task,
    Tokenizer,
    TrainConfig,
    folder_corpus,
    load_tokenizer,
    progress,
    stdlib_corpus,
)
from pe_bench.tasks.perplexity.hub_corpora import copied_corpus, public_corpus
from pe_bench.tasks.perplexity.tokenized_corpus import (
    Column,
    Ids,
    Places,
    Tokens,
    corpus_tokens,
    file_tokens,
    is_token_text,
)
from pe_bench.tasks.perplexity.windows import (
    Numbers,
    Span,
    Windows,
    find_windows,
    interval,
    make_spans,
    ratio,
)

SHARES = (0.25, 0.5, 1, 2, 4)  # evaluated lengths, in training lengths
TOKENS_PER_FORWARD = 16_384


class Perplexity(Task):
    """Trains on windows of the concatenated train split, each with a BOS before it.

    Evaluation takes windows of the test split, none across two documents, of the longest length,
    and shorter ones from the same starts. Two definitions go by the name of perplexity, and both
    are here, for each length: `bits_per_byte` and `perplexity` count every token of a window,
    `tail_bits_per_byte` and `tail_perplexity` the last `stride` ones alone, as the perplexity of
    sliding windows does. Two curves: subset `position` is the loss at the tokens of the longest
    windows up to an offset, from half of it on; subset `context` that of the last `stride` tokens
    of the longest windows, always the same targets, given more and more of what comes before them.

    One forward of a window gives all but the last of these: the loss at an offset does not depend
    on how long the window is. Where an encoding is not prefix consistent, each length has a forward
    of its own. Sums are float64. Standard errors, and the 95 % intervals `bits_per_byte_low` and
    `_high` (by resampling), are over documents, not over windows. Bits per byte compare across
    tokenizers, perplexities do not.

    Protocol strict: windows do not overlap. Protocol paper (TAPE's and LongLoRA's evaluation): one
    starts every `stride` tokens, 256 there, and every token of each counts. Not repeated: windows
    without a BOS, which no model here was trained on; windows across documents, but for .bin files,
    which do not say where documents are; starts that only shorter windows have; the last window of
    a text left out; means of the means of batches; half precision.

    Published (Llama 2 7B, lengths 1024 to 8192, pg19 and proofpile): `pe_bench/published.csv`. They
    are fine-tunings of a pre-trained model; nothing here is trained like that.

    Args:
        corpus: what to train and score on. With --data it names what is there: DIR/NAME or DIR, a
            folder of text, of JSON lines, of copies of the hub's files, or .bin files of ids.
            Without --data pg19, proofpile and c4 are downloaded, not for preset quick. None: what
            --data has, else stdlib.
        windows: how many test windows, spread evenly over all there are; 0: all.
        stride: tokens that a tail has; None: as many as the shortest windows.
        train_files: how many files of a public corpus' train split to use, one after the other.
    """

    headline = Headline("bits_per_byte", "longest", higher_is_better=False)
    shown = {"test": "bits_per_byte"}
    curves = {"position": "bits_per_byte", "context": "bits_per_byte"}
    axes = {"length": "tokens from the start of the window", "aux": ""}
    protocols = ("strict", "paper")
    presets = {
        "quick": Preset(
            TrainConfig(steps=500, batch_size=4, length=256, lr=3e-3, warmup=0.1),
            ModelConfig(layers=3, heads=4, width=128, mlp_width=384),
            {"windows": 64},
        ),
        "small": Preset(
            TrainConfig(steps=1000, batch_size=64, length=1024, lr=6e-4, warmup=0.05),
            ModelConfig(layers=8, heads=8, width=512, mlp_width=1536),
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
            ModelConfig(layers=12, heads=12, width=768, mlp_width=3072),
            {"train_files": 35},  # of C4: 5.2 billion Llama tokens, none of them twice
        ),
    }

    def __init__(
        self,
        setup: Setup,
        start: Task | None,
        *,
        corpus: Literal["stdlib", "pg19", "proofpile", "code", "c4"] | None = None,
        windows: int = 0,
        stride: int | None = None,
        train_files: int = 1,
    ) -> None:
        super().__init__(setup, start)
        self.lengths = sorted({max(1, int(share * setup.train.length)) for share in SHARES})
        self.longest = self.lengths[-1]
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
        self.vocab_size = self.tokenizer.vocab_size
        self.digit_ids = self.tokenizer.digit_ids
        self.separator_ids = self.tokenizer.separator_ids
        self.data_label = f"{self.tokens.name}-{self.tokens.fingerprint[:8]}"
        self.fingerprint = f"{self.tokens.fingerprint}+{self.tokenizer.fingerprint}"
        self.subsets = self.chosen(["test"])
        self.spans = make_spans(self.lengths, self.stride)

    def skip(self, encoding: Encoding) -> str | None:
        """Also where no test document is long enough: better said before training than after."""
        return super().skip(encoding) or self._too_short()

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        stream, length = self._train_stream(step), self.setup.train.length
        random = np.random.default_rng([seed, step])
        starts = random.integers(0, len(stream) - length + 1, self.setup.train.batch_size)
        return self._inputs(np.stack([stream[start : start + length] for start in starts]))

    def evaluate(
        self, model: Decoder, subset: str, seed: int, journal: Journal
    ) -> list[Measurement]:
        windows = self._test_windows
        if not len(windows):
            raise InputError(str(self._too_short()))
        size = max(1, TOKENS_PER_FORWARD // self.longest)
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
        print(self._definitions())
        losses = np.array([journal.items[str(i)] for i in range(len(windows))])
        rows: list[Measurement] = []
        for column, span in enumerate(self.spans):
            bytes_ = np.concatenate([part[column] for part in sizes])
            rows += _rows(span, losses[:, column], bytes_, windows.clusters)
        return rows

    def summarize(self, measured: list[Measurement]) -> list[Measurement]:
        """The headline: bits per byte at the longest length, four times the training length."""
        wanted = ("test", self.headline.metric, self.longest)
        return [
            replace(row, subset="longest")
            for row in measured
            if (row.subset, row.metric, row.length) == wanted
        ]

    def provenance(self) -> dict[str, Any]:
        windows = self._test_windows
        places = np.concatenate([[self.longest, self.stride], windows.starts]).astype("<i8")
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
        setup = self.setup
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
        if corpus is None and self.setup.preset == "paper":
            raise DataError(
                "preset paper trains on C4: give a folder of its text with --data perplexity=DIR, "
                "or write perplexity:corpus=c4 to download files of 0.3 GB, 36 in all, as training "
                "goes on"
            )
        if corpus in (None, "stdlib"):
            return stdlib_corpus()
        if self.setup.preset == "quick":
            raise DataError(
                f"preset quick downloads nothing: give a folder with the text of {corpus} with "
                "--data perplexity=DIR, or use --preset small"
            )
        return public_corpus(corpus, train_files, self.setup.cache)

    def _open_ids(self, path: Path, corpus: str | None) -> tuple[Tokenizer, Tokens]:
        spec = self.setup.tokenizer
        if spec.startswith("bpe:"):
            raise InputError(
                f"{path} holds ids, which have their vocabulary already, not text to fit {spec} "
                "to: give its tokenizer.json as --tokenizer"
            )
        nothing = Corpus(corpus or path.stem)
        tokenizer = load_tokenizer(spec, nothing, self.setup.cache)
        tokens = file_tokens(path, tokenizer)
        return tokenizer, replace(tokens, name=corpus or tokens.name)

    def _nats(self, model: Decoder, windows: Ids) -> list[list[float]]:
        """Summed loss of each span of each window."""
        device = model.lm_head.weight.device
        consistent = model.encoding.prefix_consistent
        losses: dict[tuple[int, int], Tensor] = {}
        columns = []
        for span in self.spans:
            # What comes after a token changes nothing, so one forward serves all that begin here.
            seen = (0, self.longest) if consistent and span.seen[0] == 0 else span.seen
            if seen not in losses:
                batch = self._inputs(windows[:, slice(*seen)])
                tokens, targets = batch.tokens.to(device), batch.targets.to(device)
                losses[seen] = model.token_losses(tokens, targets).double()
            first, stop = (place - seen[0] for place in span.scored)
            columns.append(losses[seen][:, first:stop].sum(1))
        nats: list[list[float]] = torch.stack(columns, dim=1).tolist()
        return nats

    def _inputs(self, windows: Ids) -> Batch:
        targets = torch.from_numpy(windows.astype(np.int64))
        tokens = targets.roll(1, dims=1)
        tokens[:, 0] = self.tokenizer.bos
        return Batch(tokens, targets)

    @cached_property
    def _test_windows(self) -> Windows:
        step = self.longest if self.setup.protocol == "strict" else self.stride
        return find_windows(self.tokens.test(), self.longest, step, self.windows)

    def _too_short(self) -> str | None:
        if len(self._test_windows):
            return None
        return (
            f"no test document of {self.tokens.name} has {self.longest} tokens, four times the "
            "training length: use longer documents or a smaller --train.length"
        )

    def _train_stream(self, step: int) -> Column | Ids:
        """Return the training documents at a step, each followed by EOS where they are known.

        All of them, or one piece of a large corpus after the other, so that the first step waits
        for the first piece only and a resumed run sees the same batches.
        """
        pieces = self.tokens.train
        turn = min(step * len(pieces) // self.setup.train.steps, len(pieces) - 1)
        stream = pieces[turn]().ids
        if len(stream) <= self.setup.train.length:
            raise InputError(
                f"{self.tokens.name} has {len(stream)} tokens to train on, one window "
                f"of {self.setup.train.length} needs more: give more text"
            )
        return stream

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


def _rows(span: Span, nats: Numbers, bytes_: Numbers, clusters: Places) -> list[Measurement]:
    """Bits per byte of one span, with perplexity but for the curves.

    Args:
        span: which tokens.
        nats: (N,) their summed loss in each window.
        bytes_: (N,) bytes that they stand for.
        clusters: (N,) what goes together.
    """
    n, tokens = len(nats), np.full(len(nats), span.scored[1] - span.scored[0])

    def row(metric: str, value: float, error: float = math.nan) -> Measurement:
        return Measurement(span.subset, span.family + metric, value, n, error, span.length)

    bits = nats / math.log(2)
    rows = [row("bits_per_byte", *ratio(bits, bytes_, clusters))]
    if span.subset != "test":
        return rows
    per_token, error = ratio(nats, tokens, clusters)
    with np.errstate(over="ignore"):
        perplexity = float(np.exp(per_token))
    rows.append(row("perplexity", perplexity, perplexity * error))
    if not span.family and (ends := interval(bits, bytes_, clusters)):
        rows += [row(f"bits_per_byte_{e}", x) for e, x in zip(("low", "high"), ends, strict=True)]
    return rows
