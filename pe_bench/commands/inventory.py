"""The runs of a results folder with their states, and the reason if a run does not count."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pe_bench import decoder
from pe_bench.errors import InputError
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.importing import Kind, trusting_only
from pe_bench.reporting.frames import finished_runs
from pe_bench.results.identity import describe_change, settings_of_phases
from pe_bench.results.labels import plugin_name
from pe_bench.results.layout import RECORD, RUN_LOCK, RUNS
from pe_bench.results.record import RunRecord
from pe_bench.results.store import key_of, read_record
from pe_bench.system.locks import is_held
from pe_bench.train import training_result

State = Literal[
    "finished", "skipped", "unfinished", "running", "failed", "damaged", "stale", "replaced"
]
"""A stale run was measured with other code. A replaced one is left out of reports, because a later
run has the same encoding, settings and seed."""

ENGINE = {"decoder": decoder.VERSION, "training": training_result.VERSION}


@dataclass(frozen=True)
class FoundRun:
    """A run in a results folder.

    Attributes:
        folder: folder of the run.
        state: state of the run, see `State`.
        why: reason of the state, or another remark; may be empty.
        finished: time of its record, ISO 8601, UTC; empty: it has no record.
    """

    folder: Path
    state: State
    why: str = ""
    finished: str = ""

    @property
    def name(self) -> str:
        """Encoding, task and name of the run, as an argument of commands, from folder names."""
        task, encoding, run = self.folder.parts[-3:]
        return f"{encoding}/{task}/{run}"


def find_runs(results: Path) -> list[FoundRun]:
    """Return all runs of a results folder, without exported runs.

    Raises:
        InputError: there is no such folder.
    """
    if not results.is_dir():
        raise InputError(f"there is no folder {results}: give --results")
    folders = [path for path in sorted(results.glob(f"{RUNS}/*/*/seed*")) if path.is_dir()]
    records = {path: read_record(path) for path in folders if (path / RECORD).exists()}
    versions = Versions(list(records.values()))
    counted = {_group(record): record for record in finished_runs(records.values())}
    return [_describe(path, records.get(path), versions, counted) for path in folders]


def _describe(
    folder: Path,
    record: RunRecord | None,
    versions: "Versions",
    counted: Mapping[tuple[str, str, int], RunRecord],
) -> FoundRun:
    if record is None or record.status != "done":
        lock = folder / RUN_LOCK
        if lock.exists() and is_held(lock, unknown=record is None):
            return FoundRun(folder, "running")
    if record is None:
        return FoundRun(folder, "unfinished", "the same pe-bench run continues from here")
    reason = (record.reason or "").partition("\n")[0]
    if record.status != "done":
        return FoundRun(folder, record.status, reason, record.finished)
    changed = versions.changes(record)
    if changed:
        return FoundRun(folder, "stale", f"measured with {changed}", record.finished)
    later = counted.get(_group(record))
    if later is None:
        why = "later runs have another version of the encoding"
        return FoundRun(folder, "replaced", why, record.finished)
    if key_of(later) != key_of(record):
        why = "a later run has the same encoding, settings and seed"
        return FoundRun(folder, "replaced", why, record.finished)
    return FoundRun(folder, "finished", "", record.finished)


def _group(record: RunRecord) -> tuple[str, str, int]:
    return record.settings_digest, record.encoding, record.seed


class Versions:
    """The present versions of code.

    The version of a shipped plugin is the installed one. Files that a record names are not
    imported; for a user's plugin, the version of its latest run counts as the present one.

    Args:
        records: records of all runs.
    """

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self.latest: dict[tuple[Kind, str], str] = {}
        self.shipped: dict[tuple[Kind, str], str | None] = {}
        done = [record for record in records if record.status == "done"]
        last = {(r.task, r.encoding): r for r in sorted(done, key=lambda record: record.age)}
        for record in sorted(last.values(), key=lambda record: record.finished):
            for kind, label, version in _plugins_of(record):
                self.latest[kind, label] = version

    def changes(self, record: RunRecord) -> str:
        """Return the versions of a record that differ from the present ones; empty: none."""
        found = []
        for kind, label, version in _plugins_of(record):
            now = self._now(kind, label)
            if now is not None and now != version:
                found.append(describe_change(label, version, now))
        for phase in settings_of_phases(record.settings):
            versions = phase.get("versions", {})
            for name, current in ENGINE.items():
                before = versions.get(name, current)
                if before != current:
                    found.append(describe_change(f"the {name}", before, current))
        return ", ".join(dict.fromkeys(found))

    def _now(self, kind: Kind, label: str) -> str | None:
        """Return the present version of a plugin; None: it is unknown."""
        if plugin_name(label) not in catalogue.names(kind):
            return self.latest.get((kind, label))
        if (kind, label) not in self.shipped:
            try:
                with trusting_only():  # an option may name untrusted code
                    self.shipped[kind, label] = plugins.load(kind, label).version
            except InputError:  # an option no longer exists
                self.shipped[kind, label] = None
        return self.shipped[kind, label]


def _plugins_of(record: RunRecord) -> Iterator[tuple[Kind, str, str]]:
    """Yield kind, label and version of the plugins that a run was measured with."""
    for phase in settings_of_phases(record.settings):
        if "versions" in phase:
            yield "task", phase["task"], str(phase["versions"]["task"])
    if record.adaptation is None:  # otherwise the version combines two encodings
        yield "encoding", record.encoding, record.encoding_version
