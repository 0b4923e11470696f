"""`pe-bench report`: leaderboard and plots."""

import argparse

from pe_bench.errors import InputError, SavingError
from pe_bench.system.console import info


def main(args: argparse.Namespace) -> int:
    """Write the report and print the paths of its files."""
    from pe_bench.reporting.report import write_report

    try:
        paths = write_report(args.results, args.reference, args.export)
    except SavingError as error:
        raise InputError(str(error)) from None
    for path in paths:
        info(str(path))
    return 0
