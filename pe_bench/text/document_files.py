"""Documents in files: text, JSON lines, plain or gzipped, and parquet tables."""

import contextlib
import glob
import gzip
import json
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pe_bench.errors import DataError

LINES = (".jsonl", ".jsonl.gz", ".json.gz")
SUFFIXES = (*LINES, ".parquet")
FIELD = "text"  # where public corpora keep a document
ALWAYS_ALLOWED = 64 << 20  # bytes that an archive may unpack to, however small it is
LARGEST_RATIO = 200  # of unpacked to packed bytes; text reaches 20, a bomb 1000


def holds_many(path: Path) -> bool:
    """Return whether a file holds many documents, by its name."""
    return path.name.lower().endswith(SUFFIXES)


def read_documents(path: Path) -> Iterator[str]:
    """Yield the documents of a file in order, empty ones only if the file is one document.

    Raises:
        DataError: the file is damaged, or a record has no text.
    """
    if path.name.lower().endswith(".parquet"):
        yield from filter(None, _table(path))
    elif holds_many(path):
        yield from filter(None, _json_lines(path))
    else:
        # The library's reader of text turns "\r\n" into "\n": these would be other bytes.
        with naming_damage(path):
            yield path.read_bytes().decode()


def read_json_lines(source: str, name: str) -> Iterator[tuple[str, Any]]:
    """Yield `name:line` and the value of each line of a file, without blank lines.

    The readers of `datasets` are unsuitable: the line reader decodes in the machine's locale, and
    the JSON reader casts numbers to text and fails on mixed types in unused fields.

    Args:
        source: a path, or `zip://member::archive`.
        name: name of the file in messages.

    Raises:
        DataError: the file is damaged, or a line is not JSON.
    """
    import fsspec  # what `datasets` opens files with

    with naming_damage(name), fsspec.open(source, "rb", compression="infer") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"{name}:{number}", _parse(line, f"{name}:{number}")


@contextlib.contextmanager
def naming_damage(name: str | Path) -> Iterator[None]:
    """Turn errors of the system and of decompression for a damaged file into a `DataError`."""
    try:
        yield
    # RuntimeError covers encrypted members and unknown compression methods.
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError) as error:
        raise DataError(f"{name} cannot be read ({error}): get it again") from None


def refuse_bomb(path: Path, unpacked: int) -> None:
    """Check the unpacked size of an archive before writing any file.

    Args:
        path: the archive.
        unpacked: number of bytes after unpacking.

    Raises:
        DataError: the unpacked size is many times the size of the archive.
    """
    packed = path.stat().st_size
    if unpacked > max(ALWAYS_ALLOWED, LARGEST_RATIO * packed):
        raise DataError(
            f"{path} has {packed:,} bytes and unpacks to {unpacked:,} or more, over "
            f"{LARGEST_RATIO} times as many: that is not text, do not use it"
        )


def _json_lines(path: Path) -> Iterator[str]:
    if path.name.lower().endswith(".gz"):
        unpacked = 0
        with naming_damage(path), gzip.open(path) as file:
            for block in iter(partial(file.read, 1 << 20), b""):
                unpacked += len(block)
                refuse_bomb(path, unpacked)
    for where, record in read_json_lines(str(path), str(path)):
        text = record.get(FIELD) if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise DataError(f"{where} has no text: expected an object with a string '{FIELD}'")
        yield encodable(text)


def _table(path: Path) -> Iterator[str]:
    import pyarrow
    from datasets import IterableDataset

    try:
        rows = IterableDataset.from_parquet(glob.escape(str(path)), columns=[FIELD], batch_size=16)
        for batch in rows.iter(batch_size=16):
            for text in batch[FIELD]:
                if not isinstance(text, str):
                    raise DataError(f"{path} has a row whose column '{FIELD}' is not a string")
                yield text
    except (pyarrow.ArrowException, KeyError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{path} cannot be read as a table with a column '{FIELD}' ({reason}): get it again"
        ) from None


def encodable(text: str) -> str:
    """Return the text with `?` for unpaired surrogates, which UTF-8 cannot express."""
    return text.encode(errors="replace").decode()


def _parse(line: bytes, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where} is not JSON in UTF-8 ({error}): expected one object per line"
        ) from None
