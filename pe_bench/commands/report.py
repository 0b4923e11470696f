"""`pe-bench report`: leaderboard and plots."""

import os
from dataclasses import dataclass
from pathlib import Path

from pe_bench.commands.command import Command, OptionGroup, results_option
from pe_bench.commands.values import Values
from pe_bench.errors import InputError, SavingError
from pe_bench.option_table import argument, option
from pe_bench.system.console import info


@dataclass(frozen=True)
class ReportOptions:
    """The options of `pe-bench report`."""

    folders: tuple[Path, ...] = argument(
        "results folders, in one report that is written to the first; default: that of --results",
        "DIR",
        default=(),
    )
    results: Path = results_option()
    reference: str | None = option(
        None, "encoding that others are compared with (default: rope)", metavar="ENCODING"
    )
    export: Path | None = option(
        None, "write there instead, with all runs in small files that can be committed"
    )


def main(values: Values) -> int:
    """Write the report and print the paths of its files."""
    options = values.make(ReportOptions)
    if "folders" in values.given and "results" in values.given:
        raise InputError("folders are given and --results too: leave out --results")
    folders = options.folders or (options.results,)
    for number, folder in enumerate(folders):
        if folder.resolve() in [other.resolve() for other in folders[:number]]:
            raise InputError(f"{folder} is given twice: leave one of them out")
    from pe_bench.reporting.report import write_report

    try:
        paths = write_report(folders, options.reference, options.export, jobs=os.cpu_count() or 1)
    except SavingError as error:
        raise InputError(str(error)) from None
    for path in paths:
        info(str(path))
    return 0


COMMAND = Command(
    name="report",
    main=main,
    help="leaderboard and plots of what has been run",
    description="Write index.html, leaderboard.md and .csv, and plots/ from the runs.",
    groups=[OptionGroup(ReportOptions)],
)
