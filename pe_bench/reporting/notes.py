"""Notes below a table: how to read it and how its numbers were measured."""

import math
from collections.abc import Sequence

from pe_bench.reporting import known_problems
from pe_bench.reporting.degradation import DEGRADATION, TITLE, find_column, find_unchanged
from pe_bench.reporting.paired import Comparison
from pe_bench.reporting.run_costs import mean_costs, training_loss
from pe_bench.reporting.same_data import describe_other_data
from pe_bench.reporting.sensitivity import describe_sensitivity
from pe_bench.reporting.tables import Table
from pe_bench.reporting.tuning_notes import describe_tuning, describe_worse
from pe_bench.results.record import RunRecord
from pe_bench.stats.significance import FEWEST_SEEDS
from pe_bench.system.commit import UP_TO_ROUNDING

BELOW = "†"

RANKS = (
    "rank: the best and the worst possible rank; encodings that share a letter do not differ "
    "significantly"
)
DEVIATION = "±: standard deviation over seeds."
ARROWS = "↑: higher is better, ↓: lower is better"
BASELINES = (
    "chance and the strongest baseline, which only count training batches and are not ranked"
)
NOT_BETTER = f"{BELOW}: not better than the strongest baseline."

NOT_FINITE = "logits are NaN or infinite"
"""Part of the notes of runs whose model had no numbers for some texts."""


def describe_marks(table: Table, comparison: Comparison, *, wide: bool) -> str:
    """Explain the marks in a table for the terminal."""
    marks = [f"{ARROWS}.", _describe_spread(table)]
    if comparison.ranks:
        marks.append(f"{RANKS}.")
    elif any(difference.seeds > 1 for difference in comparison.pairs):
        marks.append(f"rank: not tested with fewer than {FEWEST_SEEDS} seeds.")
    if table.ranking.shown_baselines:
        names = ", ".join(table.ranking.shown_baselines)
        marks.append(f"{BASELINES.capitalize()}: {names}.")
        if table.ranking.below_baselines:
            marks.append(NOT_BETTER)
    marks += _describe_degradation(table)
    marks += describe_other_data(table.records)
    marks += [f"Missing: {name} ({why})." for name, why in table.about.unavailable.items()]
    if not wide:
        marks.append("All columns: --wide.")
    return " ".join(marks)


def write_notes(table: Table) -> str:
    """Return the notes below a table, a line each."""
    known = known_problems.find(table.about.settings_digest)
    lines = [f"Known problem: {problem}" for problem in known]
    lines += describe_other_data(table.records)
    if table.differences:
        settings = ", ".join(f"{key}={value}" for key, value in table.differences.items())
        lines.append(f"Differs from other tables of this title in: {settings}.")
    metric = table.ranking.metric.title_and_unit
    ranked = "Ranked by" if table.ranking.names else "Not ranked: no run has"
    lines.append(
        f"{ranked} the first column of scores. All columns are means over all seeds. Columns "
        f"without a metric: {metric}. {ARROWS}; ID, OOD: in and out of distribution. "
        f"{_describe_spread(table)}"
    )
    if table.is_gated:
        gate = table.about.gate
        condition = "is better than the best baseline"
        if gate is not None:
            condition = f"reaches at least {gate:g} %"
        lines.append(
            f"A seed has learned the task if it {condition} in distribution. The number of these "
            "seeds has Wilson's 95 % interval for their fraction. A column shows their mean, which "
            "does not rank."
        )
    lines += _describe_degradation(table)
    if not all(math.isnan(training_loss(table, name)) for name in table.encodings):
        lines.append("Training loss: the loss at the end, as the median over seeds.")
    if (table.scores["status"] == "partial").any():
        lines.append(
            "Partial: a mean over only some of the parts, which is not ranked. If a seed lacks "
            "parts that it measured, no seed of this encoding is ranked."
        )
    lines += _describe_baselines(table)
    lines += describe_sensitivity(table)
    lines += _describe_sizes(table)
    lines += describe_tuning(table)
    lines += describe_worse(table)
    lines += [f"Missing: {name} ({reason})." for name, reason in table.about.unavailable.items()]
    lines += describe_missing(table)
    commits = table.commits
    code = f" at commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}" if commits else ""
    if len(commits) > 1 and not table.about.measures_time:
        code += f"; numbers of these commits are {UP_TO_ROUNDING}"
    devices = ", ".join(table.devices)
    lines.append(f"Settings {table.about.settings_digest}; measured on {devices}{code}.")
    return "\n".join(lines)


def _describe_degradation(table: Table) -> list[str]:
    """Explain the column of the degradation at the original length."""
    if not (table.scores["metric"] == DEGRADATION).any():
        return []
    column = find_column(table.about)
    assert column is not None
    unchanged = find_unchanged(table.records)
    return [
        f"{TITLE.capitalize()}: difference of a row to the unchanged model ({unchanged}) in "
        f"column {column.title or column.subset}, for equal seeds; above 0 is worse."
    ]


def _describe_sizes(table: Table) -> list[str]:
    """Return the size of the model and of its training, and explain the columns of costs."""
    lines = []
    model = table.about.settings.get("model", {})
    train = table.about.settings.get("train", {})
    if "layers" in model and train.get("steps"):
        training = "training of the source model" if table.origin else "training"
        lines.append(
            f"Model: {model['layers']} layers of width {model['width']}, {model['heads']} heads; "
            f"{training}: {train['steps']:,} steps of {train['batch_size']} rows."
        )
    costs = set().union(*(mean_costs(table, encoding) for encoding in table.encodings))
    if costs and not table.about.measures_time:
        memory = " MiB: mean peak memory of a run." if len(costs) > 1 else ""
        lines.append(f"Seconds: mean time of the training and the evaluation of a run.{memory}")
    return lines


def _describe_spread(table: Table) -> str:
    """Explain the ± or the interval of a number."""
    if table.has_seeds:
        return DEVIATION
    if table.about.measures_time:
        return "(a to b): quartiles over repetitions, after their median."
    return "(a to b): 95 % interval over items, for a single trained model."


def describe_unfinished(records: Sequence[RunRecord]) -> list[str]:
    """Return a line for each run that is in no table, with the reason."""
    lines = []
    for record in records:
        if record.status != "done":
            reason = (record.reason or "").strip() or "no reason recorded"
            run = f"{record.encoding} on {record.task}, seed {record.seed}"
            lines.append(f"{run}: {record.status}, {reason.splitlines()[0]}")
    return lines


def _describe_baselines(table: Table) -> list[str]:
    """Explain the rows of baselines and the mark of encodings that do not beat them."""
    if not table.ranking.shown_baselines:
        return []
    line = f"In italics: {BASELINES}."
    return [f"{line} {NOT_BETTER}" if table.ranking.below_baselines else line]


def describe_missing(table: Table) -> list[str]:
    """Return the measurements missing from a table of times, or of models without finite logits."""
    encodings: dict[str, dict[str, None]] = {}
    for record in table.records:
        for note in record.notes:
            if table.about.measures_time or NOT_FINITE in note:
                encodings.setdefault(note, {})[record.encoding] = None
    start = "Left out for" if table.about.measures_time else "Not complete:"
    return [f"{start} {', '.join(names)}: {note}." for note, names in encodings.items()]
