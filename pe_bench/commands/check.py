"""`pe-bench check`: do encodings and tasks keep what they declare?"""

import argparse
from collections.abc import Sequence

from pe_bench.commands.device import find_device
from pe_bench.errors import InputError, suggest
from pe_bench.registry import plugins
from pe_bench.registry.importing import KINDS, Kind
from pe_bench.registry.options import split_spec

EVERY: dict[str, Kind] = {"all": "encoding", "encodings": "encoding", "tasks": "task"}


def main(args: argparse.Namespace) -> int:
    """Check encodings and tasks; return 1 if a check fails."""
    specs = sort_by_kind(args.spec)
    device = find_device(args.device)
    if args.kv_heads and not specs["encoding"]:
        raise InputError("--kv-heads has no effect: none of these is an encoding")
    from pe_bench.checks.table import check_encodings, check_tasks

    good = True
    if specs["encoding"]:
        good = check_encodings(
            specs["encoding"],
            device,
            kv_heads=args.kv_heads,
            verbose=args.verbose,
            wide=args.wide,
        )
    if specs["encoding"] and specs["task"]:
        print()
    if specs["task"]:
        good = check_tasks(specs["task"], verbose=args.verbose) and good
    return 0 if good else 1


def sort_by_kind(specs: Sequence[str]) -> dict[Kind, list[str]]:
    """Return the specs of each kind of plugin, words such as "tasks" replaced by all names.

    Raises:
        InputError: what is neither an encoding nor a task.
    """
    found: dict[Kind, dict[str, None]] = {kind: {} for kind in KINDS}
    for spec in specs:
        if spec in EVERY:
            found[EVERY[spec]] |= dict.fromkeys(plugins.names(EVERY[spec]))
        else:
            found[_kind_of(spec)][spec] = None
    return {kind: list(of_kind) for kind, of_kind in found.items()}


def _kind_of(spec: str) -> Kind:
    where, _ = split_spec(spec)
    kinds = plugins.kinds_of(where)
    if kinds:
        return kinds[0]
    known = list(EVERY)
    for kind in KINDS:
        known += plugins.names(kind)
    raise InputError(
        f"there is no encoding or task '{where}'{suggest(where, known)}; see pe-bench list, or "
        "give the path of a file with one"
    )
