"""Files that hold many documents: JSON lines, plain or gzipped, and parquet tables."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from pe_bench.errors import InputError

LINES = (".jsonl", ".jsonl.gz", ".json.gz")
SUFFIXES = (*LINES, ".parquet")
FIELD = "text"  # where public corpora keep a document


def is_packed(path: Path) -> bool:
    """Whether a file's name says that it holds documents rather than being one."""
    return path.name.lower().endswith(SUFFIXES)


def documents(path: Path) -> Iterator[bytes]:
    """Yields the UTF-8 bytes of each document of a file, in its order; empty ones are left out.

    Raises:
        InputError: the file is damaged, or a record has no text.
    """
    rows = _parquet(path) if path.name.lower().endswith(".parquet") else _lines(path)
    return (text.encode(errors="replace") for text in rows if text)


def _lines(path: Path) -> Iterator[str]:
    try:
        zipped = path.name.lower().endswith(".gz")
        with gzip.open(path) if zipped else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _text(line, f"{path}:{number}")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is damaged ({error}): get it again") from None


def _text(line: bytes, where: str) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where} is not JSON ({error}): expected one object per line") from None
    text = record.get(FIELD) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise InputError(f"{where} has no text: expected an object with a string '{FIELD}'")
    return text


def _parquet(path: Path) -> Iterator[str]:
    try:
        # It comes with evaluate.
        import pyarrow as arrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"{path} needs pyarrow: run pip install pyarrow, or give JSON lines"
        ) from None
    try:
        table = parquet.ParquetFile(path)
        for batch in table.iter_batches(batch_size=16, columns=[FIELD]):
            for text in batch.column(FIELD).to_pylist():
                if not isinstance(text, str):
                    raise InputError(f"{path} has a row whose column '{FIELD}' is not a string")
                yield text
    except (arrow.ArrowException, KeyError, OSError) as error:
        raise InputError(
            f"{path} cannot be read as a table with a column '{FIELD}' ({error}): get it again"
        ) from None
