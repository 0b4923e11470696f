"""Measure the time of reports on many runs: the first one, one without new runs, one with a new
run.

    python benchmarks/report.py                         # 25 encodings x 10 tables x 5 seeds

The runs are copies of those in `results/` under other names, with slightly changed numbers so that
no two are equal. Only the times are of interest. They are CPU seconds of a separate process and the
processes that it starts, and wall time.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from pe_bench.reporting.markdown import markdown_table
from pe_bench.results.item_files import write_items
from pe_bench.results.layout import CURVES
from pe_bench.results.learning_curves import OF_A_RUN, write_curve_file
from pe_bench.results.measurement import CSV_COLUMNS
from pe_bench.results.record import RunRecord
from pe_bench.results.row_files import write_rows
from pe_bench.results.run_data import read_run_curves, read_run_items, read_run_rows
from pe_bench.results.store import owner_of, read_records
from pe_bench.system.files import slug
from pe_bench.system.sealed import write_sealed

ROOT = Path(__file__).parents[1]
FOLDERS = ("quick", "scrolls")  # of results/


def main() -> None:
    """Write the runs, report on them three times and print the times."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--encodings", type=int, default=25)
    arguments.add_argument("--tables", type=int, default=10)
    arguments.add_argument("--runs", type=int, help="largest number of runs in all tables")
    arguments.add_argument("--keep", type=Path, help="folder for the runs; it is not removed")
    args = arguments.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp())
    made = make_runs(folder, args.encodings, args.tables, args.runs)
    last = made.pop()
    aside = folder / "aside"
    last.rename(aside)
    rows = [["first report", *_report(folder)], ["nothing new", *_report(folder)]]
    aside.rename(last)
    rows.append(["one more run", *_report(folder)])
    page = (folder / "index.html").stat().st_size / 2**20
    print(f"{len(made) + 1} runs; the page has {page:.1f} MiB\n")
    print(markdown_table(["", "CPU seconds", "seconds", "MiB at most"], rows, "lrrr"))
    if not args.keep:
        shutil.rmtree(folder)


def make_runs(folder: Path, encodings: int, tables: int, most: int | None = None) -> list[Path]:
    """Write runs of the given numbers of encodings and tables, and return their folders.

    Args:
        folder: results folder to write to.
        encodings: number of encodings in each table.
        tables: number of tables.
        most: largest number of runs; the last tables are then incomplete or missing.
    """
    found = defaultdict(list)
    for name in FOLDERS:
        for record in read_records(ROOT / "results" / name):
            if record.status == "done":
                found[record.task, record.seed].append(record)
    tasks = sorted({task for task, _ in found})
    written = []
    for table in range(tables):
        task = tasks[table % len(tasks)]
        digest = f"{table:08x}"  # the second table of a task has other settings
        for (_, seed), models in sorted((key, of) for key, of in found.items() if key[0] == task):
            for number in range(encodings):
                if len(written) == most:
                    return written
                model = models[number % len(models)]
                base = 10_000 + number
                label = model.encoding if number < len(models) else f"rope:base={base}"
                changed = replace(model, encoding=label, settings_digest=digest, seed=seed)
                written.append(_write_run(folder, model, changed, move=1 - number / 1000))
    return written


def _write_run(folder: Path, model: RunRecord, changed: RunRecord, move: float) -> Path:
    """Write a run with the numbers of another one multiplied by `move`."""
    name = f"seed{changed.seed}-{changed.settings_digest}"
    target = folder / "runs" / changed.task / slug(changed.encoding) / name
    rows = [
        {**row, "encoding": changed.encoding, "run": name, "value": float(row["value"]) * move}
        for row in read_run_rows(model)
    ]
    write_rows(target / "rows.csv", rows, CSV_COLUMNS)
    write_items(target / "items.parquet", read_run_items(model))
    files = [target / "rows.csv", target / "items.parquet"]
    curves = read_run_curves(model)
    if curves:
        write_curve_file(target / CURVES, curves, OF_A_RUN)
        files.append(target / CURVES)
    write_sealed(target / "run.json", changed.to_json(), owner=owner_of(target), files=files)
    return target


def _report(folder: Path) -> list[str]:
    """Report on a folder and return CPU seconds, seconds and peak MiB."""
    before = os.times()
    begin = time.perf_counter()
    command = ["-m", "pe_bench", "report", "--results", str(folder)]
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begin
    after = os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])  # only of processes that have ended
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return [f"{cpu:.1f}", f"{seconds:.1f}", f"{peak:,.0f}"]


if __name__ == "__main__":
    main()
