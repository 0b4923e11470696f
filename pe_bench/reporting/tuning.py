"""What each encoding of a table was trained with, and how that was chosen."""

from collections.abc import Mapping
from typing import Any

from pe_bench.config import show_rate
from pe_bench.reporting.tables import Table

EDGE = " (!)"


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
    costs: list[float] = []
    for encoding in table.ranking():
        for record in table.records:
            if record.encoding == encoding:
                search = (record.tuning or {}).get(part, {})
                chosen[f"{encoding} {_choices(search)}"] = None
                costs += search.get("trainings", {}).values()
    rates = ", ".join(map(show_rate, tune["lr"]))
    seeds = ", ".join(map(str, tune["seeds"]))
    if tune.get("version", 1) == 1:  # one grid, the smallest mean loss
        return (
            f"{name}: tuned for every encoding, of {rates}, by the loss on held-out draws (seed "
            f"{seeds}, not reported): {'; '.join(chosen)}."
        )
    rule = "the worst of seeds" if len(tune["seeds"]) > 1 else "seed"
    edge = any(EDGE in text for text in chosen)
    return (
        f"{name}: tuned for every encoding, beginning with {rates}, by the loss on held-out draws "
        f"({rule} {seeds}, not reported): {'; '.join(chosen)}."
        + (f" A search took up to {max(costs):g} trainings." if costs else "")
        + (f" {EDGE.strip()} marks a rate at the edge of what was tried." if edge else "")
    )


def _choices(search: Mapping[str, Any]) -> str:
    """Return the chosen rate and value, or each with the subsets that it was chosen for."""
    subsets: dict[str, list[str]] = {}
    for phase, lr in search.get("lr", {}).items():
        text = show_rate(lr)
        value = search.get("values", {}).get(phase)
        if value is not None:
            text += f", {search.get('option', 'value')}={value}"
        if search.get("at_edge", {}).get(phase):
            text += EDGE
        subsets.setdefault(text, []).append(phase)
    if len(subsets) == 1:
        return next(iter(subsets))
    return ", ".join(f"{choice} ({', '.join(names)})" for choice, names in subsets.items())
