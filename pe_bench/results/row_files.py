"""Writing and reading of rows, one line of a CSV file for each."""

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from pe_bench.errors import InputError
from pe_bench.results.measurement import CSV_COLUMNS, Measurement, Status
from pe_bench.system.files import LARGEST, read_regular, write_atomic
from pe_bench.system.schema import is_line
from pe_bench.system.sealed import DamagedError

FLOATS = ("value", "stderr", "ci_low", "ci_high")
FLOAT = re.compile("[-+.e0-9inf ]*")  # no "nan", which is an empty cell; a perplexity may overflow
INTEGERS = ("seed", "length", "n")
INTEGER = re.compile("[0-9 ]*")
DIGITS = 15  # a float represents all integers with up to 15 digits exactly


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> None:
    """Write a tidy CSV file, atomically. None and nan become empty cells.

    The file is compressed if its name ends in .gz.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        missing = {name: "" for name, value in row.items() if _is_missing(value)}
        writer.writerow({**row, **missing})
    content = text.getvalue().encode()
    write_atomic(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _is_missing(value: Any) -> bool:
    """Return whether a cell is None or nan."""
    return value is None or (isinstance(value, float | np.floating) and math.isnan(value))


def read_lines(path: Path) -> list[list[str]]:
    """Return the lines of a file of `write_rows`, with cells as in `CSV_COLUMNS`.

    All rows are read with this function, so that all cells are validated.

    Raises:
        InputError: the file is missing or invalid.
    """
    try:
        content = read_regular(path, LARGEST)
        if path.suffix == ".gz":
            content = _unpack(content)
        text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="")
        header, *lines = csv.reader(text, strict=True)
        indices = [header.index(name) for name in CSV_COLUMNS]
        widths = set(map(len, lines)) - {len(header)}
        if widths:
            raise ValueError(f"a line of {min(widths)} cells under {len(header)} columns")
        if header != list(CSV_COLUMNS):
            ordered = []
            for line in lines:
                ordered.append([line[index] for index in indices])
            lines = ordered
        for name, column in zip(CSV_COLUMNS, zip(*lines, strict=True), strict=bool(lines)):
            _check_cells(name, set(column))
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
        raise InputError(f"cannot read {path} ({error}): remove {path.parent}") from None
    return lines


def _unpack(content: bytes) -> bytes:
    with gzip.open(io.BytesIO(content)) as file:
        unpacked = file.read(LARGEST + 1)
    if len(unpacked) > LARGEST:
        raise ValueError(f"it unpacks to more than {LARGEST >> 20} MiB")
    return unpacked


def _check_cells(name: str, cells: set[str]) -> None:
    """Check the distinct cells of a column. They are joined first, which is faster.

    Raises:
        ValueError: a cell is invalid in this column.
    """
    joined = " ".join(cells)
    if name in FLOATS:
        valid = FLOAT.fullmatch(joined) is not None
        if valid:
            for cell in cells - {""}:
                float(cell)
    elif name in INTEGERS:
        valid = INTEGER.fullmatch(joined) is not None and max(map(len, cells), default=0) <= DIGITS
    elif name == "status":
        valid = cells <= {*get_args(Status)}
    else:
        valid = is_line(joined)
    if not valid:
        raise ValueError(f"a cell of the column {name} is invalid")


def read_measurements(path: Path) -> list[Measurement]:
    """Return the rows of a file of `write_rows`.

    Raises:
        InputError: the file is missing or invalid.
    """
    found = []
    for line in read_lines(path):
        row = dict(zip(CSV_COLUMNS, line, strict=True))
        found.append(
            Measurement(
                subset=row["subset"],
                metric=row["metric"],
                value=float(row["value"] or "nan"),
                n=int(row["n"] or 0),
                stderr=float(row["stderr"] or "nan"),
                length=int(row["length"]) if row["length"] else None,
                second_axis=row["second_axis"],
                ci_low=float(row["ci_low"] or "nan"),
                ci_high=float(row["ci_high"] or "nan"),
                status=cast(Status, row["status"]),
            )
        )
    return found


def check_columns(path: Path) -> None:
    """Check that rows have all columns: earlier versions had fewer.

    Raises:
        DamagedError: a column is missing.
    """
    with path.open(encoding="utf-8", newline="") as file:
        header = next(csv.reader(file), [])
    absent = [name for name in CSV_COLUMNS if name not in header]
    if absent:
        raise DamagedError(path, f"lacks the columns {', '.join(absent)}, as in an earlier version")
