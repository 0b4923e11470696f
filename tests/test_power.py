"""The plan states the differences that its seeds can show."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_runs import put_seeds, read_table
from test_compare import put as put_headlines

from pe_bench.commands.plan_power import HEADING, describe_plan, describe_too_few
from pe_bench.reporting.sensitivity import describe_power, find_spreads
from pe_bench.reporting.tables import read_tables
from pe_bench.results.store import read_records
from pe_bench.stats.significance import effect_to_show


def planned(encodings: list[str], seeds: range, digest: str = "5e77") -> Any:
    """Return runs of a plan with only the attributes that its lines on seeds need."""
    task = SimpleNamespace(measures_time=False)
    resolved = SimpleNamespace(digest=lambda: digest, task=task)
    return [
        SimpleNamespace(
            run=SimpleNamespace(
                resolved=resolved, encoding=SimpleNamespace(label=encoding), seed=seed
            )
        )
        for encoding in encodings
        for seed in seeds
    ]


def lines(root: Path, encodings: list[str], seeds: range) -> list[str]:
    return describe_plan(planned(encodings, seeds), read_records(root))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    put_seeds(tmp_path, "rope", [50, 51, 52, 53, 50])
    put_seeds(tmp_path, "alibi", [50, 52, 50, 52, 50])
    put_seeds(tmp_path, "nope", [20, 21, 22, 23, 20])  # always 30 below rope
    return tmp_path


def test_the_spread_of_pairs_decides(rows: Path) -> None:
    table = read_table(rows)
    spreads = sorted(find_spreads(table))
    assert spreads == pytest.approx([0, 1.140, 1.140], abs=1e-3)
    shown = effect_to_show(5, spreads[1])
    assert shown == pytest.approx(1.92, abs=0.01)
    assert describe_power(table, 5) == (
        "1.9 points of F1 (1.9 for the pair that varies most), 5 seeds"
    )


def test_a_plan_says_what_its_seeds_show(rows: Path) -> None:
    heading, line = lines(rows, ["mine.py", "rope"], range(5))
    assert heading == HEADING and line.endswith("5 seeds")
    _, line = lines(rows, ["mine.py"], range(9))  # paired with rows of five of these seeds
    assert line.endswith("5 seeds")
    _, line = lines(rows, ["mine.py"], range(4, 9))
    few = "but the finished runs have only 1 of the planned seeds"
    assert line == f"  lm: none; a test needs 5 seeds, {few}"
    _, line = lines(rows, ["mine.py"], range(1))
    assert line == "  lm: none; a test needs 5 seeds"


def test_too_few_seeds_are_named_without_rows_too(rows: Path, tmp_path: Path) -> None:
    sentence = "with 3 seeds no difference can be significant: give 5 or more"
    assert lines(rows, ["mine.py", "rope"], range(3)) == [sentence]
    for seeds in (2, 3):
        found = describe_plan(planned(["mine.py", "rope"], range(seeds)), [])
        assert found == [sentence.replace("3", str(seeds))]
    assert describe_plan(planned(["mine.py", "rope"], range(1)), []) == []
    assert describe_plan(planned(["mine.py", "rope"], range(5)), []) == []
    assert describe_too_few(5) == ""


def test_a_table_of_one_encoding_says_nothing(tmp_path: Path) -> None:
    put_headlines(tmp_path, "bits", "good", [0.5, 0.6, 0.7, 0.8], metric="bits_per_byte")
    (table,) = read_tables(tmp_path)
    assert describe_power(table, 5) == ""
    put_headlines(tmp_path, "bits", "plain", [0.9, 0.8, 0.9, 0.8], metric="bits_per_byte")
    (table,) = read_tables(tmp_path)
    assert describe_power(table, 5) == "0.27 bits per byte, 5 seeds"
