"""Rows on disk through the `datasets` library: written once, memory-mapped, offline."""

import contextlib
import glob
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pe_bench.errors import DataError, InputError
from pe_bench.system.cache_entries import mark_used
from pe_bench.system.files import saving
from pe_bench.system.locks import locked
from pe_bench.system.sealed import read_if_intact, read_sealed, write_sealed

WRITTEN_AT_ONCE = 32  # rows held in memory: one may be a whole book
SHOWN_FROM = 32 << 20  # bytes; smaller sizes finish before a progress bar is useful


def keep_tables(seal: Path, make: Callable[[], Any], what: str) -> Any:
    """Return a `Dataset` from disk, after writing it if it is missing or incomplete.

    Args:
        seal: path of the record with the checksums of the files, which are in the same folder.
        make: writes the files of the data set, over existing ones.
        what: name of the data set in messages.
    """

    def read() -> dict[str, Any]:
        return read_sealed(seal, owner=seal.stem)

    kept = read_if_intact(read, keep=False)
    if kept is None:
        with saving(seal.parent):
            seal.parent.mkdir(parents=True, exist_ok=True)
            with locked(seal.with_suffix(".lock"), what):
                kept = read_if_intact(read, keep=False)  # another process may have made it
                if kept is None:
                    made = _made(make)
                    files = [Path(file["filename"]).resolve() for file in made.cache_files]
                    tables = [file.relative_to(seal.parent.resolve()) for file in files]
                    inner = [seal.parent / table for table in tables]
                    write_sealed(seal, {"tables": tables}, owner=seal.stem, files=inner)
                    return made
    mark_used(seal)
    from datasets import Dataset, concatenate_datasets

    tables = [Dataset.from_file(str(seal.parent / table)) for table in kept["tables"]]
    return concatenate_datasets(tables)


def _made(make: Callable[[], Any]) -> Any:
    """Call `make` and raise the original error of a row or of the system.

    On a full disk, the library continues to write to the closed file, which raises a second error.
    """
    try:
        return make()
    except InputError:
        raise
    except Exception as error:
        cause = error.__cause__ or error  # the library wraps errors of rows
        first: BaseException | None = cause
        while first is not None and not isinstance(first, OSError):
            first = first.__cause__ or first.__context__
        raise (cause if first is None or isinstance(cause, InputError) else first) from None


@contextlib.contextmanager
def quiet_library(cache: Path, size: int = 0) -> Iterator[Any]:
    """Import `datasets` with all its files in a cache folder and its log disabled.

    Args:
        cache: the folder.
        size: number of bytes to read; large sizes have progress bars in a terminal.
    """
    import datasets  # late: it takes 0.5 s, and synthetic tasks do not need it

    logging, config = datasets.logging, datasets.config
    verbosity, folder = logging.get_verbosity(), config.HF_DATASETS_CACHE
    hidden = datasets.are_progress_bars_disabled()
    logging.set_verbosity(logging.CRITICAL)
    config.HF_DATASETS_CACHE = cache / "datasets"
    if size < SHOWN_FROM or not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        yield datasets
    finally:
        logging.set_verbosity(verbosity)
        config.HF_DATASETS_CACHE = folder
        if not hidden:
            datasets.enable_progress_bars()


def keep_rows(
    name: str,
    columns: Sequence[str],
    rows: Callable[[], Iterator[dict[str, str]]],
    cache: Path,
    *,
    empty: str,
    size: int = 0,
) -> Any:
    """Return a memory-mapped `Dataset` of text columns, after writing it if it is missing.

    Args:
        name: identifies the content, at most 64 characters.
        columns: names of the columns.
        rows: returns the rows; called only if the data set must be written.
        cache: the data set goes into its subfolder `datasets`.
        empty: message of the error if there is no row.
        size: number of bytes to read.

    Raises:
        DataError: `rows` raises it, or there is no row.
        SavingError: the rows cannot be written.
    """

    def some_rows() -> Iterator[dict[str, str]]:
        row = None
        for row in rows():
            yield row
        if row is None:
            raise DataError(empty)

    folder = cache / "datasets"

    def make() -> Any:
        for old in folder.glob(f"generator/*fingerprint={glob.escape(name)}"):
            shutil.rmtree(old)  # a damaged or partial copy, which the library would use
        return datasets.Dataset.from_generator(
            some_rows,
            features=datasets.Features(dict.fromkeys(columns, datasets.Value("string"))),
            fingerprint=name,
            writer_batch_size=WRITTEN_AT_ONCE,
        )

    with quiet_library(cache, size) as datasets:
        return keep_tables(folder / f"{name}.json", make, "the same text")
