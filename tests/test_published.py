"""The table of published numbers, and its place in the report."""

import csv
import re
import subprocess
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_runs import write_record

from pe_bench.registry import catalogue
from pe_bench.reporting import known_problems, published
from pe_bench.reporting.columns import list_columns
from pe_bench.reporting.markdown import escape
from pe_bench.reporting.new_runs import summarize
from pe_bench.reporting.published import Published, find, load
from pe_bench.reporting.report import write_report
from pe_bench.reporting.tables import read_tables
from pe_bench.results.measurement import CSV_COLUMNS, Measurement
from pe_bench.results.record import RunRecord
from pe_bench.results.row_files import write_rows
from pe_bench.results.store import read_records
from pe_bench.results.views import Headline

ROOT = Path(__file__).parents[1]
HEADING = "### Published (not measured here)"


def select(task: str, **wanted: str) -> list[Published]:
    """Return the numbers of a task whose attributes have these values."""
    return [n for n in find(task) if all(getattr(n, name) == wanted[name] for name in wanted)]


def values(task: str, **wanted: str) -> list[float]:
    return [number.value for number in select(task, **wanted)]


def test_every_number_says_where_it_is_from() -> None:
    for number in load():
        for name in ("task", "subset", "metric", "encoding", "source"):
            text = getattr(number, name)
            assert text and text == text.strip() and not {*"|\n\r"} & {*text}, (name, number)
        assert re.search(r"et al\. 20\d\d", number.source)
        assert re.fullmatch(r"[A-Z][^|\n]*\.", number.protocol), number
        problems = number.known_problems
        assert problems == "" or re.fullmatch(r"[A-Z][^|\n]*\.", problems), number
        assert number.spread is None or number.spread > 0
        assert not number.unit.startswith("%") or 0 <= number.value <= 100
    keys = [(n.task, n.subset, n.metric, n.length, n.encoding) for n in load()]
    assert len(set(keys)) == len(keys) == 163


def test_every_cell_of_the_file_is_read() -> None:
    with published.TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row, number in zip(rows, load(), strict=True):
        found = asdict(number)
        for name in ("length", "value", "spread"):
            assert found.pop(name) == (float(row[name]) if row[name] else None)
        assert found == {name: row[name] for name in found}


def test_what_was_not_read_in_a_paper_says_so() -> None:
    for number in load():
        words = {
            "published": "",
            "second-hand": "Read in a summary",
        }
        assert number.known_problems.startswith(words[number.evidence]), number
    second = {n.task for n in load() if n.evidence == "second-hand"}
    assert second == {"addition", "efficiency", "selective-copy"}


def test_numbers_that_wait_are_not_shown() -> None:
    with (ROOT / "docs" / "published-waiting.csv").open(encoding="utf-8", newline="") as file:
        waiting = list(csv.DictReader(file))
    tasks = set(catalogue.names("task"))
    assert {n.task for n in load()} <= tasks
    assert all(row["task"] not in tasks or row["evidence"] == "from memory" for row in waiting)


@pytest.mark.parametrize(
    ("task", "wanted", "expected"),
    [
        ("addition", {"subset": "grid", "encoding": "tape"}, [32.82]),
        ("addition", {"subset": "grid-20-to-40"}, [41.42, 39.44]),
        ("scrolls", {"encoding": "xpos"}, [9.02, 71.75, 4.83, 0.24, 10.73, 9.38, 16.38]),
        ("scrolls", {"metric": "em", "subset": "quality"}, [0.04, 0.0, 0.38, 1.25, 0.24, 11.6]),
        ("perplexity", {"subset": "pg19", "encoding": "tape"}, [8.226, 7.642, 7.278, 7.063]),
        ("perplexity:corpus=pg19", {"subset": "pg19", "encoding": "rope"}, []),
        ("copying", {"subset": "reverse-then-copy"}, [18.2, 14.0, 11.5, 0.0, 0.0]),
        ("copying", {"subset": "copy-constant", "encoding": "nope"}, [98.6, 96.3]),
        ("flipflop", {}, []),
        ("indexing", {"encoding": "pope"}, [94.82]),
        ("state-tracking", {"subset": "parity", "encoding": "nope"}, [97.52, 74.5, 63.3]),
        ("selective-copy", {}, [100.0] * 3),
        ("efficiency", {"metric": "forward_ms"}, [0.256, 0.563, 0.208, 0.556, 0.69]),
        ("nothing", {}, []),
    ],
)
def test_numbers_are_found(task: str, wanted: dict[str, str], expected: list[float]) -> None:
    assert values(task, **wanted) == expected


def test_numbers_fit_together() -> None:
    for number in select("addition", metric="exact_match"):
        if outside := re.search(r"the rest has ([\d.]+)\.$", number.known_problems):
            assert number.value == pytest.approx(25 + 0.75 * float(outside[1]), abs=0.05)
    for corpus in ("proofpile", "pg19"):  # more context, lower perplexity
        for encoding in {number.encoding for number in find("perplexity")}:
            curve = select("perplexity", subset=corpus, encoding=encoding)
            assert [number.length for number in curve] == [1024, 2048, 4096, 8192]
            assert [n.value for n in curve] == sorted((n.value for n in curve), reverse=True)
    spreads = {n.subset: n.spread for n in select("copying", encoding="t5") if n.spread}
    assert spreads["copy-constant-twice"] == 13.5 and len(spreads) == 8
    assert {number.length for number in select("scrolls", subset="narrative_qa")} == {57829}


def number(**changed: Any) -> Published:
    fields: dict[str, Any]
    fields = {"task": "toy", "subset": "far", "metric": "exact_match", "length": None}
    fields |= {"encoding": "b", "value": 3.0, "spread": None, "unit": "%", "source": "Doe 2025"}
    fields |= {"evidence": "published", "protocol": "Larger.", "known_problems": ""}
    return Published(**fields | changed)


def test_a_table_for_each_source_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    table = (
        number(value=7.25, known_problems="One run."),
        number(encoding="a", spread=0.5),
        number(subset="near", encoding="a", length=1024),
        number(source="Roe 2026", evidence="second-hand", metric="error", known_problems="Bad."),
        number(task="another", encoding="c"),
    )
    monkeypatch.setattr(published, "load", lambda: table)
    assert published.markdown("toy:size=3").split("\n") == [
        HEADING,
        "",
        "Doe 2025 (published): exact match in %. Larger.",
        "",
        "| encoding (published) |         far | near at 1,024 | known problems |",
        "| ---                  |        ---: |          ---: | --- |",
        "| b                    |        7.25 |             – | One run. |",
        "| a                    | 3.00 ± 0.50 |             3 | none |",
        "",
        "Roe 2026 (second-hand): error in %. Larger. Known problems: Bad.",
        "",
        "| encoding (published) |  far |",
        "| ---                  | ---: |",
        "| b                    |    3 |",
    ]
    assert published.markdown("toys") == ""


def test_several_metrics_are_named_in_the_columns() -> None:
    lines = published.markdown("scrolls").split("\n")
    start = "| encoding (published) | qasper F1 in % at 5,472 | contract_nli exact match in %"
    assert lines[4].startswith(start)
    names = [line.split("|")[1].strip() for line in lines[6:]]
    assert names == ["rope", "alibi", "randpe", "fire", "xpos", "tape"]
    assert all(line.count("|") == lines[4].count("|") for line in lines[4:])


COMMITTED = ROOT / "results" / "quick"


@pytest.mark.slow
def test_what_is_published_is_a_column_of_the_table_above() -> None:
    """This includes tables that were measured before the published number was added."""
    tables = {table.task_name: table for table in read_tables(COMMITTED)}
    shown = {name: [c.heading for c in list_columns(table)] for name, table in tables.items()}
    assert "grid (exact match, % ↑)" in shown["addition"]
    assert "copy OOD (exact match, % ↑)" in shown["copying"]
    assert {"sparse (exact match, % ↑)", "dense (exact match, % ↑)"} <= {*shown["selective-copy"]}
    for headings in shown.values():
        assert len(set(headings)) == len(headings)


@pytest.mark.slow
def test_known_problems_are_those_of_committed_tables_and_shown_with_them() -> None:
    with known_problems.FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    tables = {record.settings_digest: record.task for record in read_records(COMMITTED)}
    text = (COMMITTED / "leaderboard.md").read_text(encoding="utf-8")
    for row in rows:
        assert tables.get(row["settings"]) == row["task"], "its table is gone: remove the row"
        assert escape(f"Known problem: {row['problem']}") in text
        assert known_problems.find(row["settings"]) == [row["problem"]]
    assert known_problems.find("none") == []


def put(root: Path, task: str, encoding: str, settings: str = "5e77") -> Path:
    """Write a run with one number as the engine records it."""
    record = RunRecord(
        status="done",
        task=task,
        encoding=encoding,
        seed=0,
        preset="quick",
        protocol="strict",
        data={"label": settings},
        settings_digest=settings,
        headline=Headline("score", "all"),
        parameters=1,
    )
    folder = root / "runs" / task.replace(":", "_") / encoding / f"seed0-{settings}"
    row = asdict(Measurement("all", "score", 5.0, 9))
    row |= {"task": task, "encoding": encoding, "seed": 0}
    write_rows(folder / "rows.csv", [row], CSV_COLUMNS)
    write_record(folder, record)
    return folder


@pytest.mark.slow
def test_the_report_keeps_published_and_measured_apart(tmp_path: Path) -> None:
    folders = [
        put(tmp_path, "scrolls", "rope"),
        put(tmp_path, "scrolls", "tape"),
        put(tmp_path, "scrolls", "rope", "other"),
        put(tmp_path, "perplexity:windows=3", "rope", "third"),
        put(tmp_path, "mine.py", "rope", "fourth"),
    ]
    write_report(tmp_path)
    text = (tmp_path / "leaderboard.md").read_text(encoding="utf-8")
    sections = text.split("\n## ")[1:]
    names = [section.split(" ", 1)[0] for section in sections]
    assert names == ["mine.py", "perplexity:windows=3", "scrolls", "scrolls"]
    found = [section.count(HEADING) for section in sections]
    assert found == [0, 1, 0, 1]  # once for a task, below the last of its tables
    for section, task in ((sections[1], "perplexity"), (sections[3], "scrolls")):
        measured, rest = section.split(HEADING)
        assert "| rope " in measured and "encoding (published)" not in measured
        assert (HEADING + rest).strip() == published.markdown(task)
    csv = pd.read_csv(tmp_path / "leaderboard.csv")
    assert len(csv) == len(folders) and set(csv["mean"]) == {5.0}
    assert "ublished" not in summarize(folders)


def test_no_torch_needed_and_the_table_is_shipped() -> None:
    code = "import sys; from pe_bench.reporting import published; assert published.load(); "
    code += "sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shipped = project["tool"]["setuptools"]["package-data"]["pe_bench.reporting"]
    assert set(shipped) == {path.name for path in published.TABLE.parent.glob("*.csv")}
