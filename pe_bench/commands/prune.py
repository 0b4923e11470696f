"""`pe-bench prune`: remove the runs of a results folder that are in given states."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import Timeout

from pe_bench.commands.command import Command, OptionGroup, results_option
from pe_bench.commands.status import list_runs
from pe_bench.commands.values import Values
from pe_bench.errors import InputError
from pe_bench.option_table import argument, option
from pe_bench.results.layout import RECORD, RUN_LOCK
from pe_bench.results.store import read_record
from pe_bench.system.console import info, warn
from pe_bench.system.files import saving
from pe_bench.system.locks import hold

if TYPE_CHECKING:
    from pe_bench.commands.inventory import FoundRun

LEFT = 1
STATES = ("stale", "replaced", "failed", "damaged", "skipped", "unfinished")


@dataclass(frozen=True)
class PruneOptions:
    """The options of `pe-bench prune`."""

    states: tuple[str, ...] = argument(f"{', '.join(STATES)}, as in pe-bench status", "STATE")
    results: Path = results_option()
    dry_run: bool = option(False, "list the runs and stop")


def main(values: Values) -> int:
    """List the runs in the given states and remove them; return the exit code."""
    from pe_bench.commands.inventory import find_runs

    options = values.make(PruneOptions)
    wrong = [state for state in options.states if state not in STATES]
    if wrong:
        raise InputError(f"there is no state '{wrong[0]}' to remove; there are {', '.join(STATES)}")
    runs = [run for run in find_runs(options.results) if run.state in options.states]
    for line in list_runs(runs):
        info(line)
    if options.dry_run:
        info(f"{len(runs)} runs would be removed")
        return 0
    busy = [run.name for run in runs if not _remove(run)]
    for name in busy:
        warn(f"{name} is left: another process is working on it, or has just finished it")
    info(f"{len(runs) - len(busy)} runs removed from {options.results}")
    return LEFT if busy else 0


def _remove(run: "FoundRun") -> bool:
    """Remove the folder of a run and empty parent folders.

    Returns:
        False if it is left: a process works on it, or has executed it since it was listed.
    """
    folder = run.folder
    with saving(folder):
        try:
            with hold(folder / RUN_LOCK, timeout=0):
                record = read_record(folder) if (folder / RECORD).exists() else None
                if (record is None) != (run.state == "unfinished"):
                    return False
                if record is not None and record.finished != run.finished:
                    return False
                shutil.rmtree(folder)
        except Timeout:
            return False
        for above in (folder.parent, folder.parent.parent):
            if not any(above.iterdir()):
                above.rmdir()
    return True


COMMAND = Command(
    name="prune",
    main=main,
    help="remove stale, replaced, failed or damaged runs",
    usage="pe-bench prune STATE ... [--dry-run] [options]",
    description="""\
List the runs of a results folder in the given states (see pe-bench status) and remove them. Runs
in exports, and runs that another process is working on, are not removed.""",
    groups=[OptionGroup(PruneOptions)],
)
