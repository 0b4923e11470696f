"""`pe-bench check`: verify that encodings and tasks do what they declare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pe_bench.commands.command import Command, OptionGroup
from pe_bench.commands.device import device_option, find_device
from pe_bench.commands.values import Values
from pe_bench.errors import InputError
from pe_bench.option_table import argument, check_values, option
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.importing import KINDS, Kind
from pe_bench.registry.options import split_spec
from pe_bench.runs.options import read_data
from pe_bench.system.console import info

EVERY: dict[str, Kind] = {"all": "encoding", "encodings": "encoding", "tasks": "task"}


@dataclass(frozen=True)
class CheckOptions:
    """The options of `pe-bench check`."""

    spec: tuple[str, ...] = argument(
        "as in run; 'all' or 'encodings' for every shipped encoding, 'tasks' for every task",
        "SPEC",
    )
    verbose: bool = option(False, "print every finding with its reason", short="v")
    wide: bool = option(False, "print a column for each check")
    kv_heads: int = option(
        0, "check encodings with fewer key heads than the four query heads: 1 or 2"
    )
    data: Mapping[str, Path] = option(
        dict, "folder with data for the given tasks, or task=DIR", metavar="DIR", read=read_data
    )
    device: str = device_option("cpu", "cpu")

    def __post_init__(self) -> None:
        check_values(self)


def main(values: Values) -> int:
    """Check encodings and tasks; return 1 if a check fails."""
    options = values.make(CheckOptions)
    specs = sort_by_kind(options.spec)
    device = find_device(options.device)
    if options.kv_heads and not specs["encoding"]:
        raise InputError("--kv-heads has no effect: none of these is an encoding")
    if options.data and not specs["task"]:
        raise InputError("--data has no effect: none of these is a task")
    from pe_bench.checks.table import check_encodings, check_tasks

    good = True
    if specs["encoding"]:
        good = check_encodings(
            specs["encoding"],
            device,
            kv_heads=options.kv_heads,
            verbose=options.verbose,
            wide=options.wide,
        )
    if specs["encoding"] and specs["task"]:
        info("")
    if specs["task"]:
        tasks_good = check_tasks(
            specs["task"], data=options.data, verbose=options.verbose, wide=options.wide
        )
        good = tasks_good and good
    return 0 if good else 1


def sort_by_kind(specs: Sequence[str]) -> dict[Kind, list[str]]:
    """Return the specs by kind of plugin, with words such as "tasks" replaced by all names.

    Raises:
        InputError: a spec is neither an encoding nor a task.
    """
    found: dict[Kind, dict[str, None]] = {kind: {} for kind in KINDS}
    for spec in specs:
        if spec in EVERY:
            found[EVERY[spec]] |= dict.fromkeys(catalogue.names(EVERY[spec]))
        else:
            where, _ = split_spec(spec)
            found[plugins.kind_of(where, list(EVERY))][spec] = None
    return {kind: list(of_kind) for kind, of_kind in found.items()}


COMMAND = Command(
    name="check",
    main=main,
    help="verify that encodings and tasks do what they declare",
    description="Run the checks on encodings and tasks; the exit code is 1 if a check fails.",
    groups=[OptionGroup(CheckOptions)],
)
