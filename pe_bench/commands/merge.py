"""`pe-bench merge`: runs of several results folders in one."""

import argparse

from pe_bench.system.console import info, warn
from pe_bench.system.files import check_writable

DIFFERENT = 1


def main(args: argparse.Namespace) -> int:
    """Bring runs into a results folder, and say what was left out; return the exit code."""
    from pe_bench.results.merging import describe_merge, merge_folders

    check_writable(args.results, "--results")
    complaints: list[str] = []
    for folder, found in merge_folders(args.folders, args.results):
        info(describe_merge(folder, found))
        complaints += [warn(line) for line in found.complaints]
    option = "" if str(args.results) == "results" else f" --results {args.results}"
    info(f"runs are in {args.results}; next: pe-bench report{option}")
    return DIFFERENT if complaints else 0
