"""Estimated durations of runs, from earlier runs in the results folder and from exports."""

import json
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pe_bench.errors import CRASHES
from pe_bench.results.identity import without_defaults
from pe_bench.results.record import RunRecord
from pe_bench.runs.phases import Start
from pe_bench.runs.rate_search import TRAININGS
from pe_bench.runs.run import Run, pending_search_key
from pe_bench.system import environment


@dataclass(frozen=True)
class Duration:
    """Duration of a run, in seconds.

    Attributes:
        per_row: seconds of training per sequence.
        evaluation: seconds of the whole evaluation.
        start: seconds of the phase that the task starts from; 0 without one.
    """

    per_row: float
    evaluation: float
    start: float

    def seconds(self, rows: float) -> float:
        """Return the seconds of training on a number of rows and of the evaluation."""
        return self.per_row * rows + self.evaluation


@dataclass(frozen=True)
class Parts:
    """Estimated seconds of the parts of a run.

    Attributes:
        alone: training and evaluation of this run alone.
        start: the phase that the task starts from, which other runs may share; 0 without one.
        search: the search for learning rates, which all seeds share; 0 without one.
    """

    alone: float
    start: float
    search: float


@dataclass(frozen=True)
class RunTimes:
    """Estimated seconds of several runs.

    Attributes:
        seconds: seconds of each run; None: there is no similar run. Training that several runs
            share (a phase to start from, or a search for learning rates) counts for the first of
            these runs, unless an earlier call has finished it.
        used: number of earlier runs that the estimates are based on.
    """

    seconds: Sequence[float | None]
    used: int


@dataclass(frozen=True)
class _Similar:
    """Durations of runs that are similar to a run.

    Attributes:
        key: key of these runs, see `_key`.
        durations: durations by encoding: only those of the run's encoding if there are any, else
            those of all other encodings.
    """

    key: Hashable
    durations: Mapping[str, Sequence[Duration]]


class Estimates:
    """Estimates of the seconds of runs on this device.

    The estimate of a run is based on earlier runs with the same task, preset, protocol, data, model
    and device; the length of training may differ. If the task has no earlier run of an encoding,
    the estimate is the mean of the other encodings, multiplied by the relative slowness of the
    encoding in other tasks.

    Args:
        records: records of earlier runs.
        device: "cpu" or "cuda"; None: earlier runs of any device count, for times relative to each
            other.
    """

    def __init__(self, records: Iterable[RunRecord], device: str | None) -> None:
        here = environment.name_of(device) if device else None
        self.durations: dict[Hashable, dict[str, list[Duration]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for record in records:
            elsewhere = here is not None and record.environment.get("device") != here
            if elsewhere or record.status != "done":
                continue
            with suppress(KeyError):  # a record may lack settings and durations
                duration = _duration_of(record)
                if duration:
                    key = _key(record.settings, record.data)
                    self.durations[key][record.encoding].append(duration)
        self.slowness = self._slowness()

    def of_runs(self, runs: Iterable[Run]) -> RunTimes:
        """Return the estimated seconds of runs that are executed in this order."""
        seconds: list[float | None] = []
        counted: set[Hashable] = set()  # keys of shared trainings
        sources: dict[tuple[Hashable, str], int] = {}  # numbers of earlier runs
        for run in runs:
            similar = self._find_similar(run)
            if similar is None:
                seconds.append(None)
                continue
            for encoding, durations in similar.durations.items():
                sources[similar.key, encoding] = len(durations)
            seconds.append(_with_shared(run, self._estimate(run, similar), counted))
        return RunTimes(seconds, sum(sources.values()))

    def parts(self, run: Run) -> Parts | None:
        """Return the estimated seconds of the parts of a run; None: there is no similar run."""
        similar = self._find_similar(run)
        return None if similar is None else self._estimate(run, similar)

    def _find_similar(self, run: Run) -> _Similar | None:
        try:
            key = _key(run.resolved.settings, run.resolved.task.provenance())
        except CRASHES:  # of the task, which its runs will report
            return None
        known = self.durations.get(key)
        if not known:
            return None
        label = run.encoding.label
        return _Similar(key, {label: known[label]} if label in known else known)

    def _estimate(self, run: Run, similar: _Similar) -> Parts:
        resolved = run.resolved
        rows = len(resolved.model_subsets) * _rows(resolved.settings)
        label = run.encoding.label
        used = [one for durations in similar.durations.values() for one in durations]
        if label in similar.durations:
            slowness = 1.0
            alone = fmean(duration.seconds(rows) for duration in used)
        else:
            slowness = self.slowness.get(label, 1.0)
            of_others = []
            for other, durations in similar.durations.items():
                seconds = fmean(duration.seconds(rows) for duration in durations)
                of_others.append(seconds / self.slowness.get(other, 1.0))
            alone = fmean(of_others)
        start = fmean(duration.start for duration in used) if resolved.start else 0.0
        per_row = fmean(duration.per_row for duration in used)
        search = TRAININGS * rows * per_row if resolved.tuning else 0.0
        return Parts(slowness * alone, slowness * start, slowness * search)

    def _slowness(self) -> dict[str, float]:
        """Return the time of each encoding relative to other encodings, over all tasks."""
        ratios: dict[str, list[float]] = defaultdict(list)
        for known in self.durations.values():
            logs = {}
            for encoding, durations in known.items():
                seconds = fmean(duration.seconds(1000) for duration in durations)
                logs[encoding] = math.log(max(1e-3, seconds))
            mean = fmean(logs.values())
            for encoding, log in logs.items():
                ratios[encoding].append(log - mean)
        return {encoding: math.exp(fmean(found)) for encoding, found in ratios.items()}


def _with_shared(run: Run, parts: Parts, counted: set[Hashable]) -> float:
    """Return the seconds of a run, with the shared trainings that no earlier run has counted.

    Args:
        run: the run.
        parts: seconds of its parts.
        counted: keys of the shared trainings that earlier runs have counted; those of this run are
            added.
    """
    seconds = parts.alone
    start = run.resolved.start
    if start:
        label = run.phases.start_phases.encoding.label
        start_search = (label, start.digest())  # as `pending_search_key`
        shared = (*start_search, run.seed)
        if shared not in counted and not _is_trained(run):
            seconds += parts.start
        counted.add(shared)
        if start_search not in counted and not _is_start_chosen(run):
            seconds += TRAININGS * parts.start
        counted.add(start_search)
    search = pending_search_key(run)
    if search is not None and search not in counted:
        seconds += parts.search
        counted.add(search)
    return seconds


def _is_trained(run: Run) -> bool:
    """Return whether all models that a run starts from exist. No search for a rate is started."""
    for start in _find_starts(run):
        choice = start.find_choice()
        if choice is None or not start.checkpoint(run.seed, choice).is_dir():
            return False
    return True


def _is_start_chosen(run: Run) -> bool:
    """Return whether the learning rates of all models that a run starts from are known."""
    return all(start.find_choice() is not None for start in _find_starts(run))


def _find_starts(run: Run) -> list[Start]:
    """Return what the models of a run start from, one element per model."""
    found = [run.phases.find_start(run.resolved, subset) for subset in run.resolved.model_subsets]
    return [start for start in found if start is not None]


def _duration_of(record: RunRecord) -> Duration | None:
    """Return the duration of a run; None if its record does not contain it."""
    rows = _rows(record.settings) * len(record.trainings)
    if not record.trainings or record.seconds is None:
        return None
    training = sum(one["seconds"] for one in record.trainings)
    before = record.pretraining["seconds"] if record.pretraining else 0.0
    return Duration(training / rows if rows else 0.0, record.seconds - training, before)


def _key(settings: Mapping[str, Any], data: Mapping[str, Any]) -> Hashable:
    """Return a key that is equal for runs of similar duration; it ignores the number of rows."""
    return (
        settings["task"],
        settings["preset"],
        settings["protocol"],
        settings.get("from", {}).get("encoding"),
        data.get("label"),
        json.dumps(without_defaults(settings)["model"], sort_keys=True, default=str),
    )


def _rows(settings: Mapping[str, Any]) -> float:
    train = settings["train"]
    return float(train["steps"] * train["batch_size"])
