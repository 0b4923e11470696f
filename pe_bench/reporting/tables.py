"""Runs under equal settings, grouped into tables and ranked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pe_bench.errors import InputError
from pe_bench.system.files import slug

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
