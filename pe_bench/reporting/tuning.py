"""Which learning rate each encoding of a table was trained with, and how it was chosen."""

from collections.abc import Mapping
from typing import Any

from pe_bench.config import show_rate
from pe_bench.reporting.tables import Table
from pe_bench.results.record import RunRecord


def describe_tuning(table: Table) -> list[str]:
    """Return a line for each training phase of a table; none where nothing is trained."""
    lines = []
    settings: Mapping[str, Any] | None = table.about.settings
    for part, name in (("task", "Learning rate"), ("start", "Learning rate of the pre-training")):
        if settings:
            lines.append(_describe(table, part, name, settings))
            settings = settings.get("start")
    return [line for line in lines if line]


def _describe(table: Table, part: str, name: str, settings: Mapping[str, Any]) -> str:
    train = settings.get("train", {})
    tune = settings.get("tune")
    if not train.get("steps"):
        return ""
    if not tune:
        return f"{name}: {show_rate(train['lr'])} for every encoding (default, not tuned)."
    chosen: dict[str, None] = {}
    for encoding in table.ranking():
        for record in table.records:
            if record.encoding == encoding:
                chosen[f"{encoding} {_rates(record, part)}"] = None
    rates = ", ".join(map(show_rate, tune["lr"]))
    seeds = ", ".join(map(str, tune["seeds"]))
    return (
        f"{name}: tuned for every encoding, of {rates}, by the loss on held-out draws (seed "
        f"{seeds}, not reported): {'; '.join(chosen)}."
    )


def _rates(record: RunRecord, part: str) -> str:
    """Return the chosen rate, or each with the subsets that it was chosen for."""
    chosen: Mapping[str, float] = (record.tuning or {}).get(part, {}).get("lr", {})
    subsets: dict[str, list[str]] = {}
    for phase, lr in chosen.items():
        subsets.setdefault(show_rate(lr), []).append(phase)
    if len(subsets) == 1:
        return next(iter(subsets))
    return ", ".join(f"{rate} ({', '.join(names)})" for rate, names in subsets.items())
