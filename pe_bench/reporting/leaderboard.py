"""The leaderboard: a ranked table for each combination of settings, with its notes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pe_bench.reporting.markdown import ABSENT, markdown_table
from pe_bench.reporting.tables import Table, make_tables
from pe_bench.reporting.tuning import describe_tuning
from pe_bench.results.reading import read_records
from pe_bench.results.record import RunRecord
from pe_bench.results.views import Column

# Headings of the headline's means that are not ranked.
UNRANKED = {"not_learned": "not learned", "partial": "partial"}


@dataclass(frozen=True)
class NumberColumn:
    """A column of the leaderboard.

    Attributes:
        heading: subset, metric, unit and an arrow that points to better values.
        numbers: one row for each encoding that has a number.
        percent: whether the numbers are percentages.
    """

    heading: str
    numbers: pd.DataFrame
    percent: bool


def summarize(results: Path, folders: Iterable[Path]) -> str:
    """Return the leaderboard of some runs, for the terminal.

    Args:
        results: the results folder.
        folders: of the runs.
    """
    wanted = {folder.resolve() for folder in folders}
    records = [r for r in read_records(results) if r.folder and r.folder.resolve() in wanted]
    parts = [f"{table.heading}\n\n{ranked_table(table)}" for table in make_tables(records)]
    return "\n\n".join(filter(None, [*parts, unfinished_runs(records)]))


def ranked_table(table: Table) -> str:
    """Return the encodings in Markdown, best first: the headline, then the columns of the task."""
    columns = list_columns(table)
    gated = any(table.learned(encoding) < table.seeds(encoding) for encoding in table.encodings)
    rows = []
    for encoding in table.ranking():
        seeds = table.seeds(encoding)
        record = next(r for r in table.records if r.encoding == encoding)
        cells = [_cell(column, encoding, seeds) for column in columns]
        learned = f"{table.learned(encoding)} of {seeds}" if gated else str(seeds)
        parameters = ABSENT if record.parameters is None else f"{record.parameters:,}"
        rows.append([encoding, *cells, learned, parameters])
    headings = [column.heading for column in columns]
    header = ["encoding", *headings, "seeds learned" if gated else "seeds", "parameters"]
    return markdown_table(header, rows, "l" + "r" * len(header[1:]))


def list_columns(table: Table) -> list[NumberColumn]:
    """Return the columns that there are numbers for, the headline first."""
    headline = table.headline
    numbers = _without_lengths(table.numbers(headline.subset, headline.metric))
    ranked = numbers[numbers["status"] == "ranked"]
    columns = [_column(table, headline.subset, headline.metric, ranked, first=True)]
    for status, name in UNRANKED.items():
        part = numbers[numbers["status"] == status]
        if not part.empty:
            columns.append(_column(table, name, headline.metric, part))
    for view in table.views(Column):
        if (view.subset, view.metric) == (headline.subset, headline.metric):
            continue
        numbers = table.numbers(view.subset, view.metric)
        numbers = numbers[numbers["status"] != "partial"]
        name = view.title or view.subset
        lengths = sorted(numbers["length"].dropna().unique())
        if len(lengths) > 1 and numbers["length"].notna().all():
            for length in lengths:
                part = numbers[numbers["length"] == length]
                columns.append(_column(table, f"{name} at {length:,.0f}", view.metric, part))
        else:
            columns.append(_column(table, name, view.metric, _without_lengths(numbers)))
    return columns


def write_notes(table: Table) -> str:
    """Return what has to be known to read a table, a line each."""
    headline = table.headline
    lines = []
    if table.differences:
        settings = ", ".join(f"{key}={value}" for key, value in table.differences.items())
        lines.append(f"Differs from other tables of this title in: {settings}.")
    lines.append(
        f"Ranked by the first column. Columns without a metric: {table.title_of(headline.metric)}. "
        "↑: higher is better, ↓: lower is better; ID, OOD: in and out of distribution. ±: standard "
        "deviation over seeds, with one seed the standard error over items. (2 of 3): the mean of "
        "two of three seeds."
    )
    if (table.scores["status"] == "not_learned").any():
        lines.append(
            "The first column is the mean over the seeds that learned what was trained, and ranks "
            "them; the others are in the next one, and an encoding with none that did comes last. "
            "[ ]: of seeds that did not learn."
        )
    if (table.scores["status"] == "partial").any():
        lines.append("Partial: a mean over some of the parts only, not ranked.")
    lines += _chances(table)
    lines += describe_tuning(table)
    lines += [f"Missing: {name} ({reason})." for name, reason in table.about.unavailable.items()]
    names = {str(record.environment.get("device")) for record in table.records}
    commits = sorted({_commit(record) for record in table.records} - {""})
    code = f" at commit {', '.join(commits)}" if commits else ""
    devices = ", ".join(sorted(names))
    lines.append(f"Settings {table.about.settings_digest}; measured on {devices}{code}.")
    return "\n".join(lines)


def unfinished_runs(records: Sequence[RunRecord]) -> str:
    """Return a list of the runs that are in no table, with their reasons; empty: there are none."""
    lines = []
    for record in records:
        if record.status != "done":
            reason = (record.reason or "").strip() or "no reason recorded"
            run = f"{record.encoding} on {record.task}, seed {record.seed}"
            lines.append(f"- {run}: {record.status}, {reason.splitlines()[0]}")
    return "\n".join(["Not in a table:", "", *lines]) if lines else ""


def flatten(table: Table) -> pd.DataFrame:
    """Return the scores of a table with what they are of, as leaderboard.csv holds them."""
    about = table.about
    common = {
        "task": about.task,
        "preset": about.preset,
        "protocol": about.protocol,
        "data": about.data.get("label", ""),
        "settings": about.settings_digest,
    }
    scores = table.scores.astype({"length": "Int64"})  # a float of a million has an exponent
    return scores.assign(**common)[[*common, *scores.columns]]


def shorten(subset: str) -> str:
    """Return the name of a subset for a heading, ID and OOD in place of in and out of distribution.

    Only parts of the name are replaced, as in "index-in-distribution".
    """
    return subset.replace("-out-of-distribution", " OOD").replace("-in-distribution", " ID")


def _column(
    table: Table, name: str, metric: str, numbers: pd.DataFrame, *, first: bool = False
) -> NumberColumn:
    """Return a column whose heading names the metric, unless it is that of the first column."""
    heading = f"{shorten(name)} ({table.label(metric)})"
    if metric == table.headline.metric and not first:
        heading = f"{shorten(name)} {table.arrow(metric)}".strip()
    return NumberColumn(heading, numbers, table.metric(metric).unit == "%")


def _without_lengths(numbers: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over lengths where there is one, else everything."""
    means = numbers[numbers["length"].isna()]
    return numbers if means.empty else means


def _cell(column: NumberColumn, encoding: str, seeds: int) -> str:
    found = column.numbers[column.numbers["encoding"] == encoding]
    if found.empty:
        return ABSENT
    ranked = found[found["status"] == "ranked"]
    number = (found if ranked.empty else ranked).iloc[0]
    digits = 2 if column.percent or column.numbers["mean"].abs().max() >= 10 else 3
    text = f"{number['mean']:.{digits}f}"
    spread = number["sd"] if number["seeds"] > 1 else number["stderr"]
    if pd.notna(spread):
        text += f" ± {spread:.{digits}f}"
    if number["seeds"] != seeds:
        text += f" ({number['seeds']} of {seeds})"
    return f"[{text}]" if number["status"] == "not_learned" else text


def _chances(table: Table) -> list[str]:
    """Return a line on what guessing gives, if the task says it."""
    views = [view for view in table.views(Column) if view.chance is not None]
    if not views:
        return []
    if len({view.chance for view in views}) == 1:
        return [f"Guessing gives {views[0].chance:.3g}."]
    parts = [f"{shorten(view.title or view.subset)} {view.chance:.3g}" for view in views]
    return [f"Guessing gives: {', '.join(parts)}."]


def _commit(record: RunRecord) -> str:
    git = record.environment.get("git")
    if not git:
        return ""
    return f"{git['commit'][:10]}{' with changes' if git['dirty'] else ''}"
