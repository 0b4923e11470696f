"""`pe-bench rerun`: repeat a run from its record, and compare the numbers."""

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.commands.device import find_device
from pe_bench.commands.run import parse_data
from pe_bench.errors import InputError
from pe_bench.system.console import info, warn
from pe_bench.system.files import check_writable

if TYPE_CHECKING:
    from pe_bench.results.record import RunRecord
    from pe_bench.runs.rerun import Repetition

DIFFERENT = 1
SHOWN = 10  # numbers that differ


def main(args: argparse.Namespace) -> int:
    """Repeat a run in a scratch folder and print what differs; return the exit code."""
    from pe_bench.results.store import find_run

    record = find_run(args.run, args.results)
    device = find_device(args.device or record.environment.get("device_type", "cpu"))
    import torch

    from pe_bench.runs.rebuild import Places
    from pe_bench.runs.rerun import repeat

    torch.set_flush_denormal(True)  # as in run
    places = Places(args.encoding, args.task, dict(parse_data(entry) for entry in args.data))
    if args.keep is not None:
        check_writable(args.keep, "--keep")
        if (args.keep / "runs").exists():
            raise InputError(f"{args.keep} is a results folder: give another one with --keep")
        return _report(record, repeat(record, args.keep, device=device, places=places))
    with tempfile.TemporaryDirectory(prefix="pe-bench-rerun-") as scratch:
        return _report(record, repeat(record, Path(scratch), device=device, places=places))


def _report(record: "RunRecord", found: "Repetition") -> int:
    """Print what differs and return the exit code."""
    from pe_bench.reporting.terminal import plain_table, wrap

    if found.outcome.status != "done":
        reasons = [*found.outcome.complaints, found.outcome.cause or ""]
        warn(f"{found.outcome.title}: the run failed, {' '.join(filter(None, reasons))}")
        return DIFFERENT
    info("")
    if found.numbers:
        info(wrap(f"{len(found.numbers)} of {found.rows} numbers are not the same:"))
        rows = [
            [one.place, one.before or "–", one.now or "–", f"{one.difference:.2g}"]
            for one in found.numbers[:SHOWN]
        ]
        info("\n" + plain_table(["number", "recorded", "now", "difference"], rows))
        if len(found.numbers) > SHOWN:
            info(f"and {len(found.numbers) - SHOWN} more, which differ less")
    else:
        info(wrap(f"all {found.rows} numbers are the same, digit by digit"))
    if found.commits:
        info(wrap(found.commits))
    for name, before, now in found.conditions:
        info(f"{name}: {before}, now {now}")
    if not found.conditions and not found.commits:
        info("machine, packages and code are those of the record")
    return DIFFERENT if found.numbers else 0
