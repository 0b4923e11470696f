"""Learning curves: loss, learning rate, gradient norm and speed over the steps of a training."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from pe_bench.results.parquet import read_table
from pe_bench.system.files import write_atomic

OF_A_RUN = ("phase", "subset")
OF_AN_EXPORT = ("task", "encoding", "run", *OF_A_RUN)

CurveKey = tuple[str, ...]
"""Key of a curve: values of `OF_A_RUN` or of `OF_AN_EXPORT`."""


@dataclass(frozen=True)
class LearningCurve:
    """Points of one training, about 200; each summarizes an interval of steps.

    Attributes:
        step: optimizer steps done at the end of the interval.
        loss: mean training loss over the steps of the interval, nats per target.
        lr: learning rate of the last step of the interval.
        grad_norm: mean norm of the gradient over the steps of the interval, before clipping.
        tokens_per_second: speed, padding included; nan if it was not measured.
    """

    step: tuple[int, ...] = ()
    loss: tuple[float, ...] = ()
    lr: tuple[float, ...] = ()
    grad_norm: tuple[float, ...] = ()
    tokens_per_second: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.step)

    def to_json(self) -> dict[str, list[float]]:
        """Return the columns as lists."""
        return {name: list(column) for name, column in asdict(self).items()}

    @classmethod
    def from_json(cls, content: Mapping[str, Sequence[Any]]) -> "LearningCurve":
        """Return the curve from the result of `to_json`."""
        return cls(**{name: tuple(content[name]) for name in POINT})


POINT = tuple(field.name for field in fields(LearningCurve))


def write_curve_file(
    path: Path, curves: Mapping[CurveKey, LearningCurve], names: Sequence[str]
) -> None:
    """Write curves as a Parquet file, a row for each point.

    Args:
        path: path of the file, which is written atomically.
        curves: curves by key.
        names: names of the parts of a key, `OF_A_RUN` or `OF_AN_EXPORT`; they become columns.
    """
    import pyarrow as pa
    from pyarrow import parquet

    table: dict[str, Any] = {}
    for index, name in enumerate(names):
        labels: list[str] = []
        for key, curve in curves.items():
            labels += [key[index]] * len(curve)
        table[name] = pa.array(labels, pa.string())
    for name in POINT:
        points: list[float] = []
        for curve in curves.values():
            points += getattr(curve, name)
        table[name] = pa.array(points, pa.int64() if name == "step" else pa.float32())
    content = pa.BufferOutputStream()
    floats = [name for name in POINT if name != "step"]
    parquet.write_table(
        pa.table(table),
        content,
        compression="zstd",
        use_dictionary=[*names, "step"],
        use_byte_stream_split=floats,  # makes the file a third smaller
    )
    write_atomic(path, content.getvalue().to_pybytes())


def read_curve_file(path: Path, names: Sequence[str]) -> dict[CurveKey, LearningCurve]:
    """Read a file of `write_curve_file`; return no curves if the file does not exist.

    Raises:
        InputError: the file cannot be read.
    """
    import pyarrow as pa

    if not path.exists():  # for example, a run without training
        return {}
    labels = [(name, pa.string()) for name in names]
    points = [(name, pa.int64() if name == "step" else pa.float32()) for name in POINT]
    table = read_table(path, pa.schema([*labels, *points]))
    keys = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    columns = {name: table.column(name).to_pylist() for name in POINT}
    found: dict[CurveKey, LearningCurve] = {}
    start = 0
    for key, same in groupby(keys):
        end = start + sum(1 for _ in same)
        found[key] = LearningCurve(**{name: tuple(columns[name][start:end]) for name in POINT})
        start = end
    return found
