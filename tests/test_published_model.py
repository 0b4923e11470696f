"""The page on a published model agrees with the committed results."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
DECIMAL = r"\d+\.\d+|\d+ of \d+"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """Return the script that writes the tables of the page."""
    place = ROOT / "docs" / "published_model.py"
    spec = importlib.util.spec_from_file_location("published_model", place)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables(page: ModuleType) -> dict[str, str]:
    """Return the tables made from the committed results."""
    found: dict[str, str] = page.compose(page.read())
    return found


def test_the_tables_are_those_of_the_results(page: ModuleType, tables: dict[str, str]) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    for title, table in tables.items():
        found = re.findall(page.BETWEEN.format(title), text, re.DOTALL)
        assert found == [table], "run python docs/published_model.py"


def test_every_number_in_a_sentence_is_in_a_table(page: ModuleType, tables: dict[str, str]) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    for title in tables:
        text = re.sub(page.BETWEEN.format(title), "", text, flags=re.DOTALL)
    findings = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    section = findings.partition("## A published model\n")[2].partition("\n## ")[0]
    claim = (ROOT / "docs" / "tape.md").read_text(encoding="utf-8")
    (row,) = (line for line in claim.splitlines() if line.startswith("| **Perplexity** after"))
    of_this_page = row.partition("SmolLM2")[2].partition("](published-model.md)")[0]
    shown = set(re.findall(DECIMAL, "\n".join(tables.values())))
    for prose in (text, section, of_this_page):
        numbers = set(re.findall(DECIMAL, " ".join(prose.split())))
        assert numbers
        assert numbers - shown <= {"0.9"}, "no table has these"


def test_the_counts_of_documents_and_windows(page: ModuleType) -> None:
    text = " ".join(page.PAGE.read_text(encoding="utf-8").split())
    for part, said in (
        ("windows=24", "There are 44 windows from 19 documents"),
        ("windows=12", "in 32 windows of 20,480 tokens from 15 documents"),
    ):
        assert said in text
        record = page._find(page.read(), part).records[0]
        cells = [
            cell
            for cell in page.read_items(record)
            if cell.subset.endswith("-context")
            and (cell.length, cell.metric) == (page.LONG, "bits_per_byte")
        ]
        windows = sum(len(cell.values) for cell in cells)
        documents = sum(len(set(cell.clusters.tolist())) for cell in cells)
        assert re.findall(r"\d+ (?:windows|documents)", said.replace("of 20,480 tokens ", "")) == [
            f"{windows} windows",
            f"{documents} documents",
        ]


def test_the_verdicts_follow_from_the_intervals(tables: dict[str, str]) -> None:
    rows = {}
    for line in tables["zero-shot"].splitlines()[2:]:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name] = cells
    intervals = {
        name: tuple(map(float, re.findall(r"[+-]\d\.\d+", cells[3])))
        for name, cells in rows.items()
        if cells[3] != "–"
    }
    assert [name for name, (_, low, high) in intervals.items() if low < 0 < high] == [
        "Self-Extend",
        "LongRoPE-like",
    ]
    assert not [name for name, (_, _, high) in intervals.items() if high < 0]
    of_keys = {
        name: tuple(map(float, re.findall(r"[+-]\d\.\d+", cells[5])))
        for name, cells in rows.items()
        if cells[5] != "–"
    }
    better = {name for name, (_, _, high) in of_keys.items() if high < 0}
    assert of_keys.keys() - better == {"PI", "the model itself"}
    assert min(intervals, key=intervals.__getitem__) == "Self-Extend"
    assert min(of_keys, key=of_keys.__getitem__) == "Self-Extend"
    for line in tables["with and without TAPE"].splitlines()[2:]:
        trained, tokens, difference, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        _, low, high = map(float, re.findall(r"[+-]\d\.\d+", difference))
        is_better = trained == "embeddings and norms" and tokens != "8,192"
        assert high < 0 if is_better else low > 0
