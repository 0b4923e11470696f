"""Reasons why measured runs must be repeated: changes of their code."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pe_bench.grid.planned_run import PlannedRun
from pe_bench.results.identity import describe_change, digest_settings, settings_of_phases
from pe_bench.results.record import RunRecord
from pe_bench.runs.run import Run


def describe_changed_code(runs: Sequence[PlannedRun], records: Iterable[RunRecord]) -> list[str]:
    """Return a line for each change of code that makes runs necessary again.

    Args:
        runs: the runs to do.
        records: records of earlier runs.
    """
    earlier: dict[tuple[str, str, int], list[RunRecord]] = {}
    for record in records:
        if record.status == "done":
            key = record.task, record.encoding, record.seed
            earlier.setdefault(key, []).append(record)
    counts: dict[str, int] = {}
    for planned in runs:
        run = planned.run
        key = run.resolved.label, run.encoding.label, run.seed
        own = _digest(run.resolved.settings) if key in earlier else ""
        comparable = [record for record in earlier.get(key, ()) if _digest(record.settings) == own]
        if comparable:
            last = max(comparable, key=lambda record: record.age)
            for change in dict.fromkeys(_changes(run, last)):
                counts[change] = counts.get(change, 0) + 1
    lines = []
    for change, count in counts.items():
        noun = "run" if count == 1 else "runs"
        lines.append(f"to repeat, because code has changed: {count} {noun} with {change}")
    return lines


def _changes(run: Run, record: RunRecord) -> Iterator[str]:
    """Yield the versions of code that differ between a run and the record of an earlier one."""
    now = run.encoding.version
    if record.encoding_version != now:
        yield describe_change(record.encoding, record.encoding_version, now)
    phases = zip(
        settings_of_phases(record.settings), settings_of_phases(run.resolved.settings), strict=True
    )
    for earlier, phase in phases:
        versions = earlier.get("versions", {})
        for name, version in phase.get("versions", {}).items():
            before = versions.get(name, version)
            if before != version:
                what = phase["task"] if name == "task" else f"the {name}"
                yield describe_change(what, before, version)


def _digest(settings: Mapping[str, Any]) -> str:
    """Return a digest of settings without the versions of code; "-" for an incomplete record."""
    if not {"train", "model"} <= settings.keys():
        return "-"
    plain = json.loads(json.dumps(settings, default=str))
    phase = plain
    while phase:
        phase.pop("versions", None)
        phase = phase.get("start")
    return digest_settings(plain)
