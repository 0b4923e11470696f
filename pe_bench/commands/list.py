"""`pe-bench list`: encodings and tasks, and all about one of them."""

import argparse

from pe_bench.errors import InputError, suggest
from pe_bench.registry import plugins
from pe_bench.registry.importing import KINDS, Kind


def main(args: argparse.Namespace) -> int:
    """Print what a command asks for. Plain lists never import torch."""
    if args.what in (None, "tasks"):
        print("\n".join(_names(KINDS if args.what is None else ("task",))))
        return 0
    if args.what == "encodings":
        from pe_bench.commands.cards import table

        print(table(plugins.names("encoding"), wide=args.wide))
    else:
        kind = _kind(args.what)
        from pe_bench.commands.show import manual

        print(manual(kind, args.what))
    return 0


def _names(kinds: tuple[Kind, ...]) -> list[str]:
    lines = []
    for kind in kinds:
        lines.append(f"{kind}s")
        lines += [f"  {n:14s} {plugins.describe(kind, n)}" for n in plugins.names(kind)]
    return lines


def _kind(what: str) -> Kind:
    """Return whether a name, file or folder is an encoding or a task.

    Raises:
        InputError: it is neither.
    """
    found = plugins.kinds_of(what)
    if found:
        return found[0]
    known = ["encodings", "tasks"]
    for kind in KINDS:
        known += plugins.names(kind)
    if what == "presets":
        raise InputError("every task has presets of its own: write pe-bench list TASK")
    raise InputError(
        f"there is no encoding or task '{what}'{suggest(what, known)}; see pe-bench list"
    )
