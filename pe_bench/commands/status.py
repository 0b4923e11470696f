"""`pe-bench status`: the runs of a results folder, and why some of them do not count."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pe_bench.commands.command import Command, OptionGroup, results_option
from pe_bench.commands.values import Values
from pe_bench.option_table import option
from pe_bench.system.console import info

if TYPE_CHECKING:
    from pe_bench.commands.inventory import FoundRun


@dataclass(frozen=True)
class StatusOptions:
    """The options of `pe-bench status`."""

    results: Path = results_option()
    all: bool = option(False, "list finished runs as well")


def main(values: Values) -> int:
    """Print the number of runs in each state, and the runs that are not finished."""
    from pe_bench.commands.inventory import State, find_runs
    from pe_bench.results.store import read_records

    options = values.make(StatusOptions)
    runs = find_runs(options.results)
    counts = Counter(run.state for run in runs)
    parts = [f"{counts[state]} {state}" for state in get_args(State) if counts[state]]
    exported = sum(record.exported for record in read_records(options.results))
    if exported:
        parts.append(f"{exported} in exports")
    info(f"{options.results}: {', '.join(parts) or 'no runs'}")
    for line in list_runs([run for run in runs if options.all or run.state != "finished"]):
        info(line)
    return 0


def list_runs(runs: "Sequence[FoundRun]") -> list[str]:
    """Return two lines for each run: state, name and time, then the reason."""
    lines = []
    for run in runs:
        when = f"  {run.finished[:16].replace('T', ' ')}" if run.finished else ""
        lines.append(f"{run.state:10}  {run.name}{when}")
        if run.why:
            lines.append(f"{'':10}  {run.why}")
    return lines


COMMAND = Command(
    name="status",
    main=main,
    help="count and list the runs of a results folder by their state",
    description="""\
Count the runs of a results folder by their state, and list all that are not finished with the
reason. A stale run was measured with another version of a task, an encoding, the decoder or the
training. A replaced run has the encoding, settings and seed of a later run.""",
    groups=[OptionGroup(StatusOptions)],
)
