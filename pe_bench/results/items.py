"""Scores of single items; rows are computed from them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from pe_bench.errors import InputError
from pe_bench.results.intervals import Z95, Numbers, average, ratio, sum_clusters, wilson
from pe_bench.results.measurement import Measurement
from pe_bench.results.metrics import Metric, describe_metric
from pe_bench.results.parquet import read_table
from pe_bench.system.files import write_atomic
from pe_bench.system.schema import WrongError, is_line

Floats = npt.NDArray[np.floating]
FEW = 256  # maximum number of different values for which dictionary encoding is smaller
Combine = Literal["mean", "exp", "geometric mean"]
COMBINE = get_args(Combine)


class RowKey(NamedTuple):
    """Key of a row within its run.

    Attributes:
        subset, metric: subset and metric of the row; an empty metric in `Items.groups` stands for
            the metric of the items.
        length, second_axis: position of the row on the axes of the task.
    """

    subset: str
    metric: str = ""
    length: int | None = None
    second_axis: str = ""


@dataclass(frozen=True, eq=False)
class Items:
    """The scores of the items at one evaluation point, a cell.

    The value of the cell is computed from `sum(values) / sum(weights)`. A summary row is the mean
    over the cells that list it in `groups`.

    Attributes:
        subset, metric, length, second_axis: key of the cell's row.
        values: (N,) scores in the unit of the metric, 0 or 100 if answers are either right or
            wrong; or (N, K), K scores of each item.
        weights: (N,) weights of the items, such as their bytes; None: equal weights.
        clusters: (N,) ids of the clusters of items, such as documents; None: items are
            independent.
        groups: summary rows that include the cell.
        combine: function of the means that gives the value: "mean": the mean itself; "exp": its
            exponential; "geometric mean": the geometric mean of K means.
    """

    subset: str
    metric: str
    values: Floats
    weights: Floats | None = None
    length: int | None = None
    second_axis: str = ""
    clusters: npt.NDArray[np.integer] | None = None
    groups: tuple[RowKey, ...] = ()
    combine: Combine = "mean"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Items) or _labels(self) != _labels(other):
            return False
        arrays = ("values", "weights", "clusters")
        pairs = [(getattr(self, name), getattr(other, name)) for name in arrays]
        return all(np.array_equal(a, b) if a is not None else b is None for a, b in pairs)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def key(self) -> RowKey:
        """Key of the cell's row."""
        return RowKey(self.subset, self.metric, self.length, self.second_axis)

    @property
    def value(self) -> float:
        """Value of the cell's row."""
        above, below = self.cluster_sums()
        return float(combined(above.sum(0) / below.sum(), self.combine))

    def cluster_sums(self) -> tuple[Floats, Floats]:
        """Return the sums over each cluster, of values (C, K) and of weights (C,)."""
        n = len(self.values)
        values = self.values.reshape(n, -1)  # (N, K)
        weights = np.ones(n) if self.weights is None else self.weights
        *columns, below = sum_clusters([*values.T, weights], self.clusters)
        return np.stack(columns, axis=1), below

    def row(self, metric: Metric | None = None) -> Measurement:
        """Return the cell's row, with a standard error and an interval over clusters.

        A proportion has a Wilson interval. With clusters, the interval uses an effective number of
        items: the number of independent items that would give the standard error over clusters.

        Args:
            metric: the metric of the values, which says whether 100 is the largest one; None: as in
                `METRICS`.
        """
        percent = (metric or describe_metric(self.metric)).ends_at_100
        if self.combine != "mean":
            return self._jackknifed()
        found = ratio(
            self.subset,
            self.metric,
            self.values,
            np.ones(len(self)) if self.weights is None else self.weights,
            self.clusters,
            n=len(self) if self.weights is None else round(float(self.weights.sum())),
            length=self.length,
            second_axis=self.second_axis,
            percent=percent,
        )
        if not percent or self.weights is not None or not np.isin(self.values, (0, 100)).all():
            return found
        share = found.value / 100
        independent = float(len(self))
        if self.clusters is not None:
            independent = float(len(np.unique(self.clusters)))
            if found.stderr > 0:
                independent = share * (1 - share) / (found.stderr / 100) ** 2
        low, high = wilson(share, independent)
        return replace(found, ci_low=100 * low, ci_high=100 * high)

    def _jackknifed(self) -> Measurement:
        above, below = self.cluster_sums()
        count = len(below)
        value = self.value
        stderr = math.nan
        if count > 1:
            rest = (above.sum(0) - above) / (below.sum() - below)[:, None]
            without_one = combined(np.maximum(rest, 0), self.combine)
            stderr = float(np.sqrt((count - 1) * without_one.var()))
        return Measurement(
            self.subset,
            self.metric,
            value,
            len(self),
            stderr,
            self.length,
            self.second_axis,
            ci_low=max(value - Z95 * stderr, 0.0) if count > 1 else math.nan,
            ci_high=value + Z95 * stderr,
        )


def combined(means: Floats, combine: Combine) -> Floats:
    """Combine means (..., K) into values (...)."""
    if combine == "geometric mean":
        return np.asarray(means.prod(axis=-1) ** (1 / means.shape[-1]))
    one: Floats = means[..., 0]
    with np.errstate(over="ignore"):
        return np.exp(one) if combine == "exp" else one


def groups_of(items: Iterable[Items]) -> dict[RowKey, list[Items]]:
    """Return the cells of each summary row."""
    groups: dict[RowKey, list[Items]] = {}
    for cell in items:
        for key in cell.groups:
            key = key._replace(metric=key.metric or cell.metric)
            groups.setdefault(key, []).append(cell)
    return groups


def recompute(items: Iterable[Items]) -> dict[RowKey, float]:
    """Return the values of all rows that are computed from items: cells and summaries."""
    cells = list(items)
    values = {cell.key: cell.value for cell in cells}
    for key, members in groups_of(cells).items():
        values[key] = sum(cell.value for cell in members) / len(members)
    return values


def average_draws(
    rows: Sequence[Sequence[Measurement]], items: Sequence[Sequence[Items]]
) -> tuple[list[Measurement], list[Items]]:
    """Return the means of evaluations that differ only in the frozen random choices of an encoding.

    The scores of each item are averaged. A value that is not a plain mean of items, such as a
    perplexity, is computed from the averaged scores.
    """
    if len(rows) == 1:
        return list(rows[0]), list(items[0])
    averaged = []
    values: dict[RowKey, float] = {}
    for same in zip(*items, strict=True):
        cell = replace(same[0], values=np.mean([each.values for each in same], axis=0))
        averaged.append(cell)
        if cell.combine != "mean":
            values[cell.key] = cell.value
    means = []
    for row in average(rows):
        key = RowKey(row.subset, row.metric, row.length, row.second_axis)
        value = values.get(key, row.value)
        # The mean interval can lie beside a value of averaged scores, which is not their mean.
        low, high = np.fmin(row.ci_low, value), np.fmax(row.ci_high, value)
        if not math.isnan(row.ci_low):
            row = replace(row, ci_low=float(low), ci_high=float(high))
        means.append(replace(row, value=value))
    return means, averaged


def write_items(
    path: Path, items: Sequence[Items], columns: Mapping[str, Sequence[Any]] | None = None
) -> None:
    """Write items as a Parquet file, a row for each cell.

    Args:
        path: path of the file, which is written atomically.
        items: items of the cells.
        columns: additional columns by name.
    """
    import pyarrow as pa
    from pyarrow import parquet

    table: dict[str, Any] = {name: list(column) for name, column in (columns or {}).items()}
    for name in ("subset", "metric", "second_axis", "combine"):
        table[name] = [getattr(cell, name) for cell in items]
    table["length"] = pa.array([cell.length for cell in items], pa.int64())
    groups = []
    for cell in items:
        groups.append([key._asdict() for key in cell.groups])
    table["groups"] = pa.array(groups, pa.list_(_row_key_type(pa)))
    table["scores"] = [cell.values.reshape(len(cell), -1).shape[1] for cell in items]
    flat = [np.asarray(cell.values, np.float32).ravel() for cell in items]
    table["values"] = pa.array(flat, pa.list_(pa.float32()))
    weights = [None if c.weights is None else c.weights.astype(np.float32) for c in items]
    table["weights"] = pa.array(weights, pa.list_(pa.float32()))
    clusters = [None if c.clusters is None else _numbered(c.clusters) for c in items]
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
    """Return the items and the additional columns of each cell.

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
        rest = table.drop_columns(["values", "weights", "clusters", "groups"]).to_pylist()
        cells = zip(rest, keys, *columns, strict=True)
        return [_make_cell(*cell) for cell in cells]
    except (WrongError, pa.ArrowException) as error:
        raise InputError(f"cannot read {path} ({error}): remove that file") from None


def _make_cell(
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


def _labels(items: Items) -> tuple[Any, ...]:
    return (items.key, items.groups, items.combine)


def _row_key_type(pa: Any) -> Any:
    texts = {name: pa.string() for name in ("subset", "metric", "second_axis")}
    return pa.struct([*texts.items(), ("length", pa.int64())])
