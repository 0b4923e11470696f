"""Rows on disk through the `datasets` library: written once, memory-mapped, offline."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pe_bench.errors import DataError
from pe_bench.system.files import saving

WRITTEN_AT_ONCE = 32  # rows held in memory: one may be a whole book
SHOWN_FROM = 32 << 20  # bytes; less is ready before a progress bar could be read


@contextlib.contextmanager
def quiet_library(cache: Path, size: int = 0) -> Iterator[Any]:
    """Import `datasets`, with all its files in a cache folder, and without its log.

    Args:
        cache: the folder.
        size: bytes that are to be read; much on a terminal gets progress bars.
    """
    import datasets  # late: half a second, and synthetic tasks need none of it

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
    """Return a memory-mapped `Dataset` of text columns, written where an earlier run did not.

    The library writes into a folder `*.incomplete` and renames it, so what a killed run has left
    is never read.

    Args:
        name: stands for the content, at most 64 characters.
        columns: names of the columns.
        rows: makes the rows; called only where there is something to write.
        cache: the data set goes into its subfolder `datasets`.
        empty: what to say where there is no row.
        size: bytes that are to be read.

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

    with quiet_library(cache, size) as datasets, saving(cache / "datasets" / name):
        text = datasets.Value("string")
        try:
            return datasets.Dataset.from_generator(
                some_rows,
                features=datasets.Features(dict.fromkeys(columns, text)),
                fingerprint=name,
                writer_batch_size=WRITTEN_AT_ONCE,
            )
        except datasets.exceptions.DatasetGenerationError as error:
            raise (error.__cause__ or error) from None
