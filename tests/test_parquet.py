"""Parquet files of other programs are read within limits of type and size."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from pe_bench.errors import InputError
from pe_bench.results import parquet as own
from pe_bench.results.parquet import read_table

SCHEMA = pa.schema([("name", pa.string()), ("value", pa.float64())])
NOISE = np.random.default_rng(0).random(15_000).tolist()  # 120 kB that are not compressed
GOOD: dict[str, Any] = {"name": ["a", "b", "a"], "value": [0.5, 1.0, 2.0]}


def write(path: Path, columns: dict[str, Any]) -> Path:
    parquet.write_table(pa.table(columns), path)
    return path


def test_a_table_is_read_with_further_columns_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", GOOD | {"more": [1, 2, 3]})
    assert read_table(path, SCHEMA).to_pydict() == GOOD


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"name": ["x" * 1000] * 1000, "value": [0.5] * 1000}, "unpacks to more than"),  # a text
        ({"name": ["x"] * 20_000, "value": [0.5] * 20_000}, "unpacks to more than"),  # a number
        ({"name": ["x"] * 15_000, "value": NOISE}, "larger than"),
        (GOOD | {"value": [0.5, None, 1.0]}, "has nulls in the column value"),
        (GOOD | {"name": [None, "a", "b"]}, "has nulls in the column name"),
        (GOOD | {"value": [1, 2, 3]}, "has a column value of type int64 instead of double"),
        (GOOD | {"name": ["a\x1b", "b", "c"]}, "has control characters in the column name"),
        ({"name": ["a"]}, "lacks the columns value"),
    ],
)
def test_what_is_not_valid(
    columns: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "LARGEST", 100_000)
    path = write(tmp_path / "t.parquet", columns)
    with pytest.raises(InputError, match=says):
        read_table(path, SCHEMA)


def test_too_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.parquet", GOOD)
    monkeypatch.setattr(own, "ROWS", 3)
    read_table(path, SCHEMA)
    monkeypatch.setattr(own, "ROWS", 2)
    with pytest.raises(InputError, match="unpacks to more than 2 rows"):
        read_table(path, SCHEMA)
