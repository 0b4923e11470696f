"""`pe-bench export`: all numbers as one table, or all runs in a few files to send."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.commands.command import Command, OptionGroup, results_option
from pe_bench.commands.values import Values
from pe_bench.errors import InputError, SavingError
from pe_bench.option_table import argument
from pe_bench.system.console import info

if TYPE_CHECKING:
    from pe_bench.results.record import RunRecord

TABLES = (".parquet", ".csv")


@dataclass(frozen=True)
class ExportOptions:
    """The options of `pe-bench export`."""

    target: Path = argument("the table to write, or a folder", "FILE")
    results: Path = results_option()


def main(values: Values) -> int:
    """Write the table or the folder, and print its size."""
    options = values.make(ExportOptions)
    target, results = options.target, options.results
    if target.suffix not in (*TABLES, ""):
        raise InputError(f"export writes {' or '.join(TABLES)}, or a folder, not {target.suffix}")
    if target.resolve() == results.resolve():
        raise InputError(f"{target} is the results folder: give another one")
    from pe_bench.reporting.frames import finished_runs
    from pe_bench.results.reading import reading

    try:
        with reading(results) as records:
            if not finished_runs(records):
                raise InputError(f"there are no finished runs in {results}: give --results")
            (_write_table if target.suffix else _write_folder)(target, records)
    except SavingError as error:
        raise InputError(str(error)) from None
    return 0


def _write_table(target: Path, records: "Sequence[RunRecord]") -> None:
    from pe_bench.reporting.frames import tidy_rows
    from pe_bench.system.files import write_atomic

    rows = tidy_rows(records)
    content = io.BytesIO()
    if target.suffix == ".csv":
        rows.to_csv(content, index=False)
    else:
        rows.to_parquet(content, index=False)
    write_atomic(target, content.getvalue())
    runs = rows.groupby(["task", "encoding", "run"]).ngroups
    info(f"{target}: {len(rows):,} rows of {runs} runs, {len(rows.columns)} columns")


def _write_folder(target: Path, records: "Sequence[RunRecord]") -> None:
    from pe_bench.reporting.frames import finished_runs
    from pe_bench.results.export import write_export

    finished = finished_runs(records)
    write_export(target, finished)
    info(
        f"{target}: {len(finished)} runs; where it goes, "
        f"pe-bench merge {target} brings them into ./results"
    )


COMMAND = Command(
    name="export",
    main=main,
    help="all numbers as one table, or all runs in a few files to send",
    usage="pe-bench export (FILE.parquet | FILE.csv | DIR) [options]",
    description="""\
Write the rows of all finished runs as one tidy table (docs/results.md has its columns). A name
without .parquet or .csv is a folder: all runs with their items and records in three files, which
report, compare and merge read like runs. `report --export DIR` writes the same with a report.""",
    groups=[OptionGroup(ExportOptions)],
)
