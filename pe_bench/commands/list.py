"""`pe-bench list`: list encodings and tasks, or describe one of them."""

from dataclasses import dataclass

from pe_bench.commands.command import Command, OptionGroup
from pe_bench.commands.values import Values
from pe_bench.errors import InputError
from pe_bench.option_table import argument, option
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.importing import KINDS, Kind
from pe_bench.registry.options import split_spec
from pe_bench.system.console import info


@dataclass(frozen=True)
class ListOptions:
    """The options of `pe-bench list`."""

    what: str | None = argument(
        "encodings, tasks, or one of them by name, file or folder", "what", default=None
    )
    wide: bool = option(False, "all columns of `list encodings`")


def main(values: Values) -> int:
    """Print all plugins, all of one kind, or a single one. Plain lists never import torch."""
    options = values.make(ListOptions)
    if options.what in (None, "tasks"):
        info("\n".join(_names(KINDS if options.what is None else ("task",))))
        return 0
    if options.what == "encodings":
        from pe_bench.commands.encoding_table import encoding_table

        info(encoding_table(catalogue.names("encoding"), wide=options.wide))
    else:
        kind = _kind(options.what)
        from pe_bench.commands.list_plugin import show_plugin

        info(show_plugin(kind, options.what))
    return 0


def _names(kinds: tuple[Kind, ...]) -> list[str]:
    lines = []
    for kind in kinds:
        lines.append(f"{kind}s")
        lines += [f"  {n:14s} {catalogue.describe(kind, n)}" for n in catalogue.names(kind)]
    return lines


def _kind(what: str) -> Kind:
    """Return whether a name, file or folder is an encoding or a task.

    Raises:
        InputError: it is neither, or has options.
    """
    if what == "presets":
        raise InputError("every task has its own presets: write pe-bench list TASK")
    name, options = split_spec(what)
    kind = plugins.kind_of(name, ["encodings", "tasks"])
    if options:
        raise InputError(f"list takes a name without options: write pe-bench list {name}")
    return kind


COMMAND = Command(
    name="list",
    main=main,
    help="list encodings and tasks, or describe one of them",
    description="List plugins.",
    groups=[OptionGroup(ListOptions)],
)
