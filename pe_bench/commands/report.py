"""`pe-bench report`: leaderboard and plots."""

import argparse
import os
from pathlib import Path

from pe_bench.errors import InputError, SavingError
from pe_bench.system.console import info


def main(args: argparse.Namespace) -> int:
    """Write the report and print the paths of its files."""
    from pe_bench.reporting.report import write_report

    try:
        paths = write_report(_folders(args), args.reference, args.export, jobs=os.cpu_count() or 1)
    except SavingError as error:
        raise InputError(str(error)) from None
    for path in paths:
        info(str(path))
    return 0


def _folders(args: argparse.Namespace) -> list[Path]:
    """Return the results folders to report on.

    Raises:
        InputError: folders are given in two ways, or one twice.
    """
    folders: list[Path] = args.folders
    if folders and "results" in getattr(args, "_given", ()):
        raise InputError("folders are given and --results too: leave out --results")
    folders = folders or [args.results]
    for place, folder in enumerate(folders):
        if folder.resolve() in [other.resolve() for other in folders[:place]]:
            raise InputError(f"{folder} is given twice: leave one of them out")
    return folders
