"""`pe-bench merge`: copy the runs of several results folders into one."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.commands.command import Command, OptionGroup, results_option
from pe_bench.commands.values import Values
from pe_bench.errors import InputError, suggest
from pe_bench.option_table import argument, option
from pe_bench.results.labels import plugin_name
from pe_bench.system.console import info, warn
from pe_bench.system.files import check_writable
from pe_bench.system.program import program

if TYPE_CHECKING:
    from pe_bench.results.record import RunRecord

DIFFERENT = 1


@dataclass(frozen=True)
class MergeOptions:
    """The options of `pe-bench merge`."""

    folders: tuple[Path, ...] = argument("results folders, or exports of them", "DIR")
    task: tuple[str, ...] | None = option(
        None, "runs of these tasks only; default: all", metavar="TASK"
    )
    encoding: tuple[str, ...] | None = option(
        None, "runs of these encodings only; default: all", metavar="ENCODING"
    )
    results: Path = results_option("folder to copy the runs to; default: ./results")


def main(values: Values) -> int:
    """Copy runs into a results folder, print runs that were left out; return the exit code."""
    options = values.make(MergeOptions)
    from pe_bench.results.merging import describe_merge, merge_folders

    check_writable(options.results, "--results")
    chosen = [_choose(folder, options) for folder in options.folders]
    complaints: list[str] = []
    for folder, found in merge_folders(options.folders, options.results, chosen):
        info(describe_merge(folder, found))
        complaints += [warn(line) for line in found.complaints]
    target = shlex.quote(str(options.results))
    option = "" if options.results == Path("results") else f" --results {target}"
    info(f"runs are in {options.results}; next: {program()} report{option}")
    return DIFFERENT if complaints else 0


def _choose(folder: Path, options: MergeOptions) -> "list[RunRecord] | None":
    """Return the runs of a folder that the user has chosen; None: all.

    Raises:
        InputError: the folder has no run of a chosen task or encoding.
    """
    from pe_bench.results.store import read_records

    if options.task is None and options.encoding is None:
        return None
    found = read_records(folder)
    for kind, given in (("task", options.task), ("encoding", options.encoding)):
        if given is None:
            continue
        names = [_names_of(record, kind) for record in found]
        known = sorted(set().union(*names))
        for name in given:
            if name not in known:
                raise InputError(
                    f"{folder} has no runs of the {kind} '{name}'{suggest(name, known)}"
                )
        found = [one for one, own in zip(found, names, strict=True) if own & {*given}]
    return found


def _names_of(record: "RunRecord", kind: str) -> set[str]:
    """Return what a user may call the task of a run, with or without options, or its encoding."""
    if kind == "encoding":
        return {record.encoding}
    return {record.task, plugin_name(record.task)}


COMMAND = Command(
    name="merge",
    main=main,
    help="copy the runs of several results folders into one",
    description="""\
Copy runs of results folders and exports, with baselines and tuning, into one results folder. A run
that exists with the same numbers is skipped. If the numbers differ, the run is named, the existing
one does not change, and the exit code is 1. --task and --encoding select runs.""",
    groups=[OptionGroup(MergeOptions)],
)
