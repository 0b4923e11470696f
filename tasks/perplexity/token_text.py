"""Token ids on disk: a corpus tokenized once and memory-mapped, or a .bin file as it comes."""

import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache as remembered
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from pe_bench.api import Corpus, InputError, Tokenizer
from pe_bench.system.files import saving, write_atomic
from pe_bench.text.corpus import Split

Ids = npt.NDArray[Any]
Places = npt.NDArray[np.int64]

SUFFIX = ".bin"
WIDEST = 2**16  # ids that two bytes can tell apart
TEST_SHARE = 0.1  # of a single file, from its end
BUFFER = 1 << 24


@dataclass(frozen=True)
class TokenText:
    """Documents, one after the other.

    Attributes:
        ids: all of them, memory-mapped.
        starts, ends: document i is ids[starts[i]:ends[i]].
        bounded: whether it is known where documents begin and end; else all is one "document".
    """

    ids: Ids
    starts: Places
    ends: Places
    bounded: bool = True


@dataclass(frozen=True)
class Tokens:
    """The parts of a source, each opened when it is asked for.

    Attributes:
        name: what tables call the source.
        fingerprint: SHA-256 (hex) of its content.
        part: a split's documents.
    """

    name: str
    fingerprint: str
    part: Callable[[Split], TokenText]


def corpus_tokens(corpus: Corpus, tokenizer: Tokenizer, cache: Path) -> Tokens:
    """A corpus as ids, each document followed by EOS, kept in the subfolder `tokens` of a cache."""
    part = remembered(lambda split: _tokenized(corpus, split, tokenizer, cache))
    return Tokens(corpus.name, corpus.fingerprint, part)


def _tokenized(corpus: Corpus, split: Split, tokenizer: Tokenizer, cache: Path) -> TokenText:
    """A split as ids of 16 or 32 bits, from the cache where it is there."""
    narrow = np.uint16 if tokenizer.vocab_size <= WIDEST else np.uint32
    name = f"{corpus.fingerprint[:16]}-{tokenizer.fingerprint[:16]}-{split}"
    ids = cache / "tokens" / f"{name}.{narrow.__name__}"
    places = ids.with_suffix(".ends.npy")
    if not (ids.exists() and places.exists()):
        documents = map(tokenizer.encode, corpus.texts(split))
        if not _write(ids, places, documents, tokenizer.eos, narrow):
            raise InputError(f"the {split} part of {corpus.name} has no document: give more text")
    ends = np.load(places)
    starts = np.concatenate([[0], ends[:-1] + 1])
    return TokenText(np.memmap(ids, narrow, mode="r"), starts, ends)


def is_token_text(path: Path) -> bool:
    """Whether a path is a .bin file or a folder with one for each part."""
    return path.suffix == SUFFIX or (path / f"train{SUFFIX}").is_file()


def file_tokens(path: Path, tokenizer: Tokenizer) -> Tokens:
    """Reads raw little-endian 16-bit ids, as LongLoRA and nanoGPT write them.

    Of a folder, `train.bin` and `test.bin`; of a single file, the last tenth is the test part.
    Where documents begin is not written in such files: how often the ids 1 and 2 occur, which are
    BOS and EOS in Llama's vocabulary, is printed for the reader to judge.

    Args:
        path: the file or the folder.
        tokenizer: the vocabulary that the ids belong to.

    Raises:
        InputError: no such file, or it cannot be what this says.
    """
    if tokenizer.vocab_size > WIDEST:
        raise InputError(
            f"ids in {SUFFIX} files are below {WIDEST} and the vocabulary of {tokenizer.name} has "
            f"{tokenizer.vocab_size}: give the tokenizer that the file was made with"
        )
    if path.is_dir():
        files = [path / f"{part}{SUFFIX}" for part in ("train", "test")]
        train, test = (_read(file, tokenizer) for file in files)
    else:
        files = [path]
        whole = _read(path, tokenizer)
        border = len(whole) - int(TEST_SHARE * len(whole))
        train, test = whole[:border], whole[border:]
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    parts: dict[Split, TokenText] = {"train": _unbounded(train), "test": _unbounded(test)}
    return Tokens(path.resolve().stem, digest.hexdigest(), parts.__getitem__)


def _unbounded(ids: Ids) -> TokenText:
    return TokenText(ids, np.zeros(1, np.int64), np.array([len(ids)]), bounded=False)


def _read(path: Path, tokenizer: Tokenizer) -> Ids:
    if not path.is_file():
        raise InputError(f"there is no file {path}: expected raw 16-bit token ids")
    size = path.stat().st_size
    if not size or size % 2:
        raise InputError(
            f"{path} has {size} bytes, and ids of two bytes each need an even number above 0: "
            "give a file of raw 16-bit token ids"
        )
    ids = np.memmap(path, "<u2", mode="r")
    largest, counts = 0, {1: 0, 2: 0}
    for first in range(0, len(ids), BUFFER):
        some = ids[first : first + BUFFER]
        largest = max(largest, int(some.max()))
        counts = {id_: n + int((some == id_).sum()) for id_, n in counts.items()}
    if largest >= tokenizer.vocab_size:
        raise InputError(
            f"{path} has the id {largest}, and {tokenizer.name} has {tokenizer.vocab_size} ids: "
            "give the tokenizer.json that the file was made with as --tokenizer"
        )
    said = ", ".join(f"id {id_} occurs {n:,} times" for id_, n in counts.items())
    print(f"{path}: {len(ids):,} tokens, not known where documents begin; {said}", flush=True)
    return ids


def _write(
    path: Path, places: Path, documents: Iterable[Ids], end: int, narrow: type[np.unsignedinteger]
) -> bool:
    """Writes aside and renames, documents one by one: they may be larger than the memory.

    Returns:
        Whether there was any; else nothing is written.
    """
    with saving(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        ends, total = [], 0
        try:
            with os.fdopen(handle, "wb") as file:
                bar = tqdm(
                    documents, "tokenize", unit=" documents", delay=2, leave=False, disable=None
                )
                for ids in bar:
                    file.write(np.append(ids, end).astype(narrow).tobytes())
                    total += len(ids) + 1
                    ends.append(total - 1)
            if not ends:
                return False
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
    buffer = io.BytesIO()
    np.save(buffer, np.array(ends, np.int64))
    write_atomic(places, buffer.getvalue())
    return True
