"""Leaderboard and plots: a pure function of the results folder, without torch.

Runs are compared only under equal settings: one table for each combination of task, preset,
protocol, data and everything else that decides a number. Nothing is mixed, nothing is filled in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pe_bench import published
from pe_bench.errors import InputError
from pe_bench.results import read_runs, slug, write_atomic

ABSENT = "–"
NUMBER = ["subset", "length", "aux", "metric"]  # what tells the numbers of a run apart


@dataclass(frozen=True)
class Table:
    """Runs under equal settings.

    Attributes:
        title: task, preset, protocol and data.
        settings: digest of everything that they have in common.
        runs: run.json of each, one per encoding and seed.
        rows: their measurements, all of them.
        scores: one row per encoding and number: mean, sd (over seeds), stderr (over items), seeds.
    """

    title: str
    settings: str
    runs: list[dict[str, Any]]
    rows: pd.DataFrame
    scores: pd.DataFrame

    @property
    def about(self) -> dict[str, Any]:
        """What all runs have in common, as any one of them tells it."""
        return self.runs[0]

    @property
    def name(self) -> str:
        """File name of its plots."""
        return slug(self.title.replace(" · ", "-").replace("data=", "")) + f"-{self.settings}"


def write_report(results: Path) -> list[Path]:
    """Writes leaderboard.csv, leaderboard.md and plots/ into the results folder.

    Returns:
        The files written.

    Raises:
        InputError: there is nothing to report.
    """
    from pe_bench.figures import draw_figures  # matplotlib takes a second to import
    from pe_bench.plots import plot_table

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


def make_tables(runs: Sequence[dict[str, Any]]) -> list[Table]:
    """Groups finished runs by their settings; of two runs of one cell the later one counts."""
    groups: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: str(run.get("finished"))):
        if run["status"] == "done":
            cells = groups.setdefault(run["settings_digest"], {})
            for key, other in list(cells.items()):  # seeds of one table ran the same code
                if key[0] == run["encoding"] and other["encoding_source"] != run["encoding_source"]:
                    del cells[key]
            cells[run["encoding"], run["seed"]] = run
    tables = []
    for settings, cells in groups.items():
        chosen = list(cells.values())
        rows = pd.concat([_read_rows(run) for run in chosen], ignore_index=True)
        about = chosen[0]
        title = (
            f"{about['task']} · {about['preset']} · {about['protocol']} · "
            f"data={about['data']['label']}"
        )
        tables.append(Table(title, settings, chosen, rows, _scores(rows)))
    return sorted(tables, key=lambda table: (table.title, table.settings))


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


def ranking(table: Table) -> list[str]:
    """Encodings from best to worst by the headline; alphabetical where it is missing."""
    headline = table.about["headline"]
    scores = table.scores
    found = scores[(scores.subset == headline["subset"]) & (scores.metric == headline["metric"])]
    best = found.set_index("encoding")["mean"].sort_values(
        ascending=not headline["higher_is_better"]
    )
    rest = sorted({run["encoding"] for run in table.runs} - set(best.index))
    return [*best.index, *rest]


def shown(table: Table) -> dict[str, str]:
    """Metric of each subset that tables and plots show."""
    return dict(table.about["shown"])


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


def _read_rows(run: dict[str, Any]) -> pd.DataFrame:
    path = run["folder"] / "rows.csv"
    words = dict.fromkeys(("encoding", "subset", "aux", "metric"), str)
    empty = dict.fromkeys(("length", "value", "stderr"), "")  # elsewhere "NA" is a word
    try:
        return pd.read_csv(path, dtype=words, keep_default_na=False, na_values=empty)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"cannot read {path} ({error}): remove that run's folder") from None


def _scores(rows: pd.DataFrame) -> pd.DataFrame:
    grouped = rows.groupby(["encoding", *NUMBER], dropna=False, sort=False)
    return grouped.agg(
        mean=("value", "mean"),
        sd=("value", "std"),
        stderr=("stderr", "mean"),
        seeds=("seed", "nunique"),
        n=("n", "sum"),
    ).reset_index()


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
