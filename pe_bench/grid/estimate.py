"""How long runs may take, from what earlier runs in the same results folder have taken."""

import json
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pe_bench.results.identity import without_defaults
from pe_bench.results.record import RunRecord
from pe_bench.results.store import EXPORTED, key_of, records_of_export
from pe_bench.runs.rate_search import TRAININGS
from pe_bench.runs.run import Run
from pe_bench.system import environment
from pe_bench.system.files import LARGEST, read_regular


@dataclass(frozen=True)
class Cost:
    """Seconds that a run has taken.

    Attributes:
        training: for each row that was trained on.
        evaluation: of all that was measured.
        start: of the phase before, 0 without one.
    """

    training: float
    evaluation: float
    start: float

    def seconds(self, rows: float) -> float:
        """Return the seconds of training on a number of rows and of the evaluation."""
        return self.training * rows + self.evaluation


class Estimates:
    """Estimates seconds of runs on this device.

    A run counts for those of its task, preset, protocol, data and model on the same device, however
    long they train. An encoding that the task has no run of counts as the others there, times how
    slow it is in other tasks.

    Args:
        records: of earlier runs.
        device: "cpu" or "cuda".
    """

    def __init__(self, records: Iterable[RunRecord], device: str) -> None:
        here = environment.name_of(device)
        self.costs: dict[Hashable, dict[str, list[Cost]]] = defaultdict(lambda: defaultdict(list))
        self.used = 0
        for record in records:
            if record.environment.get("device") != here or record.status != "done":
                continue
            with suppress(KeyError):  # a record may lack settings and costs
                cost = _cost_of(record)
                if cost:
                    self.costs[_key(record.settings, record.data)][record.encoding].append(cost)
                    self.used += 1
        self.slowness = self._slowness()
        self._counted: set[Hashable] = set()

    def seconds(self, run: Run) -> float | None:
        """Return the seconds that a run may take, None where no run tells.

        What several runs share (a start, or a search for learning rates) counts for the first.
        """
        resolved = run.resolved
        known = self.costs.get(_key(resolved.settings, resolved.task.provenance()))
        if not known:
            return None
        task = resolved.task
        trainings = len(task.subsets) if task.trains_each_subset else 1
        rows = trainings * _rows(resolved.settings)
        label = run.encoding.label
        own = known.get(label)
        if own:
            return fmean(cost.seconds(rows) for cost in own) + self._shared(run, own, rows)
        of_others = []
        for other, costs in known.items():
            seconds = fmean(cost.seconds(rows) for cost in costs)
            of_others.append(seconds / self.slowness.get(other, 1.0))
        all_costs = [cost for costs in known.values() for cost in costs]
        shared = self._shared(run, all_costs, rows)
        return (fmean(of_others) + shared) * self.slowness.get(label, 1.0)

    def _shared(self, run: Run, costs: list[Cost], rows: float) -> float:
        """Return the seconds of what later runs need not do again."""
        resolved = run.resolved
        seconds = 0.0
        if resolved.start:
            folder = run.phases.before.checkpoint(resolved.start, None, run.seed)
            if folder not in self._counted and not folder.is_dir():
                seconds += fmean(cost.start for cost in costs)
            self._counted.add(folder)
        if resolved.tuning:
            search = (run.encoding.label, resolved.digest())
            if search not in self._counted and not run.phases.choices(resolved):
                seconds += TRAININGS * rows * fmean(cost.training for cost in costs)
            self._counted.add(search)
        return seconds

    def _slowness(self) -> dict[str, float]:
        """Return the time of each encoding as a multiple of the others', over all tasks."""
        ratios: dict[str, list[float]] = defaultdict(list)
        for known in self.costs.values():
            logs = {}
            for encoding, costs in known.items():
                logs[encoding] = math.log(max(1e-3, fmean(c.seconds(1000) for c in costs)))
            mean = fmean(logs.values())
            for encoding, log in logs.items():
                ratios[encoding].append(log - mean)
        return {encoding: math.exp(fmean(found)) for encoding, found in ratios.items()}


def find_records(*folders: Path) -> list[RunRecord]:
    """Return the records in results folders and exports that can be read; no other file is."""
    found: list[RunRecord] = []
    for folder in folders:
        for path in sorted((folder / "runs").glob("*/*/*/run.json")):
            with suppress(OSError, ValueError, RecursionError):
                content = json.loads(read_regular(path, LARGEST))
                found.append(RunRecord.from_json(content, path.parent))
        with suppress(OSError, ValueError, RecursionError):
            content = json.loads(read_regular(folder / EXPORTED, LARGEST))
            found += records_of_export(content, folder)
    return list({key_of(record): record for record in found}.values())  # a run once


def _cost_of(record: RunRecord) -> Cost | None:
    """Return the cost of a run; None if its record does not contain it."""
    trainings = [cost["training"] for cost in record.costs.values()]
    rows = _rows(record.settings)
    if not trainings or record.seconds is None:
        return None
    distinct = {training["seconds"] for training in trainings}  # one serves several subsets
    training = sum(distinct)
    before = record.pretraining["seconds"] if record.pretraining else 0.0
    whole = rows * len(distinct)
    return Cost(training / whole if whole else 0.0, record.seconds - training, before)


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
