"""Shards of a grid, for several machines that do not communicate."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from pe_bench.errors import InputError

if TYPE_CHECKING:  # options are read without torch
    from pe_bench.grid.planned_run import PlannedRun

SLACK = 1.1  # limit of a shard's size if runs stay together, as a multiple of the mean size


@dataclass(frozen=True)
class Shard:
    """One of several shards, such as 2/8.

    Attributes:
        number: number of the shard, from 1 to `count`.
        count: number of shards.

    Raises:
        InputError: there is no such shard.
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise InputError(
                f"shard {self.number}/{self.count}: the first of 8 is 1/8, the last is 8/8"
            )

    @classmethod
    def read(cls, words: Sequence[str]) -> "Shard":
        """Return the shard from a word such as "2/8".

        Raises:
            ValueError: the word is not a shard.
        """
        (word,) = words
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", word)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"must be a shard such as 2/8, from 1/8 to 8/8, not '{word}'")
        return cls(int(match[1]), int(match[2]))

    def of(self, runs: "Sequence[PlannedRun]") -> "list[PlannedRun]":
        """Return the runs of this shard, in their order.

        Runs are assigned to the shards in turn, so each task and each encoding is spread over all
        shards. Runs that need the same training (a phase to start from, or a search for learning
        rates) stay together if no shard becomes larger than `SLACK` times the mean size. Finished
        runs are assigned too, so that every machine computes the same shards.
        """
        runnable = [planned for planned in runs if planned.skip is None]
        skipped = [planned for planned in runs if planned.skip is not None]
        own = {id(planned) for planned in (*self._deal(runnable), *self._pick(skipped))}
        return [planned for planned in runs if id(planned) in own]

    def _deal(self, runs: "Sequence[PlannedRun]") -> "list[PlannedRun]":
        groups: dict[Hashable, list[PlannedRun]] = {}
        for planned in runs:
            groups.setdefault(shared_training(planned), []).append(planned)
        shares: list[list[PlannedRun]] = [[] for _ in range(self.count)]
        for group in sorted(groups.values(), key=len, reverse=True):  # equal sizes keep their order
            min(shares, key=len).extend(group)
        if max(map(len, shares)) <= ceil(SLACK * len(runs) / self.count):
            return shares[self.number - 1]
        return self._pick(runs)

    def _pick(self, runs: "Sequence[PlannedRun]") -> "list[PlannedRun]":
        return list(runs[self.number - 1 :: self.count])


def shared_training(planned: "PlannedRun") -> Hashable:
    """Return a key that is equal for runs with the same preceding training."""
    run = planned.run
    resolved = run.resolved
    start = resolved.start.digest() if resolved.start else None
    if resolved.tuning:
        return run.encoding.label, start or resolved.digest()
    if start:
        return run.phases.before.encoding.label, run.seed, start
    return run.folder
