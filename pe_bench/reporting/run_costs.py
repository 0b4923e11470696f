"""Loss, time and memory of runs, from their records."""

import math
import statistics

from pe_bench.reporting.tables import Table
from pe_bench.results.record import RunRecord


def training_loss(table: Table, encoding: str) -> float:
    """Return the median over seeds of the loss at the end of training; nan if unknown.

    If each subset has a separate training, the loss of a seed is the mean over the subsets.
    """
    losses = []
    for record in table.records:
        if record.encoding == encoding:
            found = [training.get("loss") for training in record.trainings]
            known = [loss for loss in found if loss is not None]
            losses += [statistics.fmean(known)] if known else []
    return statistics.median(losses) if losses else math.nan


def mean_costs(table: Table, encoding: str) -> dict[str, float]:
    """Return mean seconds and peak memory of a run, over the runs that recorded them."""
    found: dict[str, list[float]] = {}
    for record in table.records:
        own = {"seconds": record.seconds, "peak_memory_bytes": record.peak_memory_bytes}
        for name, value in own.items():
            if record.encoding == encoding and value is not None:
                found.setdefault(name, []).append(value)
    return {name: statistics.fmean(values) for name, values in found.items()}


def training_seconds(record: RunRecord) -> float:
    """Return the training time of a run."""
    return sum(float(training.get("seconds") or 0) for training in record.trainings)
