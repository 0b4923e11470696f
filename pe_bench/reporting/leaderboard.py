"""The leaderboard: a ranked table for each combination of settings."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd

from pe_bench.reporting.columns import (
    NumberColumn,
    list_columns,
    show_learned,
    show_learned_mean,
    show_number,
    show_rank,
)
from pe_bench.reporting.markdown import ABSENT, Markdown, escape, markdown_table
from pe_bench.reporting.notes import BELOW, describe_marks, unfinished_runs
from pe_bench.reporting.paired import Comparison, compare_table
from pe_bench.reporting.run_costs import mean_costs, training_loss
from pe_bench.reporting.tables import Table, make_tables
from pe_bench.reporting.terminal import plain_table, wrap
from pe_bench.reporting.tuning_notes import WORSE, describe_tuning, describe_worse, find_worse
from pe_bench.results.identity import digest_settings
from pe_bench.results.record import RunRecord
from pe_bench.results.store import read_record

UNLIMITED = 10_000  # characters per line
LEARNED = "seeds that learned"
TUNED = (
    "Measured before with the same settings, but with a learning rate tuned for each encoding. "
    "These runs are shown for comparison and not ranked together."
)
COSTS = {"seconds": ("seconds", 1), "peak_memory_bytes": ("MiB", 2**20)}  # heading, unit


def summarize(
    folders: Iterable[Path], earlier: Iterable[RunRecord] = (), *, wide: bool = False
) -> str:
    """Return the leaderboard of the runs in some folders, for the terminal.

    Args:
        folders: folders of the runs.
        earlier: other runs. They are shown in the same table as new runs with equal settings,
            and in a table below if the settings differ only in tuned learning rates.
        wide: whether to show all columns regardless of the terminal's width.
    """
    records = [read_record(folder) for folder in sorted(set(folders))]
    given = {record.folder for record in records}
    ran = {record.encoding for record in records}
    beside = [one for one in earlier if one.status == "done" and one.folder not in given]
    settings = {record.settings_digest for record in records}
    parts = []
    tables = make_tables([*records, *beside])
    for table in tables:
        if table.about.settings_digest not in settings:
            continue
        comparison = compare_table(table)
        shown = brief_table(table, comparison)
        if wide:
            shown = plain_table(*ranked(table, comparison), UNLIMITED)
        marks = describe_marks(table, comparison, wide=wide)
        others = [name for name in table.encodings if name not in ran]
        if others:
            marks += f" Measured before: {', '.join(others)}."
        if (table.about.settings or {}).get("tune"):
            marks += " " + " ".join([*describe_tuning(table), *describe_worse(table)])
        parts += [wrap(table.heading), shown, wrap(marks)]
        for other in tables:
            if other.about.settings_digest not in settings and _differ_in_tuning(table, other):
                parts += [wrap(TUNED), brief_table(other, compare_table(other))]
    return "\n\n".join(filter(None, [*parts, unfinished_runs(records)]))


def _differ_in_tuning(table: Table, other: Table) -> bool:
    """Return whether only the other table has tuned learning rates and all else is equal."""
    own, others = dict(table.about.settings), dict(other.about.settings)
    if own.pop("tune", None) or not others.pop("tune", None):
        return False
    alike = own.keys() == others.keys() and own.get("task") == others.get("task")
    return alike and digest_settings(own) == digest_settings(others)


def brief_table(table: Table, comparison: Comparison) -> str:
    """Return the ranked encodings for a terminal: rank, headline, differences and seeds."""
    header, rows = ranked(table, comparison)
    shown = [0, *(index for index, name in enumerate(header) if name == "rank")]
    columns = list_columns(table)
    shown.append(header.index(columns[0].heading))
    shown += [header.index(column.heading) for column in columns if column.signed]
    learned = header.index(LEARNED) if LEARNED in header else None
    shown.append(header.index("seeds") if learned is None else learned)
    brief = []
    for row in rows:
        cells = list(row)
        if learned is not None:
            cells[learned] = row[learned].partition(" (")[0]
        brief.append([cells[index] for index in shown])
    return plain_table([header[index] for index in shown], brief)


def ranked_table(table: Table, comparison: Comparison) -> str:
    """Return the encodings in Markdown, best first: the headline, then the columns of the task."""
    header, rows = ranked(table, comparison)
    for row in rows:
        label, mark, _ = row[0].partition(f" {BELOW}")
        row[0] = table.short.get(label, label) + mark
        if row[0] in table.ranking.shown_baselines:
            row[0] = Markdown(f"*{escape(row[0])}*")
    return markdown_table(header, rows, "l" + "r" * len(header[1:]))


def ranked(table: Table, comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return heading and cells of the ranked table, encodings before baselines."""
    first, *others = list_columns(table)
    shown: list[tuple[str, Callable[[str], str]]] = []  # heading, and cell of an encoding
    if any(difference.seeds > 1 for difference in comparison.pairs):
        shown.append(("rank", partial(show_rank, comparison)))
    shown.append((first.heading, partial(_number, table, first)))
    if table.is_gated:
        shown.append((LEARNED, partial(show_learned, table, first)))
        unit = " %" if first.percent else ""
        shown.append((f"their mean{unit}, not ranked", partial(show_learned_mean, first)))
    for column in others:
        shown.append((column.heading, partial(_number, table, column)))
    losses = {encoding: training_loss(table, encoding) for encoding in table.encodings}
    if not all(map(math.isnan, losses.values())):
        shown.append(("training loss", partial(_loss, losses, find_worse(table))))
    shown.append(("seeds", lambda encoding: str(table.seeds(encoding))))
    shown.append(("parameters", partial(_parameters, table)))
    if not table.about.measures_time:
        costs = {encoding: mean_costs(table, encoding) for encoding in table.encodings}
        for name, (heading, unit_size) in COSTS.items():
            if any(name in own for own in costs.values()):
                shown.append((heading, partial(_cost, costs, name, unit_size)))
    below = table.ranking.below_baselines
    rows = []
    for encoding in table.ranking.order:
        label = f"{encoding} {BELOW}" if encoding in below else encoding
        rows.append([label, *(cell(encoding) for _, cell in shown)])
    header = ["encoding", *(heading for heading, _ in shown)]
    return header, [*rows, *_baseline_rows(table, header)]


def _number(table: Table, column: NumberColumn, encoding: str) -> str:
    return show_number(column, encoding, table.seeds(encoding))


def _loss(losses: Mapping[str, float], worse: Mapping[str, Sequence[int]], encoding: str) -> str:
    """Return the training loss, with the number of runs that ended worse than in the search."""
    loss = losses[encoding]
    count = f" {WORSE}{len(worse[encoding])}" if encoding in worse else ""
    return ABSENT if math.isnan(loss) else f"{loss:.4f}{count}"


def _parameters(table: Table, encoding: str) -> str:
    record = next(record for record in table.records if record.encoding == encoding)
    return ABSENT if record.parameters is None else f"{record.parameters:,}"


def _cost(
    costs: Mapping[str, Mapping[str, float]], name: str, unit_size: float, encoding: str
) -> str:
    found = costs[encoding].get(name)
    return ABSENT if found is None else f"{found / unit_size:,.0f}"


def flatten(table: Table) -> pd.DataFrame:
    """Return the scores of a table with its settings, as written to leaderboard.csv."""
    about = table.about
    common = {
        "task": about.task,
        "preset": about.preset,
        "protocol": about.protocol,
        "data": about.data.get("label", ""),
        "settings": about.settings_digest,
    }
    scores = table.scores.astype({"length": "Int64"})  # a float would be written as 1e+06
    return scores.assign(**common)[[*common, *scores.columns]]


def _baseline_rows(table: Table, header: Sequence[str]) -> list[list[str]]:
    """Return a row of the ranked table for each baseline."""
    if table.baselines.empty:
        return []
    alone = replace(table, tidy=table.baselines.assign(baseline=False))
    columns = {c.heading: c for c in list_columns(alone)}
    digits = {column.heading: column.digits for column in list_columns(table)}
    rows = []
    for name in table.ranking.shown_baselines:
        row = [name]
        for heading in header[1:]:
            column = columns.get(heading)
            number = None if column is None else column.of.get(name)
            row.append(ABSENT if number is None else f"{number['mean']:.{digits[heading]}f}")
        rows.append(row)
    return rows
