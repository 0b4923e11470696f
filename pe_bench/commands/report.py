"""`pe-bench report`: leaderboard and plots."""

import argparse


def main(args: argparse.Namespace) -> int:
    """Write the report and print the paths of its files."""
    from pe_bench.reporting.report import write_report

    for path in write_report(args.results, args.reference, args.export):
        print(path)
    return 0
