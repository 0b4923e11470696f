"""`pe-bench check`: the conformance suite."""

import argparse

from pe_bench.commands.device import find_device
from pe_bench.registry import plugins


def main(args: argparse.Namespace) -> int:
    """Check encodings; return 1 if a check fails."""
    from pe_bench.checks.table import check_encodings

    specs: list[str] = []
    for spec in args.encoding:
        specs += plugins.names("encoding") if spec == "all" else [spec]
    return 0 if check_encodings(specs, find_device(args.device)) else 1
