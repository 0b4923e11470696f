"""`pe-bench cache`: list the entries of the cache, and remove those that are not needed."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pe_bench.commands.command import Command, OptionGroup
from pe_bench.commands.values import Values
from pe_bench.errors import InputError
from pe_bench.option_table import argument, check_values, option
from pe_bench.system.cache_entries import (
    ALL_KINDS,
    DEFAULT_GB,
    GB,
    LIMIT,
    UNFINISHED,
    Entry,
    find_entries,
    is_free,
    remove,
    used_since,
    weights_limit,
)
from pe_bench.system.console import info, show_age
from pe_bench.system.files import cache_folder

DAY = 86400


@dataclass(frozen=True)
class CacheOptions:
    """The options of `pe-bench cache`."""

    action: Literal["clean"] | None = argument(
        "clean: remove entries; default: print all entries", "clean", None
    )
    only: tuple[str, ...] = option((), f"kinds of entries: {', '.join(ALL_KINDS)}; default: all")
    older_than: float | None = option(
        None, "only entries that were not used for this number of days", metavar="DAYS"
    )
    dry_run: bool = option(False, "for clean: print the entries that would be removed")
    verbose: bool = option(False, "print every entry", short="v")

    def __post_init__(self) -> None:
        for kind in self.only:
            if kind not in ALL_KINDS:
                raise InputError(f"there is no kind '{kind}'; there are {', '.join(ALL_KINDS)}")
        check_values(self, "--")
        if self.action is None and self.dry_run:
            raise InputError("--dry-run is for clean: write pe-bench cache clean --dry-run")


def main(values: Values) -> int:
    """Print the entries of the cache or remove them; return the exit code."""
    options = values.make(CacheOptions)
    cache = cache_folder()
    limit = weights_limit()
    now = time.time()
    default = [kind for kind in ALL_KINDS if kind != UNFINISHED or options.action is None]
    kinds = options.only or default
    entries = [
        entry
        for entry in find_entries(cache, kinds)
        if options.older_than is None or now - entry.used >= options.older_than * DAY
    ]
    if options.action is None:
        info(f"{cache}: {_size(entries)}; weights of finished runs up to {limit / GB:g} GB")
        _show(entries, now, verbose=options.verbose)
        return 0
    since = used_since(cache)
    free = [entry for entry in entries if is_free(entry, since)]
    _show(free, now, verbose=options.verbose)
    if not options.dry_run:
        for entry in free:
            remove(entry)
    info(f"{'would remove' if options.dry_run else 'removed'} {_size(free)} from {cache}")
    if len(free) < len(entries):
        info(f"left {_size([e for e in entries if e not in free])}, which running commands use")
    return 0


def _show(entries: Sequence[Entry], now: float, *, verbose: bool) -> None:
    """Print a line for each kind, and with `verbose` for each entry."""
    for kind in ALL_KINDS:
        of_kind = [entry for entry in entries if entry.kind == kind]
        if not of_kind:
            continue
        last = max(entry.used for entry in of_kind)
        info(f"{kind:<13}{_size(of_kind):>22}  last used {show_age(now - last)} ago")
        if not verbose:
            continue
        for entry in sorted(of_kind, key=lambda entry: entry.owner):
            info(f"  {_bytes(entry.size):>10}  {show_age(now - entry.used):<18}  {entry.owner}")


def _size(entries: Sequence[Entry]) -> str:
    many = "entry" if len(entries) == 1 else "entries"
    return f"{len(entries)} {many}, {_bytes(sum(entry.size for entry in entries))}"


def _bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


COMMAND = Command(
    name="cache",
    main=main,
    help="print or remove the entries of the cache folder",
    description=f"""\
Print the contents of the cache folder ($PE_BENCH_CACHE, default ~/.cache/pe-bench): weights of
trainings, texts, their tokens, vocabularies, documents and downloads. `clean` removes entries,
except those that a running command uses and, without --only unfinished, trainings that can be
resumed. Entries are made again when they are needed. Weights of finished runs are removed
automatically if no other training needs them, and beyond ${LIMIT} (default {DEFAULT_GB:g}).""",
    groups=[OptionGroup(CacheOptions)],
)
