"""The learning rates of a table and how they were chosen."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from pe_bench.config import show_rate
from pe_bench.reporting.tables import Table
from pe_bench.results.identity import settings_of_phases
from pe_bench.results.record import RunRecord

EDGE = " (!)"
SAME = "for every encoding (not tuned)."

WORSE = "‡"
"""Mark of runs whose final training loss is much larger than in the search."""

FACTOR = 10.0
NEGLIGIBLE = 0.01
"""Training losses, in nats per target, below which no run is marked."""


def describe_tuning(table: Table) -> list[str]:
    """Return a line for each training phase of a table; empty without training.

    The phases of adapted models are the adaptation and the training of the source model.
    """
    if table.origin:
        lines = [_describe_adaptation(table), _describe_source(table)]
        return [line for line in lines if line]
    lines = []
    parts = (("task", "Learning rate"), ("start", "Learning rate of the pre-training"))
    for (part, name), settings in zip(
        parts, settings_of_phases(table.about.settings), strict=False
    ):
        tune = settings.get("tune")
        if tune:
            lines.append(_describe_search(table, part, name, tune))
        elif settings.get("train", {}).get("steps"):
            lines.append(f"{name}: {show_rate(settings['train']['lr'])} {SAME}")
    return lines


def _describe_adaptation(table: Table) -> str:
    """Return the line of the adaptation; empty if no model of the table was trained further."""
    name = "Learning rate of the adaptation"
    rates: dict[str, str] = {}
    for record in table.records:
        search = (record.tuning or {}).get("task")
        if search:  # its rates depend on `adapt.lr`, which is not a setting of the task
            tune = {**table.about.settings.get("tune", {}), "lr": search["rates"]}
            return _describe_search(table, "task", name, tune)
        config = (record.adaptation or {}).get("config", {})
        if config.get("steps"):
            rates[record.encoding] = show_rate(config["lr"])
    if not rates:
        return ""
    if len(set(rates.values())) == 1:
        return f"{name}: {next(iter(rates.values()))} {SAME}"
    each = [f"{encoding} {rate}" for encoding, rate in rates.items()]
    return f"{name} (not tuned): {'; '.join(each)}."


def _describe_source(table: Table) -> str:
    """Return the line of the source model's training; empty if the source is a checkpoint."""
    train = table.about.settings.get("train", {})
    if not train.get("steps"):
        return ""
    name = f"Learning rate of the source model {table.origin}"
    tune = table.about.settings.get("tune")
    if not tune:
        return f"{name}: {show_rate(train['lr'])} (not tuned)."
    search = (table.about.tuning or {}).get("start", {})
    choice = f": {_choices(search)}" if search else ""
    return f"{name}: tuned, beginning with {', '.join(map(show_rate, tune['lr']))}{choice}."


def _describe_search(table: Table, part: str, name: str, tune: Mapping[str, Any]) -> str:
    """Return the rates that the searches of one phase chose.

    Args:
        table: the table.
        part: name of the phase in `RunRecord.tuning`.
        name: begin of the line.
        tune: settings of the search.
    """
    chosen: dict[str, None] = {}
    costs: list[float] = []
    for encoding in table.ranking.order:
        for record in table.records:
            if record.encoding == encoding:
                search = (record.tuning or {}).get(part, {})
                chosen[f"{encoding} {_choices(search)}"] = None
                costs += search.get("trainings", {}).values()
    rates = ", ".join(map(show_rate, tune["lr"]))
    seeds = ", ".join(map(str, tune["seeds"]))
    if tune.get("version", 1) == 1:  # one grid, the smallest mean loss
        return (
            f"{name}: tuned for every encoding, of {rates}, by the loss on held-out batches (seed "
            f"{seeds}, not reported): {'; '.join(chosen)}."
        )
    rule = "the worst of seeds" if len(tune["seeds"]) > 1 else "seed"
    edge = any(EDGE in text for text in chosen)
    return (
        f"{name}: tuned for every encoding, beginning with {rates}, by the loss on held-out "
        f"batches ({rule} {seeds}, not reported): {'; '.join(chosen)}."
        + (f" A search took up to {max(costs):g} trainings." if costs else "")
        + (f" {EDGE.strip()} marks a rate at the edge of the rates tried." if edge else "")
    )


def _choices(search: Mapping[str, Any]) -> str:
    """Return the chosen learning rate and value, or each choice with its subsets."""
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


def find_worse(table: Table) -> dict[str, list[int]]:
    """Return the seeds of each encoding whose training ended much worse than in the search.

    Their training loss is more than FACTOR times the search's median for the same choice.
    Encodings without such a seed are left out.
    """
    found: dict[str, list[int]] = {}
    for record in table.records:
        if _is_worse(record):
            found.setdefault(record.encoding, []).append(record.seed)
    return {encoding: sorted(seeds) for encoding, seeds in found.items()}


def describe_worse(table: Table) -> list[str]:
    """Return a line with the number of runs that ended much worse than in the search."""
    found = find_worse(table)
    if not found:
        return []
    parts = []
    for encoding, seeds in found.items():
        plural = "s" if len(seeds) > 1 else ""
        parts.append(f"{encoding} (seed{plural} {', '.join(map(str, seeds))})")
    count = sum(map(len, found.values()))
    runs = "1 run has" if count == 1 else f"{count} runs have"
    return [
        f"{WORSE}: {runs} ended with a training loss of more than {FACTOR:g} times that of the "
        f"search under the same learning rate: {'; '.join(parts)}."
    ]


def _is_worse(record: RunRecord) -> bool:
    search = (record.tuning or {}).get("task", {})
    for subset, cost in record.costs.items():
        loss = cost.get("training", {}).get("loss")
        phase = subset if subset in search.get("lr", {}) else "all"
        expected = _loss_of_search(search, phase)
        if loss is None or expected is None:
            continue
        if loss > NEGLIGIBLE and loss > FACTOR * expected:
            return True
    return False


def _loss_of_search(search: Mapping[str, Any], phase: str) -> float | None:
    """Return the median training loss of the chosen trials; None if unknown."""
    lr = search.get("lr", {}).get(phase)
    value = search.get("values", {}).get(phase)
    losses = []
    for trial in search.get("tried", []):
        if (trial["phase"], trial["lr"], trial.get("value")) == (phase, lr, value):
            losses.append(trial.get("training_loss"))
    known = [loss for loss in losses if loss is not None]
    return median(known) if known else None
