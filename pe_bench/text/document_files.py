"""Documents in files: text, JSON lines, plain or gzipped, and parquet tables."""

import codecs
import contextlib
import gzip
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from pe_bench.errors import DataError

SUFFIXES = (".jsonl", ".jsonl.gz", ".json.gz", ".parquet")
"""Endings of files that hold many documents; any other file may hold JSON lines too."""

ALSO_LINES = (".ndjson", ".ndjson.gz")
FIRST_LINES = 10  # lines that show whether a file of any other ending holds JSON lines
BEGINNING = 8000  # bytes of a file that show whether it is text, as in git
FIELD = "text"  # field of public corpora that holds a document
ALWAYS_ALLOWED = 64 << 20  # unpacked bytes, allowed for archives of any size
LARGEST_RATIO = 200  # ratio of unpacked to packed bytes; text reaches 20, a zip bomb 1000

Opener = Callable[[], AbstractContextManager[Any]]
"""Opens a file and decompresses it."""


def holds_many(path: Path) -> bool:
    """Return whether a file holds many documents.

    It does if its ending is known, or if one of its first lines is a JSON object with a string
    `text` and the lines before are JSON objects too.

    Raises:
        OSError: the file cannot be read.
    """
    if path.name.lower().endswith((*SUFFIXES, *ALSO_LINES)):
        return True
    with path.open("rb") as file:
        for line in islice(filter(bytes.strip, file), FIRST_LINES):
            line = line.removeprefix(codecs.BOM_UTF8)
            if not line.lstrip().startswith(b"{"):
                return False
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                return False
            if isinstance(record.get(FIELD), str):
                return True
    return False


def read_text(path: Path) -> str:
    """Return the text of a file that is one document, without a byte order mark.

    Raises:
        UnicodeError: the file is not UTF-8. Text in UTF-16 without a byte order mark can be valid
            UTF-8, but it has a NUL in every ASCII character.
    """
    # The library's text reader turns "\r\n" into "\n", which changes the bytes.
    data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    if b"\0" in data[:BEGINNING]:
        raise UnicodeError("it has NUL characters")
    return data.decode()


def read_documents(path: Path) -> Iterator[str]:
    """Yield the documents of a file in order, empty ones only if the file is one document.

    A byte order mark at the start is not part of the text.

    Raises:
        DataError: the file is damaged, or a record has no text.
    """
    if path.name.lower().endswith(".parquet"):
        yield from filter(None, _table(path))
    elif holds_many(path):
        yield from filter(None, _json_lines(path))
    else:
        with naming_damage(path):
            yield read_text(path)


def read_json_lines(open_file: Opener, name: str) -> Iterator[tuple[str, Any]]:
    """Yield `name:line` and the value of each line of a file, without blank lines.

    The readers of `datasets` are unsuitable: the line reader decodes in the machine's locale, and
    the JSON reader casts numbers to text and fails on mixed types in unused fields.

    Args:
        open_file: opens the file.
        name: name of the file in messages.

    Raises:
        DataError: the file is damaged, or a line is not JSON.
    """
    with naming_damage(name), open_file() as file:
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
        raise DataError(f"{name} cannot be read ({error}): download it again") from None


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
            f"{LARGEST_RATIO} times as many: it is not text, do not use it"
        )


def _json_lines(path: Path) -> Iterator[str]:
    open_file: Opener = partial(path.open, "rb")
    if path.name.lower().endswith(".gz"):
        open_file = partial(gzip.open, path)
        unpacked = 0
        with naming_damage(path), gzip.open(path) as file:
            for block in iter(partial(file.read, 1 << 20), b""):
                unpacked += len(block)
                refuse_bomb(path, unpacked)
    for where, record in read_json_lines(open_file, str(path)):
        text = record.get(FIELD) if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise DataError(f"{where} has no text: expected an object with a string '{FIELD}'")
        yield encodable(text)


def _table(path: Path) -> Iterator[str]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=16, columns=[FIELD]):
                for text in batch.column(FIELD).to_pylist():
                    if not isinstance(text, str):
                        raise DataError(f"{path} has a row whose column '{FIELD}' is not a string")
                    yield text
    except (pyarrow.ArrowException, KeyError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{path} cannot be read as a table with a column '{FIELD}' ({reason}): download it "
            "again"
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
