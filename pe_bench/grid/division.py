"""The division of a grid into shards, for several machines that do not communicate.

Shards take about equally long, as far as the times of runs are known from earlier runs. The records
of earlier runs change while the shards are executed. The first command therefore stores its
division in the results folder, and the other commands read it. Finished runs belong to shards too,
so that machines with separate results folders have the same division if they start from the same
records.
"""

import contextlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TypedDict

from pe_bench.grid.estimate import Estimates, Parts
from pe_bench.grid.planned_run import PlannedRun
from pe_bench.grid.shard import Shard
from pe_bench.results.identity import digest
from pe_bench.system.files import saving
from pe_bench.system.locks import locked
from pe_bench.system.sealed import DamagedError, read_if_intact, read_sealed, write_sealed

SLACK = 1.1  # limit of a shard's time if runs stay together, as a multiple of the mean time
FOLDER = "shards"


@dataclass(frozen=True)
class Division:
    """The division of the runs of a grid.

    Attributes:
        shard_of: number of the shard of each run, by its title.
        known: number of runs whose time is known from earlier runs.
    """

    shard_of: Mapping[str, int]
    known: int

    def runs_of(self, shard: Shard, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Return the runs of a shard, in their order."""
        return [planned for planned in runs if self.shard_of[planned.run.title] == shard.number]

    def describe(self, shard: Shard, runs: Sequence[PlannedRun]) -> str:
        """Return a line about the size of a shard and about the division."""
        own = len(self.runs_of(shard, runs))
        by = "by their number, because no time is known"
        if self.known:
            by = f"by the times of earlier runs (known for {self.known})"
        return (
            f"shard {shard.number}/{shard.count}: {own} of {len(runs)} runs, divided {by}; every "
            f"machine must show division {digest(dict(self.shard_of))}"
        )


def find_division(
    runs: Sequence[PlannedRun], count: int, estimates: Estimates, results: Path, *, store: bool
) -> Division:
    """Return the stored division of a grid, or divide it.

    Args:
        runs: all runs of the grid.
        count: number of shards.
        estimates: estimates from earlier runs.
        results: the results folder; its folder `shards/` stores divisions.
        store: whether a new division is stored.

    Raises:
        SavingError: the division could not be stored.
    """
    titles = {planned.run.title for planned in runs}
    identity = digest(sorted(titles), count)
    path = results / FOLDER / f"{count}-{identity}.json"
    if not store:
        with contextlib.suppress(OSError, DamagedError):
            return _read(path, titles, count)
        return divide(runs, count, estimates)
    with saving(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock"), "the division into shards"):
        stored = read_if_intact(lambda: _read(path, titles, count))
        if stored is not None:
            return stored
        made = divide(runs, count, estimates)
        write_sealed(path, vars(made), owner=path.stem)
        return made


def divide(runs: Sequence[PlannedRun], count: int, estimates: Estimates) -> Division:
    """Divide the runs of a grid; the result depends only on the arguments.

    The longest runs are assigned first, each to the shard with the least time so far. Runs that
    need the same training (a phase to start from, or a search for learning rates) stay together
    if no shard takes much longer than the mean. Without any known time, all runs count the same.
    """
    runnable = [planned for planned in runs if planned.skip is None]
    skipped = [planned for planned in runs if planned.skip is not None]
    # Runs of equal time are assigned in turn, so the seeds of an encoding are spread.
    runnable.sort(key=lambda planned: (planned.run.resolved.label, planned.run.encoding.label))
    times, known = _find_times(runnable, estimates)
    groups: dict[Hashable, list[PlannedRun]] = {}
    for planned in runnable:
        groups.setdefault(shared_training(planned), []).append(planned)
    together = [_Group.of(own, times) for own in groups.values()]
    shards, seconds = _assign(together, count)
    longest = max((times[planned.run.title].alone for planned in runnable), default=0.0)
    if max(seconds) > SLACK * sum(seconds) / count + longest:
        single = [
            _Group([planned], group.alone_of(planned, times))
            for group in together
            for planned in group.runs
        ]
        shards, _ = _assign(single, count)
    for number, planned in enumerate(skipped):
        shards[number % count].append(planned)
    shard_of = {
        planned.run.title: number for number, own in enumerate(shards, 1) for planned in own
    }
    return Division(shard_of, known)


@dataclass(frozen=True)
class _Group:
    """Runs that stay together, and their seconds."""

    runs: list[PlannedRun]
    seconds: float

    @classmethod
    def of(cls, runs: list[PlannedRun], times: Mapping[str, Parts]) -> "_Group":
        own = [times[planned.run.title] for planned in runs]
        shared = max(parts.start + parts.search for parts in own)
        return cls(runs, sum(parts.alone for parts in own) + shared)

    def alone_of(self, planned: PlannedRun, times: Mapping[str, Parts]) -> float:
        """Return the seconds of one run, with an equal part of the shared training."""
        alone = sum(times[other.run.title].alone for other in self.runs)
        shared = (self.seconds - alone) / len(self.runs)
        return times[planned.run.title].alone + shared


def _assign(groups: Sequence[_Group], count: int) -> tuple[list[list[PlannedRun]], list[float]]:
    """Assign groups to shards; return the runs and the seconds of each shard."""
    shards: list[list[PlannedRun]] = [[] for _ in range(count)]
    seconds = [0.0] * count
    # Rounded, since sums in another order differ in the last digits on another machine.
    for group in sorted(groups, key=lambda group: -round(group.seconds, 3)):
        number = min(range(count), key=lambda i: (round(seconds[i], 3), len(shards[i])))
        shards[number] += group.runs
        seconds[number] += group.seconds
    return shards, seconds


def _find_times(runs: Sequence[PlannedRun], estimates: Estimates) -> tuple[dict[str, Parts], int]:
    """Return the seconds of each run by its title, and the number of runs with an estimate.

    A run without an estimate counts as the mean of the others; if there are none, each run counts
    as one second.
    """
    known: dict[str, Parts] = {}
    for planned in runs:
        parts = estimates.parts(planned.run)
        if parts is not None:
            known[planned.run.title] = parts
    usual = Parts(fmean(parts.alone for parts in known.values()) if known else 1.0, 0.0, 0.0)
    times = {planned.run.title: known.get(planned.run.title, usual) for planned in runs}
    return times, len(known)


def shared_training(planned: PlannedRun) -> Hashable:
    """Return a key that is equal for runs with the same preceding training."""
    run = planned.run
    resolved = run.resolved
    start = resolved.start.digest() if resolved.start else None
    if resolved.tuning:
        return run.encoding.label, start or resolved.digest()
    if start:
        return run.phases.start_phases.encoding.label, run.seed, start
    return run.title


class _Stored(TypedDict):
    """Content of the file of a division."""

    shard_of: Mapping[str, int]
    known: int


def _read(path: Path, titles: set[str], count: int) -> Division:
    """Return the stored division of runs with these titles.

    Raises:
        FileNotFoundError: there is none.
        DamagedError: it is damaged, or divides other runs.
    """
    content = read_sealed(path, owner=path.stem, kind=_Stored)
    shard_of = content["shard_of"]
    if set(shard_of) != titles or not set(shard_of.values()) <= set(range(1, count + 1)):
        raise DamagedError(path, "divides other runs")
    return Division(shard_of, content["known"])
