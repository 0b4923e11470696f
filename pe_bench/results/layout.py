"""The layout of results folders and exports: names of files and folders.

The folder of a run is `runs/<task>/<encoding>/seed<seed>-<hash>/`:

    lock                 held by the process that works on the run
    executing            exists while a process executes the run
    work/                models of single subsets, only in an unfinished run
    subsets/<name>.csv   rows of a finished subset; its items in .parquet, its learning curves in
                         .curves.parquet
    subsets/<name>.json  written after these: the cost of the subset, and checksums of its files
    journal/<name>.jsonl items of an unfinished subset; it also keeps the predictions
    rows.csv             all rows of the run
    items.parquet        the scores of single items, a row for each evaluation point
    curves.parquet       the learning curves, a row for each point
    model/               the trained model, with `--keep`
    run.json             the record of the run, written last: the status "done", and checksums of
                         these files (`pe_bench.system.sealed`)
"""

from pathlib import Path

from pe_bench.system.files import slug, write_atomic

RUNS = "runs"
"""Folder in a results folder, with a folder for each run: TASK/ENCODING/NAME."""

RUN_LOCK = "lock"  # in the folder of a run, as are the following four
EXECUTING = "executing"
WORK = "work"
SUBSETS = "subsets"
JOURNAL = "journal"
RECORD = "run.json"  # in the folder of a run
ROWS = "rows.csv"  # in the folder of a run
EXPORTED = "records.json"  # in a folder that `pe_bench.results.export` has written
PACKED_ROWS = "rows.csv.gz"  # in the same folder
ITEMS = "items.parquet"  # in the folder of a run, and in an export
CURVES = "curves.parquet"  # in the folder of a run, and in an export
FILES_OF_A_RUN = (RECORD, ROWS, ITEMS, CURVES)
FILES_OF_AN_EXPORT = (EXPORTED, PACKED_ROWS, ITEMS, CURVES)

REFERENCES = "references"
"""Folder in a results folder or an export, with the rows of baselines and their seals."""

TUNING = "tuning"
"""Folder in a results folder, with the chosen learning rates."""


def run_path(results: Path, task: str, encoding: str, name: str) -> Path:
    """Return the folder of a run with a name."""
    return results / RUNS / slug(task) / slug(encoding) / name


def find_recorded(results: Path) -> list[Path]:
    """Return the folders of the runs in a results folder that have a record."""
    return [path.parent for path in sorted((results / RUNS).glob(f"*/*/*/{RECORD}"))]


def baselines_path(results: Path, task: str, settings_digest: str) -> Path:
    """Return the file with the rows of a task's baselines under some settings."""
    return results / REFERENCES / f"{slug(task)}-{settings_digest}.csv"


def copy_with_seal(path: Path, copy: Path) -> None:
    """Copy a file with rows of baselines, and its seal if it has one."""
    write_atomic(copy, path.read_bytes())
    seal = path.with_suffix(".json")
    if seal.exists():
        write_atomic(copy.with_suffix(".json"), seal.read_bytes())
