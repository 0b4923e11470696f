"""`pe-bench export`: all numbers as one table, or all runs in a few files to send."""

import argparse
import io
from pathlib import Path

from pe_bench.errors import InputError, SavingError
from pe_bench.system.console import info, warn

TABLES = (".parquet", ".csv")


def main(args: argparse.Namespace) -> int:
    """Write what a command asks for and print what it is."""
    target: Path = args.target
    if target.suffix not in (*TABLES, ""):
        raise InputError(f"export writes {' or '.join(TABLES)}, or a folder, not {target.suffix}")
    try:
        return _write_table(target, args.results) if target.suffix else _write_folder(args)
    except SavingError as error:
        raise InputError(str(error)) from None


def _write_table(target: Path, results: Path) -> int:
    from pe_bench.reporting.frames import tidy_rows
    from pe_bench.system.files import write_atomic

    rows = tidy_rows(results)
    content = io.BytesIO()
    if target.suffix == ".csv":
        rows.to_csv(content, index=False)
    else:
        rows.to_parquet(content, index=False)
    write_atomic(target, content.getvalue())
    runs = rows.groupby(["task", "encoding", "run"]).ngroups
    info(f"{target}: {len(rows):,} rows of {runs} runs, {len(rows.columns)} columns")
    return 0


def _write_folder(args: argparse.Namespace) -> int:
    from pe_bench.reporting.frames import finished_runs
    from pe_bench.results.export import write_export
    from pe_bench.results.store import read_records

    if args.target.resolve() == args.results.resolve():
        raise InputError(f"{args.target} is the results folder: give another one")
    records = read_records(args.results)
    finished = finished_runs(records)
    if not finished:
        raise InputError(f"there are no finished runs in {args.results}: give --results")
    for record in records:
        if record.status == "damaged":
            warn(f"{record.reason}: left out")
    write_export(args.target, finished)
    info(
        f"{args.target}: {len(finished)} runs; where it goes, "
        f"pe-bench merge {args.target} brings them into ./results"
    )
    return 0
