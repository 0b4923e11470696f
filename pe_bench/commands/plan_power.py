"""Lines of a plan that say what its number of seeds can show."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pe_bench.errors import CRASHES

if TYPE_CHECKING:
    from pe_bench.grid.planned_run import PlannedRun
    from pe_bench.results.record import RunRecord

FEWEST = 2  # seeds of a plan that is meant to compare
HEADING = "smallest difference between two encodings that these seeds show (power 80 %):"


def describe_plan(planned: "Sequence[PlannedRun]", records: "Sequence[RunRecord]") -> list[str]:
    """Return lines on the smallest differences that the seeds of a plan can show.

    There is a line for each task that has finished runs of several encodings and seeds.

    Args:
        planned: runs that are not finished, and finished runs of the same command.
        records: records of finished runs with rows.
    """
    seeds: dict[str, set[int]] = {}
    encodings: dict[str, set[str]] = {}
    for one in planned:
        if one.run.resolved.task.measures_time:  # its seeds are repetitions
            continue
        digest = one.run.resolved.digest()
        seeds.setdefault(digest, set()).add(one.run.seed)
        encodings.setdefault(digest, set()).add(one.run.encoding.label)
    few = [len(of) for of in seeds.values()]
    if few and max(few) >= FEWEST and describe_too_few(max(few)):
        return [describe_too_few(max(few))]
    known = [record for record in records if record.settings_digest in seeds]
    if not known:
        return []
    from pe_bench.reporting.sensitivity import describe_power  # late: pandas takes a second
    from pe_bench.reporting.tables import make_tables
    from pe_bench.stats.significance import FEWEST_SEEDS

    lines = []
    with contextlib.suppress(*CRASHES):  # the end of the command reports what cannot be read
        for table in make_tables(known):
            own = seeds[table.about.settings_digest]
            with_rows = own & {record.seed for record in table.records}
            alone = len(encodings[table.about.settings_digest]) == 1
            line = describe_power(table, len(with_rows if alone else own))
            if line and alone and len(with_rows) < FEWEST_SEEDS <= len(own):
                line += f", but the finished runs have only {len(with_rows)} of the planned seeds"
            lines += [f"  {table.about.task}: {line}"] if line else []
    if not lines:
        return []
    return [HEADING, *lines]


def describe_too_few(seeds: int) -> str:
    """Return a sentence for a number of seeds that can show no difference; empty if it can."""
    from pe_bench.stats.significance import FEWEST_SEEDS

    if seeds >= FEWEST_SEEDS:
        return ""
    return f"with {seeds} seeds no difference can be significant: give {FEWEST_SEEDS} or more"
