"""Leaderboard and plots: a pure function of the results folder, without torch.

Runs are compared only under equal settings: one table for each combination of task, preset,
protocol, data and everything else that decides a number. Nothing is mixed, nothing is filled in.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pe_bench.errors import InputError
from pe_bench.reporting import published
from pe_bench.reporting.tables import NUMBER, Table, make_tables, ranking, shown
from pe_bench.results.reading import read_runs
from pe_bench.system.files import write_atomic

ABSENT = "–"


def write_report(results: Path) -> list[Path]:
    """Writes leaderboard.csv, leaderboard.md and plots/ into the results folder.

    Returns:
        The files written.

    Raises:
        InputError: there is nothing to report.
    """
    from pe_bench.reporting.figures import draw_figures  # matplotlib takes a second to import
    from pe_bench.reporting.plots import plot_table

    runs = read_runs(results)
    if not runs:
        raise InputError(
            f"there are no runs in {results}: use pe-bench run first, or give --results"
        )
    tables = make_tables(runs)
    try:
        (results / "plots").mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot write to {results / 'plots'} ({error.strerror}): move what is in the way"
        ) from None
    plots = {
        table.name: [*filter(None, [plot_table(table, results / "plots")])] for table in tables
    }
    singles = []
    for table in tables:
        overviews, others = draw_figures(table, results / "plots")
        plots[table.name] += overviews
        singles += others
    sections = ["# Leaderboard"]
    last = {_task_name(table): table for table in tables}
    for table in tables:
        notes = filter(None, [_distinction(table, tables), _notes(table)])
        sections += [f"## {table.title}", "\n".join(notes), markdown(table)]
        sections += [f"![{table.title}](plots/{plot.name})" for plot in plots[table.name]]
        if last[_task_name(table)] is table:  # once, below all that was measured
            sections.append(published.markdown(_task_name(table)))
    sections.append(_unfinished(runs))
    leaderboard = results / "leaderboard.csv"
    flat = pd.concat([_flat(table) for table in tables] or [pd.DataFrame(columns=["task"])])
    write_atomic(leaderboard, flat.to_csv(index=False, float_format="%.6g"))
    write_atomic(results / "leaderboard.md", "\n\n".join(filter(None, sections)) + "\n")
    drawn = [path for paths in plots.values() for path in paths]
    return [leaderboard, results / "leaderboard.md", *drawn, *singles]


def summary(results: Path, folders: Sequence[Path]) -> str:
    """The tables of some runs, for the terminal."""
    wanted = {folder.resolve() for folder in folders}
    runs = [run for run in read_runs(results) if run["folder"].resolve() in wanted]
    parts = [f"{table.title}\n\n{markdown(table)}" for table in make_tables(runs)]
    return "\n\n".join(filter(None, [*parts, _unfinished(runs)]))


def markdown(table: Table) -> str:
    """One line per encoding, best first: headline, then the shown metric of each subset."""
    columns = _columns(table)
    order = ranking(table)
    header = ["encoding", *columns, "seeds", "parameters"]
    lines = [header, ["---"] + ["---:"] * (len(header) - 1)]
    for encoding in order:
        runs = [run for run in table.runs if run["encoding"] == encoding]
        cells = [_cell(table, encoding, key) for key in columns.values()]
        lines.append([encoding, *cells, str(len(runs)), f"{runs[0]['parameters']:,}"])
    widths = [max(len(line[i]) for line in lines if line[i]) for i in range(len(header))]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def _columns(table: Table) -> dict[str, tuple[str, str, float | None]]:
    """Heading -> (subset, metric, length) of what is shown, the headline first."""
    headline = table.about["headline"]
    present = table.scores[NUMBER].drop_duplicates()
    columns: dict[str, tuple[str, str, float | None]] = {}
    overall = present[present.subset == headline["subset"]]
    metrics = sorted(overall.metric.unique(), key=lambda metric: metric != headline["metric"])
    for metric in metrics:  # the headline, then what stands in where it may not
        columns[metric.replace("_", " ")] = (headline["subset"], metric, None)
    for subset, metric in shown(table).items():
        rows = present[(present.subset == subset) & (present.metric == metric)]
        lengths = sorted(rows.length.dropna().unique())
        if len(rows) > 1 and len(lengths) == len(rows):
            for length in lengths:
                columns[f"{subset} at {length:,.0f}"] = (subset, metric, length)
        else:
            label = metric.upper() if len(metric) < 4 else metric.replace("_", " ")
            columns[f"{subset} ({label})"] = (subset, metric, None)
    return columns


def _cell(table: Table, encoding: str, key: tuple[str, str, float | None]) -> str:
    subset, metric, length = key
    scores = table.scores
    column = scores[(scores.subset == subset) & (scores.metric == metric)]
    if length is not None:
        column = column[column.length == length]
    elif column.length.isna().any():  # a mean over lengths goes before what it is the mean of
        column = column[column.length.isna()]
    found = column[column.encoding == encoding]
    if found.empty:
        return ABSENT
    row = found.iloc[0]
    digits = 3 if column["mean"].abs().max() < 10 else 2
    spread = row["sd"] if row["seeds"] > 1 else row["stderr"]
    value = f"{row['mean']:.{digits}f}"
    value = value if pd.isna(spread) else f"{value} ± {spread:.{digits}f}"
    runs = sum(run["encoding"] == encoding for run in table.runs)
    return value if row["seeds"] == runs else f"{value} ({row['seeds']} of {runs})"


def _task_name(table: Table) -> str:
    name: str = table.about["task"].partition(":")[0]
    return name


def _flat(table: Table) -> pd.DataFrame:
    about = table.about
    common = {
        "task": about["task"],
        "preset": about["preset"],
        "protocol": about["protocol"],
        "data": about["data"]["label"],
        "settings": table.settings,
    }
    scores = table.scores.astype({"length": "Int64"})  # a float of a million has an exponent
    return scores.assign(**common)[[*common, *scores.columns]]


def _notes(table: Table) -> str:
    lines = ["± is the standard deviation over seeds; of one seed, the standard error over items."]
    if table.scores.metric.str.startswith("unsolved_").any():
        lines.append(
            "Unsolved: not learned within the trained range, so not ranked beyond it; (2 of 3) is "
            "how many seeds a number is the mean of."
        )
    for name, reason in table.about["missing"].items():
        lines.append(f"Missing: {name} ({reason}).")
    commits = {
        (git["commit"][:10] + (" with changes" if git["dirty"] else ""))
        for run in table.runs
        if (git := run["environment"]["git"])
    }
    devices = sorted({run["environment"]["device"] for run in table.runs})
    lines.append(f"Settings {table.settings}; measured on {', '.join(devices)}.")
    if commits:
        lines.append(f"Code at {', '.join(sorted(commits))}.")
    return "\n".join(lines)


def _distinction(table: Table, tables: Sequence[Table]) -> str:
    """What tells a table from others of the same title: the settings that differ."""
    same = [_flatten(other.about["settings"]) for other in tables if other.title == table.title]
    own = _flatten(table.about["settings"])
    differing = [key for key in own if any(other.get(key) != own[key] for other in same)]
    return "Here " + ", ".join(f"{key} is {own[key]}" for key in differing) if differing else ""


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        inner = _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else None
        flat |= {f"{prefix}{key}": value} if inner is None else inner
    return flat


def _unfinished(runs: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"- {run['encoding']} on {run['task']}, seed {run['seed']}: {run['status']}, "
        f"{(run.get('reason') or 'no reason recorded').strip().splitlines()[-1]}"
        for run in runs
        if run["status"] != "done"
    ]
    return "Not in a table:\n\n" + "\n".join(lines) if lines else ""
