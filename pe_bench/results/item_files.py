"""Parquet files with the scores of single items, a row for each evaluation point."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pe_bench.errors import InputError
from pe_bench.results.intervals import Numbers
from pe_bench.results.items import COMBINE, Items, RowKey
from pe_bench.results.parquet import read_table
from pe_bench.system.files import write_atomic
from pe_bench.system.schema import WrongError, is_line

FEW = 256  # maximum number of different values for which dictionary encoding is smaller


def write_items(
    path: Path, items: Sequence[Items], columns: Mapping[str, Sequence[Any]] | None = None
) -> None:
    """Write items as a Parquet file, a row for each evaluation point.

    Args:
        path: path of the file, which is written atomically.
        items: items of the evaluation points.
        columns: additional columns by name.
    """
    import pyarrow as pa
    from pyarrow import parquet

    table: dict[str, Any] = {name: list(column) for name, column in (columns or {}).items()}
    for name in ("subset", "metric", "second_axis", "combine"):
        table[name] = [getattr(point, name) for point in items]
    table["length"] = pa.array([point.length for point in items], pa.int64())
    groups = []
    for point in items:
        groups.append([key._asdict() for key in point.groups])
    table["groups"] = pa.array(groups, pa.list_(_row_key_type(pa)))
    table["scores"] = [point.values.reshape(len(point), -1).shape[1] for point in items]
    flat = [np.asarray(point.values, np.float32).ravel() for point in items]
    table["values"] = pa.array(flat, pa.list_(pa.float32()))
    weights = [None if p.weights is None else p.weights.astype(np.float32) for p in items]
    table["weights"] = pa.array(weights, pa.list_(pa.float32()))
    clusters = [None if p.clusters is None else _numbered(p.clusters) for p in items]
    table["clusters"] = pa.array(clusters, pa.list_(pa.int32()))
    content = pa.BufferOutputStream()
    # Dictionary encoding is smallest for few different values (right or wrong). For losses,
    # splitting the bytes into streams saves a third.
    parted = len(np.unique(np.concatenate([np.empty(0, np.float32), *flat]))) > FEW
    parquet.write_table(
        pa.table(table),
        content,
        compression="zstd",
        use_dictionary=[name for name in table if name != "values"] if parted else True,
        use_byte_stream_split=["values.list.element"] if parted else False,
    )
    write_atomic(path, content.getvalue().to_pybytes())


def _numbered(clusters: Numbers) -> Numbers:
    """Number clusters from 0 on if their ids do not fit into 32 bits, such as hashes."""
    if clusters.size and np.abs(clusters).max() > np.iinfo(np.int32).max:
        clusters = np.unique(clusters, return_inverse=True)[1]
    return clusters.astype(np.int32)


def read_items(path: Path) -> list[Items]:
    """Read a file of `write_items`.

    Raises:
        InputError: the file cannot be read.
    """
    return [items for items, _ in read_labelled_items(path)]


def read_labelled_items(
    path: Path, names: Sequence[str] = ()
) -> list[tuple[Items, dict[str, Any]]]:
    """Return the items and the additional columns of each evaluation point.

    Args:
        path: path of the file.
        names: names of the additional columns, which are text.

    Raises:
        InputError: the file cannot be read.
    """
    import pyarrow as pa

    texts = [(name, pa.string()) for name in (*names, "subset", "metric", "second_axis", "combine")]
    numbers = [("length", pa.int64()), ("scores", pa.int64()), ("values", pa.list_(pa.float32()))]
    arrays = [("weights", pa.list_(pa.float32())), ("clusters", pa.list_(pa.int32()))]
    groups = ("groups", pa.list_(_row_key_type(pa)))
    schema = pa.schema([*texts, *numbers, *arrays, groups])
    table = read_table(path, schema, ["length", "weights", "clusters"])
    try:
        columns = [_arrays(table.column(name)) for name in ("values", "weights", "clusters")]
        keys = _row_keys(table.column("groups"))
        labels = table.drop_columns(["values", "weights", "clusters", "groups"]).to_pylist()
        rows = zip(labels, keys, *columns, strict=True)
        return [_make_items(*row) for row in rows]
    except (WrongError, pa.ArrowException) as error:
        raise InputError(f"cannot read {path} ({error}): remove that file") from None


def _make_items(
    labels: dict[str, Any], groups: tuple[RowKey, ...], *arrays: Any
) -> tuple[Items, dict[str, Any]]:
    """Return the items of a row, and its additional columns.

    Raises:
        WrongError: its arrays do not fit together, or a label cannot be one.
    """
    values, weights, clusters = arrays
    scores, combine, length = (labels.pop(name) for name in ("scores", "combine", "length"))
    if scores < 1 or not len(values) or len(values) % scores:
        raise WrongError(
            "has a row whose number of values is not a multiple of its number of scores"
        )
    count = len(values) // scores
    if any(array is not None and len(array) != count for array in (weights, clusters)):
        raise WrongError("has a row with another number of weights or clusters than items")
    if combine not in COMBINE or (length or 0) < 0:
        raise WrongError("has a row with an invalid length or an unknown way to combine scores")
    items = Items(
        labels.pop("subset"),
        labels.pop("metric"),
        values if scores == 1 else values.reshape(-1, scores),
        weights,
        length,
        labels.pop("second_axis"),
        clusters,
        groups,
        combine,
    )
    return items, labels


def _arrays(column: Any) -> list[npt.NDArray[Any] | None]:
    """Convert a column of lists to arrays; None for null."""
    found: list[npt.NDArray[Any] | None] = []
    for chunk in column.chunks:
        flat = chunk.values.to_numpy()
        ends = chunk.offsets.to_numpy()
        absent = chunk.is_null().to_numpy(zero_copy_only=False)
        pairs = zip(ends[:-1], ends[1:], absent, strict=True)
        found += [None if null else flat[start:end] for start, end, null in pairs]
    return found


def _row_keys(column: Any) -> list[tuple[RowKey, ...]]:
    """Convert a column of lists of row keys.

    Raises:
        WrongError: a row key is null, or a label cannot be one.
    """
    found: list[tuple[RowKey, ...]] = []
    for chunk in column.chunks:
        structs = chunk.values
        fields = [structs.field(name).to_pylist() for name in RowKey._fields]
        flat = [RowKey(*values) for values in zip(*fields, strict=True)]
        for key in set(flat):
            texts = (key.subset, key.metric, key.second_axis)
            if not all(map(is_line, texts)) or (key.length or 0) < 0:
                raise WrongError("has a row with invalid groups")
        if structs.null_count:
            raise WrongError("has a row with invalid groups")
        ends = chunk.offsets.to_pylist()
        found += [tuple(flat[start:end]) for start, end in pairwise(ends)]
    return found


def _row_key_type(pa: Any) -> Any:
    texts = {name: pa.string() for name in ("subset", "metric", "second_axis")}
    return pa.struct([*texts.items(), ("length", pa.int64())])
