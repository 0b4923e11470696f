"""Recorded runs written by hand, for tests of code that reads results."""

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_bench.reporting.report import write_report
from pe_bench.reporting.tables import Table, read_tables
from pe_bench.results import row_files, store
from pe_bench.results.item_files import write_items
from pe_bench.results.items import Items, RowKey
from pe_bench.results.measurement import CSV_COLUMNS, Measurement
from pe_bench.results.record import RunRecord
from pe_bench.results.views import Column, Curve, Headline, View
from pe_bench.system.files import slug
from pe_bench.system.sealed import write_sealed

Rows = Sequence[Measurement]
SCORE = Measurement("all", "bits_per_byte", 1.0, 9)
CURVE = [
    Measurement("test", "bits_per_byte", 2 + n / 64, 9, 0.25, n, "", 1.51 + n / 64, 2.49 + n / 64)
    for n in (8, 16, 32)
]
TEST: tuple[View, ...] = (Column("test", "bits_per_byte"), Curve("test", "bits_per_byte"))
SHOWN = {"near": "f1", "close": "em", "far": "rgm"}
PARTS = [
    Measurement(s, m, 23.451, 9, 1.256, len(s) ** 2 // 2 + 4, "", 21, 26) for s, m in SHOWN.items()
]
PART_COLUMNS = tuple(Column(subset, metric) for subset, metric in SHOWN.items())
HEADING = "all (bits per byte ↓)"


def write_rows(path: Path, rows: Rows, **names: Any) -> None:
    row_files.write_rows(path, [names | asdict(row) for row in rows], CSV_COLUMNS)


def put(root: Path, encoding: str, rows: Rows, seed: int = 0, **changed: Any) -> Path:
    """Write a run as the engine records it. Tables group by the digest alone."""
    fields: dict[str, Any] = {
        "status": "done",
        "task": "lm",
        "encoding": encoding,
        "seed": seed,
        "preset": "quick",
        "protocol": "strict",
        "data": {"label": "builtin"},
        "settings_digest": "5e77",
        "encoding_version": "0",
        "headline": Headline("bits_per_byte", "all"),
        "views": TEST,
        "axes": {"length": "tokens per window", "second": "depth"},
        "max_train_axis": 16,
        "environment": {"device": "CPU", "git": {"commit": "c" * 40, "dirty": True}},
        "parameters": 1234,
    }
    record = RunRecord(**(fields | changed))
    digest = f"{record.settings_digest}{record.encoding_version}"
    folder = root / "runs" / "lm" / slug(encoding) / f"seed{seed}-{digest}"
    write_rows(folder / "rows.csv", rows, task="lm", encoding=encoding, seed=seed)
    write_record(folder, record)
    return folder


def write_record(folder: Path, record: RunRecord) -> None:
    """Write the record of a run, after changes of its other files."""
    write_sealed(folder / "run.json", record.to_json(), owner=store.owner_of(folder))


def put_seeds(root: Path, encoding: str, values: Sequence[float], **changed: Any) -> None:
    """Write runs whose headline is the mean of twenty items of different difficulty."""
    for seed, value in enumerate(values):
        folder = put(root, encoding, [replace(SCORE, metric="f1", value=value)], seed,
                     headline=Headline("f1", "all"), **changed)  # fmt: skip
        each = value + np.linspace(-9, 9, 20)
        write_items(folder / "items.parquet", [Items("test", "f1", each, groups=(RowKey("all"),))])


def read_table(root: Path) -> Table:
    (table,) = read_tables(root)
    return table


def report(root: Path) -> tuple[str, pd.DataFrame]:
    write_report(root)
    text = (root / "leaderboard.md").read_text(encoding="utf-8")
    return text, pd.read_csv(root / "leaderboard.csv", dtype={"settings": str})


def cells(text: str) -> list[dict[str, str]]:
    """Return the lines of the tables in a text, by heading."""
    found: list[dict[str, str]] = []
    for line in re.findall(r"^\| (.*) \|$", text, re.MULTILINE):
        cells = [cell.strip() for cell in line.split(" | ")]
        if cells[0] == "encoding":
            head = cells
        elif cells[0] != "---" and "verdict at 5 %" not in head:
            found.append(dict(zip(head, cells, strict=True)))
    return found
