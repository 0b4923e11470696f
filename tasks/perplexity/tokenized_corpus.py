"""Token ids on disk: a corpus tokenized once by `datasets`, or given .bin files."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache as remembered
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pe_bench.api import Corpus, DataError, InputError, TokenIds, Tokenizer, info
from pe_bench.api.data import MappedFiles, Piece, keep_tables, quiet_library

Offsets = npt.NDArray[np.int64]

SUFFIX = ".bin"
MAX_NARROW = 2**16  # number of ids that fit into two bytes
TEST_FRACTION = 0.1  # fraction at the end of a single file
BUFFER = 1 << 24
BYTES_AT_ONCE = 16 << 20  # bytes of text in memory; the ids of its documents form one chunk
BYTES_PER_PROCESS = 64 << 20  # tokenizing less text is faster than starting another process


@dataclass(frozen=True)
class TokenText:
    """Concatenated token ids of documents.

    Attributes:
        ids: all ids, memory-mapped: a NumPy array, or an Arrow array in several chunks.
        starts, ends: document i is ids[starts[i]:ends[i]].
        bounded: whether the bounds of documents are known; else the whole text is one document.
        files: the user's files from which the ids are mapped; None for a copy in the cache.
    """

    ids: Any
    starts: Offsets
    ends: Offsets
    bounded: bool = True
    files: MappedFiles | None = None

    def read(self, start: int, stop: int) -> TokenIds:
        """Return ids[start:stop], which may span several documents.

        Raises:
            ChangedError: the files have changed since the start of the command.
        """
        ids = np.array(self.ids[start:stop])  # a copy, unaffected by later changes
        if self.files is not None:
            self.files.check()
        return ids


@dataclass(frozen=True)
class Tokens:
    """The parts of a source, each opened on demand.

    Attributes:
        name: name of the source in tables.
        fingerprint: SHA-256 (hex) of its content.
        train: a function for each piece, which opens it.
        test: function that opens the test part.
    """

    name: str
    fingerprint: str
    train: Sequence[Callable[[], TokenText]]
    test: Callable[[], TokenText]


@dataclass(frozen=True)
class EvalText:
    """A text to measure on.

    Attributes:
        name: name of its corpus.
        fingerprint: SHA-256 (hex) of its source.
        open: function that opens the text.
    """

    name: str
    fingerprint: str
    open: Callable[[], TokenText]


def corpus_tokens(corpus: Corpus, tokenizer: Tokenizer, cache: Path) -> Tokens:
    """Return a corpus as ids, each document followed by EOS, kept in subfolders of a cache."""
    train = [_opening(piece, tokenizer, cache) for piece in corpus.train]
    test = _opening(corpus.test, tokenizer, cache)
    return Tokens(corpus.name, corpus.fingerprint, train, test)


def piece_test(name: str, piece: Piece, tokenizer: Tokenizer, cache: Path) -> EvalText:
    """Return a piece as a text to measure on."""
    return EvalText(name, piece.fingerprint, _opening(piece, tokenizer, cache))


def _opening(piece: Piece, tokenizer: Tokenizer, cache: Path) -> Callable[[], TokenText]:
    return remembered(partial(_tokenized, piece, tokenizer, cache))


def _tokenized(piece: Piece, tokenizer: Tokenizer, cache: Path) -> TokenText:
    """Return a piece as ids of 16 or 32 bits, from the cache if possible."""
    import pyarrow.compute as pc  # imported late, like `datasets`

    name = f"{piece.fingerprint[:16]}-{tokenizer.fingerprint[:16]}"
    folder = cache / "tokens" / name
    tokens = keep_tables(
        folder / f"{name}.json",
        lambda: _tokenize(piece.documents(cache), tokenizer, folder, cache),
        "the same tokens",
    )
    column = tokens.data.column("ids")  # a list for each document
    lengths = pc.list_value_length(column).to_numpy()
    stops = np.cumsum(lengths, dtype=np.int64)
    return TokenText(pc.list_flatten(column), stops - lengths, stops - 1)


def _tokenize(documents: Any, tokenizer: Tokenizer, folder: Path, cache: Path) -> Any:
    """Return a `Dataset` of the ids of documents, in files of a folder."""
    size = documents.data.nbytes
    processes = min(os.cpu_count() or 1, size // BYTES_PER_PROCESS)
    at_once = min(1000, max(1, BYTES_AT_ONCE * len(documents) // max(1, size)))
    width = "uint16" if tokenizer.vocab_size <= MAX_NARROW else "uint32"
    with quiet_library(cache, size) as datasets:
        try:
            return documents.map(
                _encode,
                fn_kwargs={"tokenizer": tokenizer, "width": width},
                batched=True,
                batch_size=at_once,
                writer_batch_size=at_once,
                remove_columns="text",
                features=datasets.Features({"ids": datasets.List(datasets.Value(width))}),
                num_proc=processes if processes > 1 else None,
                cache_file_name=str(folder / "ids.arrow"),
                load_from_cache_file=False,
                new_fingerprint=folder.name,  # the default depends on the machine's paths
                desc="tokenize",
            )
        finally:
            for unfinished in folder.glob("tmp*"):  # left by a run that failed or was killed
                unfinished.unlink()


def _encode(
    batch: dict[str, list[str]], tokenizer: Tokenizer, width: str
) -> dict[str, list[TokenIds]]:
    """Return the ids of each text, followed by EOS."""
    encoded = [np.append(tokenizer.encode(text), tokenizer.eos) for text in batch["text"]]
    return {"ids": [ids.astype(width) for ids in encoded]}


def is_token_text(path: Path, part: str = "train") -> bool:
    """Return whether a path is a .bin file, or a folder with a .bin file of a part."""
    return path.suffix == SUFFIX or (path / f"{part}{SUFFIX}").is_file()


def file_test(name: str, folder: Path, tokenizer: Tokenizer) -> EvalText:
    """Return the file `test.bin` of a folder as a text to measure on, see `file_tokens`."""
    _check_narrow(tokenizer)
    path = folder / f"test{SUFFIX}"
    _check_size(path)
    files = MappedFiles([path])
    ids = _read(path, tokenizer)
    return EvalText(name, files.fingerprint, partial(_unbounded, ids, files))


def file_tokens(path: Path, tokenizer: Tokenizer) -> Tokens:
    """Return the tokens of raw little-endian 16-bit files, the format of LongLoRA and nanoGPT.

    `datasets` has no reader for such files.
    A folder has `train.bin` and `test.bin`. For a single file, the last tenth is the test part.
    Such files do not store the bounds of documents. As a hint for the user, the counts of the ids 1
    and 2 are printed, which are BOS and EOS in Llama's vocabulary.

    Args:
        path: the file or the folder.
        tokenizer: tokenizer of the ids.

    Raises:
        InputError: the file is missing, or its content does not fit the format.
    """
    _check_narrow(tokenizer)
    paths = [path / f"{part}{SUFFIX}" for part in ("train", "test")] if path.is_dir() else [path]
    for each in paths:
        _check_size(each)
    files = MappedFiles(paths)
    if path.is_dir():
        train, test = (_read(each, tokenizer) for each in paths)
    else:
        whole = _read(path, tokenizer)
        border = len(whole) - int(TEST_FRACTION * len(whole))
        train, test = whole[:border], whole[border:]
    opening = [partial(_unbounded, ids, files) for ids in (train, test)]
    return Tokens(path.resolve().stem, files.fingerprint, opening[:1], opening[1])


def _check_narrow(tokenizer: Tokenizer) -> None:
    if tokenizer.vocab_size > MAX_NARROW:
        raise InputError(
            f"ids in {SUFFIX} files are below {MAX_NARROW}, but the vocabulary of {tokenizer.name} "
            f"has {tokenizer.vocab_size}: give the tokenizer that the file was made with"
        )


def _unbounded(ids: TokenIds, files: MappedFiles) -> TokenText:
    return TokenText(ids, np.zeros(1, np.int64), np.array([len(ids)]), bounded=False, files=files)


def _check_size(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"there is no file {path}: expected raw 16-bit token ids")
    size = path.stat().st_size
    if not size or size % 2:
        raise DataError(
            f"{path} has {size} bytes, but ids of two bytes need an even number above 0: "
            "give a file of raw 16-bit token ids"
        )


def _read(path: Path, tokenizer: Tokenizer) -> TokenIds:
    ids = np.memmap(path, "<u2", mode="r")
    largest, counts = 0, {1: 0, 2: 0}
    for first in range(0, len(ids), BUFFER):
        some = ids[first : first + BUFFER]
        largest = max(largest, int(some.max()))
        counts = {id_: n + int((some == id_).sum()) for id_, n in counts.items()}
    if largest >= tokenizer.vocab_size:
        raise DataError(
            f"{path} has the id {largest}, but {tokenizer.name} has {tokenizer.vocab_size} ids: "
            "give the tokenizer.json of the file as --tokenizer"
        )
    said = ", ".join(f"id {id_} occurs {n:,} times" for id_, n in counts.items())
    info(f"{path}: {len(ids):,} tokens without document boundaries; {said}")
    return ids
