"""Repetition of a run from its record in a scratch folder, and comparison of the numbers."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pe_bench.errors import InputError
from pe_bench.registry.plugins import Plugin
from pe_bench.results.identity import flatten_settings
from pe_bench.results.record import RunRecord
from pe_bench.results.run_comparison import differing_rows, rows_by_key
from pe_bench.results.store import read_record
from pe_bench.runs.options import MovedPaths
from pe_bench.runs.outcome import Outcome
from pe_bench.runs.rebuild import rebuild
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.runs.run import Run
from pe_bench.system import environment
from pe_bench.system.commit import UP_TO_ROUNDING, show_commit
from pe_bench.system.console import info
from pe_bench.system.sealed import write_sealed

NOT_LISTED = ("clock", "git.")  # the clock always differs; commits have a separate sentence


@dataclass(frozen=True)
class Number:
    """A number that differs after the repetition.

    Attributes:
        row_name: subset, metric and position of its row.
        before: recorded number; None: the record has no such row.
        now: repeated number; None: the repetition has no such row.
    """

    row_name: str
    before: str | None
    now: str | None

    @property
    def difference(self) -> float:
        """Absolute difference of the two numbers; infinite if one is missing or nan."""
        if not self.before or not self.now:
            return math.inf
        found = abs(float(self.before) - float(self.now))
        return math.inf if math.isnan(found) else found


@dataclass(frozen=True)
class Repetition:
    """The result of repeating a run.

    Attributes:
        outcome: outcome of the repeated run.
        rows: number of recorded rows.
        numbers: the numbers that differ, the largest difference first.
        conditions: differences of settings and environment: name, value before, value now.
        commits: a sentence on what two different commits mean for the numbers; empty if record
            and code have the same commit.
    """

    outcome: Outcome
    rows: int
    numbers: list[Number]
    conditions: list[tuple[str, str, str]]
    commits: str


def repeat(
    record: RunRecord,
    scratch: Path,
    *,
    device: str,
    moved: MovedPaths | None = None,
) -> Repetition:
    """Repeat the training and the evaluation of a record, without using any earlier result.

    Args:
        record: record of a finished run.
        scratch: folder for results and checkpoints.
        device: "cpu" or "cuda".
        moved: current paths of files and data.

    Raises:
        InputError: the record cannot be repeated here, or `scratch` has a repetition of it.
    """
    _check_repeatable(record)
    moved = moved or MovedPaths()
    threads = record.environment.get("threads")
    if device == "cpu" and threads and threads <= (os.cpu_count() or 1):
        torch.set_num_threads(threads)  # the number of threads changes the order of sums
    task, encoding = rebuild(record, scratch, moved)
    run = Run(task, encoding, record.seed, scratch / "results", device, task.settings["precision"])
    if run.files.find_finished():
        raise InputError(f"{scratch} has this run already: give another folder with --keep")
    _write_choices(record, run)
    info(f"{run.title}: again, in {scratch}")
    outcome = run.execute()
    now = environment.describe(device)
    conditions = _changed_conditions(record, task, encoding, now)
    versions = {"encoding_version", *_versions(record.settings)}
    same = not any(name in versions for name, _, _ in conditions)
    commits = describe_commits(record.environment, now, same)
    if outcome.status != "done" or outcome.folder is None:
        return Repetition(outcome, 0, [], conditions, commits)
    again = read_record(outcome.folder)
    rows, numbers = _changed_numbers(record, again)
    return Repetition(outcome, rows, numbers, conditions, commits)


def describe_commits(before: Mapping[str, Any], now: Mapping[str, Any], same: bool) -> str:
    """Return a sentence on the commits of a record and of this code; empty if they are the same.

    Args:
        before, now: recorded environment and current environment.
        same: whether versions of encoding, task, decoder and training are the same.
    """
    old, new = (show_commit(one) or "an unknown one" for one in (before, now))
    if old == new:
        return ""
    commits = f"measured at commit {old}, this code is at commit {new}: "
    if same:
        return f"{commits}their versions are the same, so numbers are {UP_TO_ROUNDING}"
    return f"{commits}their versions differ, so numbers may differ"


def _check_repeatable(record: RunRecord) -> None:
    if record.status != "done":
        raise InputError(
            f"the run has no numbers to compare with: it is {record.status} "
            f"({record.reason or 'no reason recorded'}): pe-bench run repeats it"
        )
    if record.measures_time:
        raise InputError(
            f"{record.task} measures time, which is never exactly equal: use pe-bench run with "
            "another --results, and compare"
        )


def _write_choices(record: RunRecord, run: Run) -> None:
    """Write the recorded learning rates where the run looks for them, so that none is searched."""
    tuning = record.tuning or {}
    for name, phases, task in (
        ("task", run.phases, run.resolved),
        ("start", run.phases.start_phases, run.resolved.start),
    ):
        if name in tuning and task is not None:
            path = phases.search_of(task).path
            write_sealed(path, tuning[name], owner=path.stem)


def _changed_numbers(before: RunRecord, now: RunRecord) -> tuple[int, list[Number]]:
    """Return the number of recorded rows, and the numbers that differ."""
    old, new = rows_by_key(before), rows_by_key(now)
    numbers = []
    for row in differing_rows(old, new, ["value"]):
        recorded = row.first["value"] if row.first else None
        repeated = row.second["value"] if row.second else None
        numbers.append(Number(" ".join(filter(None, row.key)), recorded, repeated))
    return len(old), sorted(numbers, key=lambda number: -number.difference)


def _changed_conditions(
    record: RunRecord, task: ResolvedTask, encoding: Plugin, now: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    """Return the conditions that may change numbers and differ: name, value before, value now."""
    old = flatten_settings({**record.environment, "encoding_version": record.encoding_version})
    new = flatten_settings({**now, "encoding_version": encoding.version})
    old |= _versions(record.settings)
    new |= flatten_settings(task.settings)
    return [
        (name, str(old[name]), str(new[name]))
        for name in old
        if name in new and old[name] != new[name] and not name.startswith(NOT_LISTED)
    ]


def _versions(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are versions of code."""
    flat = flatten_settings(settings)
    return {name: version for name, version in flat.items() if "versions." in name}
