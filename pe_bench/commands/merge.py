"""`pe-bench merge`: copy the runs of several results folders into one."""

from dataclasses import dataclass
from pathlib import Path

from pe_bench.commands.command import Command, OptionGroup, results_option
from pe_bench.commands.values import Values
from pe_bench.option_table import argument
from pe_bench.system.console import info, warn
from pe_bench.system.files import check_writable
from pe_bench.system.program import program

DIFFERENT = 1


@dataclass(frozen=True)
class MergeOptions:
    """The options of `pe-bench merge`."""

    folders: tuple[Path, ...] = argument("results folders, or exports of them", "DIR")
    results: Path = results_option("folder to copy the runs to; default: ./results")


def main(values: Values) -> int:
    """Copy runs into a results folder, print runs that were left out; return the exit code."""
    options = values.make(MergeOptions)
    from pe_bench.results.merging import describe_merge, merge_folders

    check_writable(options.results, "--results")
    complaints: list[str] = []
    for folder, found in merge_folders(options.folders, options.results):
        info(describe_merge(folder, found))
        complaints += [warn(line) for line in found.complaints]
    option = "" if options.results == Path("results") else f" --results {options.results}"
    info(f"runs are in {options.results}; next: {program()} report{option}")
    return DIFFERENT if complaints else 0


COMMAND = Command(
    name="merge",
    main=main,
    help="copy the runs of several results folders into one",
    description="""\
Copy runs of results folders and exports, with baselines and tuning, into one results folder. A run
that exists with the same numbers is skipped. If the numbers differ, the run is named, the existing
one does not change, and the exit code is 1.""",
    groups=[OptionGroup(MergeOptions)],
)
