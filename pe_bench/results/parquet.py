"""Reading of Parquet files from untrusted sources, with limits of type and size."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pe_bench.errors import InputError
from pe_bench.system.files import LARGEST, read_regular
from pe_bench.system.schema import WrongError, is_line

ROWS = 2**23


def read_table(path: Path, schema: Any, nullable: Sequence[str] = ()) -> Any:
    """Return the table in a Parquet file.

    Args:
        path: path of the file.
        schema: expected `pyarrow.Schema`; columns of text are returned as dictionaries.
        nullable: names of the columns that may have nulls.

    Raises:
        InputError: the file cannot be read, is too large, or has unexpected columns.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        # Not `parquet.read_table`, which would read partitions from the folder names of the path.
        content = pa.BufferReader(read_regular(path, LARGEST))
        texts = [field.name for field in schema if field.type == pa.string()]
        file = parquet.ParquetFile(content, read_dictionary=texts)
        _check_size(file.metadata)
        present = file.schema_arrow.names
        absent = [name for name in schema.names if name not in present]
        if absent:
            raise WrongError(f"lacks the columns {', '.join(absent)}")
        table = file.read(schema.names, use_threads=False)
        if len(table):  # an empty column may have no type
            for field in schema:
                _check_column(field, table.column(field.name), field.name in nullable)
    except KeyError as error:  # a missing column among those that are read as dictionaries
        raise InputError(f"cannot read {path} (it lacks {error.args[0]!r}): remove it") from None
    except (OSError, WrongError, pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path} ({error}): remove that file") from None
    return table


def _check_size(metadata: Any) -> None:
    """Check the size of the unpacked content, before anything is unpacked."""
    size = 0
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            size += max(column.total_uncompressed_size, 8 * column.num_values)
    if size > LARGEST or metadata.num_rows > ROWS:
        raise WrongError(f"unpacks to more than {ROWS:,} rows or {LARGEST >> 20} MiB")


def _check_column(field: Any, column: Any, nullable: bool) -> None:
    import pyarrow as pa

    if column.null_count and not nullable:
        raise WrongError(f"has nulls in the column {field.name}")
    kind = column.type
    if field.type == pa.string() and pa.types.is_dictionary(kind):
        texts = {text for chunk in column.chunks for text in chunk.dictionary.to_pylist()}
        if not all(map(is_line, texts)):
            raise WrongError(f"has control characters in the column {field.name}")
        if max(map(len, texts), default=0) * len(column) > LARGEST:  # a long text in many rows
            raise WrongError(f"unpacks to more than {LARGEST >> 20} MiB")
    elif not kind.equals(field.type):
        raise WrongError(f"has a column {field.name} of type {kind} instead of {field.type}")
