"""Reuse of finished runs with the same models under another search, which avoids training."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pe_bench.errors import CRASHES
from pe_bench.results.identity import (
    digest,
    digest_settings,
    model_identity,
    with_chosen_rate,
)
from pe_bench.results.record import RunRecord
from pe_bench.runs.phases import Phases
from pe_bench.runs.resolve import ResolvedTask

MEASURED = (
    "environment",
    "finished",
    "subsets",
    "notes",
    "seconds",
    "peak_memory_bytes",
    "parameters",
    "encoding_parameters",
    "pretraining",
    "costs",
)
"""Fields of a record that describe the measurement, as opposed to the settings."""


def identify_models(resolved: ResolvedTask, phases: Phases, seed: int) -> dict[str, str]:
    """Return digests of the weights of a run's models; this may search for learning rates.

    Returns:
        The digest of each model, by its subset; "" for a model for all subsets.
    """
    found = {}
    for subset in resolved.model_subsets:
        choice = phases.choose(resolved, subset)
        found[subset or ""] = phases.identity(resolved, subset, seed, choice)
    return found


def find_same(
    records: Iterable[RunRecord], resolved: ResolvedTask, phases: Phases, seed: int
) -> RunRecord | None:
    """Return a finished run with the same models, measured on the same data; None: there is none.

    Its settings differ only in the search for learning rates.

    Args:
        records: records of runs of the same encoding and task.
        resolved: the task.
        phases: training phases of the encoding.
        seed: seed of the run.
    """
    candidates = [
        record
        for record in records
        if record.status == "done"
        and record.seed == seed
        and record.encoding_version == phases.encoding.version
        and {*record.subsets} >= {*resolved.task.subsets}
        and _without_search(record.settings) == _without_search(resolved.settings)
    ]
    if not candidates or resolved.task.measures_time:
        return None
    try:
        data = digest(resolved.task.provenance())
        candidates = [record for record in candidates if digest(record.data) == data]
        if not candidates:
            return None
        models = identify_models(resolved, phases, seed)
    except CRASHES:  # task or search crash again in the run, which records it
        return None
    for record in candidates:
        if _models_of(record, resolved.model_subsets) == models:
            return record
    return None


def with_numbers_of(record: RunRecord, other: RunRecord) -> RunRecord:
    """Return the record of a run that takes over the numbers of another one."""
    measured = {name: getattr(other, name) for name in MEASURED}
    return replace(record, reused=other.reused or other.name, **measured)


def _without_search(settings: Mapping[str, Any]) -> str:
    """Return a digest of the settings without learning rate and search."""
    train = {name: value for name, value in settings["train"].items() if name != "lr"}
    rest = {name: value for name, value in settings.items() if name != "tune"}
    return digest_settings({**rest, "train": train})


def _models_of(record: RunRecord, subsets: Sequence[str | None]) -> Mapping[str, str]:
    """Return the digests of a run's models; for earlier versions, computed from the settings."""
    if record.models:
        return record.models
    label, version = record.encoding, record.encoding_version
    found = {}
    for subset in subsets:
        settings = record.settings
        if "tune" in settings:
            rate = (record.tuning or {})["task"]["lr"][subset or "all"]
            settings = with_chosen_rate(settings, rate, from_scratch=settings["start"] is None)
        found[subset or ""] = model_identity(settings, label, version, record.seed, subset)
    return found
