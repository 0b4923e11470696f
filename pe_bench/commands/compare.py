"""`pe-bench compare`: two encodings beside each other, or the ranks of all."""

import argparse
from pathlib import Path

from pe_bench.errors import InputError, SavingError
from pe_bench.system.console import info

PAIR = 2


def main(args: argparse.Namespace) -> int:
    """Print what may be said of two encodings, or of all of them."""
    from pe_bench.reporting.tables import read_tables
    from pe_bench.reporting.verdicts import choose_tables

    if args.all and (args.encoding or args.picture):
        extra = args.encoding[0] if args.encoding else "--picture"
        raise InputError(f"--all ranks all encodings, without a picture: leave out {extra}")
    if not args.all and len(args.encoding) != PAIR:
        raise InputError(
            f"compare takes two encodings, not {len(args.encoding)}: name two, or write --all"
        )
    if not args.results.is_dir():
        raise InputError(f"there is no folder {args.results}: give --results")
    tables = choose_tables(read_tables(args.results), args.task)
    if args.all:
        from pe_bench.reporting.ranks import describe_ranks

        info(describe_ranks(tables))
        return 0

    from pe_bench.reporting import forest, panels, sentences, verdicts
    from pe_bench.reporting.terminal import wrap
    from pe_bench.system.files import slug

    found = verdicts.judge(tables, *args.encoding)
    info("\n".join(wrap(line) for line in sentences.describe(found)))
    name = f"compare-{slug(found.first)}-{slug(found.second)}.png"
    path: Path = args.picture or args.results / "plots" / name
    try:
        panels.save(forest.draw_forest(found), [path])
    except SavingError as error:
        raise InputError(f"{error}; write --picture FILE for another place") from None
    info(f"\n{path}")
    return 0
