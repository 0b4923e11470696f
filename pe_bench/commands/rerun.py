"""`pe-bench rerun`: repeat a run from its record, and compare the numbers."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.commands.command import Command, OptionGroup, results_option
from pe_bench.commands.device import device_option, find_device
from pe_bench.commands.values import Values
from pe_bench.errors import InputError
from pe_bench.option_table import argument, option
from pe_bench.results.layout import RUNS
from pe_bench.runs.options import MovedPaths
from pe_bench.system.console import info, warn
from pe_bench.system.files import check_writable

if TYPE_CHECKING:
    from pe_bench.runs.rerun import Repetition

DIFFERENT = 1
SHOWN = 10  # maximum number of differences to print


@dataclass(frozen=True)
class RerunOptions:
    """The options of `pe-bench rerun`, in addition to `MovedPaths`."""

    run: str = argument("folder of a run, or encoding/task/seed", "RUN")
    results: Path = results_option("results folder with encoding/task/seed; default: ./results")
    device: str | None = device_option(None, "the device of the record")
    keep: Path | None = option(None, "folder for the repeated run; default: a temporary one")


def main(values: Values) -> int:
    """Repeat a run in a scratch folder and print the differences; return the exit code."""
    from pe_bench.results.store import find_run

    options = values.make(RerunOptions)
    moved = values.make(MovedPaths)
    record = find_run(options.run, options.results)
    device = find_device(options.device or record.environment.get("device_type", "cpu"))
    import torch

    from pe_bench.runs.rerun import repeat

    torch.set_flush_denormal(True)  # as in `pe-bench run`
    if options.keep is not None:
        check_writable(options.keep, "--keep")
        if (options.keep / RUNS).exists():
            raise InputError(f"{options.keep} is a results folder: give another one with --keep")
        return _report(repeat(record, options.keep, device=device, moved=moved))
    with tempfile.TemporaryDirectory(prefix="pe-bench-rerun-") as scratch:
        return _report(repeat(record, Path(scratch), device=device, moved=moved))


def _report(found: "Repetition") -> int:
    """Print the differences and return the exit code."""
    from pe_bench.reporting.terminal import plain_table, wrap

    if found.outcome.status != "done":
        reasons = [*found.outcome.complaints, found.outcome.cause or ""]
        warn(f"{found.outcome.title}: the run failed, {' '.join(filter(None, reasons))}")
        return DIFFERENT
    info("")
    if found.numbers:
        info(wrap(f"{len(found.numbers)} of {found.rows} numbers are not the same:"))
        rows = [
            [one.row_name, one.before or "–", one.now or "–", f"{one.difference:.2g}"]
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


COMMAND = Command(
    name="rerun",
    main=main,
    help="repeat a run from its record: are the numbers the same?",
    usage="pe-bench rerun RUN [options]",
    description="""\
Repeat the training and the evaluation of a run from its record: settings, seed, learning rates and
threads. The results folder does not change. Prints the numbers that differ, and differences of
machine and code. Exit code 0: all numbers are exactly equal; 1: some differ.""",
    groups=[OptionGroup(RerunOptions), OptionGroup(MovedPaths)],
)
