"""`pe-bench export`: a table of all numbers, a table for a paper, or all runs to send."""

import io
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.commands.command import Command, OptionGroup, results_option
from pe_bench.commands.values import Values
from pe_bench.errors import InputError, SavingError
from pe_bench.option_table import argument, option
from pe_bench.system.console import info, warn
from pe_bench.system.files import real_path

if TYPE_CHECKING:
    from pe_bench.results.record import RunRecord

LATEX = ".tex"
TABLES = (".parquet", ".csv", LATEX)


@dataclass(frozen=True)
class ExportOptions:
    """The options of `pe-bench export`."""

    target: Path = argument("the table to write, or a folder", "FILE")
    results: Path = results_option()


@dataclass(frozen=True)
class PaperOptions:
    """The options of a table for a paper."""

    task: tuple[str, ...] | None = option(
        None, "only these tasks; default: all that train encodings", metavar="TASK"
    )
    encoding: tuple[str, ...] | None = option(
        None, "only these encodings, in this order; default: all, the best first"
    )
    label: tuple[str, ...] = option(
        (), "display names, as in mine.py=Mine; default: declared by the encoding",
        metavar="ENCODING=NAME",
    )  # fmt: skip
    family: bool = option(False, "also show the family of each encoding")


def main(values: Values) -> int:
    """Write the table or the folder, and print its size."""
    options, paper = values.make(ExportOptions), values.make(PaperOptions)
    target, results = options.target, options.results
    if target.suffix not in (*TABLES, ""):
        raise InputError(f"export writes {', '.join(TABLES)}, or a folder, not {target.suffix}")
    given = [name for name in ("task", "encoding", "label", "family") if name in values.given]
    if given and target.suffix != LATEX:
        raise InputError(f"--{given[0]} is for a table that ends in {LATEX}, not for {target}")
    if real_path(target) == real_path(results):
        raise InputError(f"{target} is the results folder: give another one")
    from pe_bench.reporting.frames import describe_unused_runs, finished_runs
    from pe_bench.results.reading import reading

    try:
        with reading(results) as records:
            if not finished_runs(records):
                raise InputError(f"there are no finished runs in {results}: give --results")
            if target.suffix == LATEX:
                _write_latex(target, results, records, paper)
            elif target.suffix:
                _write_table(target, records)
            else:
                _write_folder(target, records)
            for line in describe_unused_runs(records):
                warn(line)
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


def _write_latex(
    target: Path, results: Path, records: "Sequence[RunRecord]", paper: PaperOptions
) -> None:
    from pe_bench import __version__
    from pe_bench.reporting.display_names import read_names
    from pe_bench.reporting.paper_table import write_tables
    from pe_bench.reporting.selection import find_labels, select_tables
    from pe_bench.reporting.tables import make_tables
    from pe_bench.system.files import write_atomic

    tables = select_tables(make_tables(records), paper.task, paper.encoding)
    labels = list(dict.fromkeys(name for table in tables for name in table.encodings))
    source = write_tables(
        tables,
        target.stem,
        encodings=find_labels(paper.encoding or (), labels),
        names=read_names(paper.label, labels),
        families=paper.family,
        comments=[
            f"Written by pe-bench {__version__} from {' '.join(str(results).split())}.",
            r"The preamble needs \usepackage{booktabs}.",
        ],
    )
    write_atomic(target, source)
    made = _count(source.count(r"\begin{table}"), "table")
    tasks = _count(len({table.about.task for table in tables}), "task")
    shown = f"{made}, {_count(len(labels), 'encoding')}, {tasks}"
    info(f"{target}: {shown}; the preamble needs \\usepackage{{booktabs}}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _write_folder(target: Path, records: "Sequence[RunRecord]") -> None:
    from pe_bench.reporting.frames import finished_runs
    from pe_bench.results.export import write_export

    finished = finished_runs(records)
    write_export(target, finished)
    info(
        f"{target}: {len(finished)} runs; on another machine, "
        f"pe-bench merge {shlex.quote(str(target))} copies them into ./results"
    )


COMMAND = Command(
    name="export",
    main=main,
    help="all numbers as one table, a LaTeX table, or all runs in a few files to send",
    usage="pe-bench export (FILE.parquet | FILE.csv | FILE.tex | DIR) [options]",
    description="""\
Write the rows of all finished runs as one tidy table (docs/results.md describes its columns), or
with the ending .tex a table for a paper. A name without an ending is a folder for an export: a few
files with all runs, items and records, which report, compare and merge read like runs. `report
--export DIR` also writes a report.""",
    groups=[
        OptionGroup(ExportOptions),
        OptionGroup(
            PaperOptions,
            f"tables that end in {LATEX}",
            """\
A table of several tasks has the ranked score of each; a table of one task has all its scores.
The best mean is bold, with 95 % intervals over seeds and letters of significance; chance and the
best baseline are below. Presets, protocols and tuned runs have separate tables. Encodings are
rows; up to three are columns if there are more scores.""",
        ),
    ],
)
