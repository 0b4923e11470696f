"""The tasks of the main table, and the signal that selected them."""

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import shown_runs
from made_runs import put
from scripts import load_script
from test_compare import put as put_scores
from test_compare import put_baselines

from pe_bench.registry import catalogue
from pe_bench.reporting.families import FAMILIES, MAIN_SET, in_main_set
from pe_bench.reporting.markdown import find_block
from pe_bench.reporting.notes import write_notes
from pe_bench.reporting.sensitivity import describe_sensitivity, measure_signal
from pe_bench.reporting.tables import Table, read_tables
from pe_bench.reporting.task_summary import (
    find_limits,
    find_summaries,
    has_model_scores,
    task_scores,
)
from pe_bench.results.measurement import Measurement
from pe_bench.stats.ranking import rank_correlations

ROOT = Path(__file__).parents[1]
TOO_LITTLE_SIGNAL = ("flipflop", "chained-facts", "ruler", "state-tracking")

SECONDS = {"perplexity": 91, "probes": 129}
"""Seconds of a training when the set was chosen, if later ones were measured beside other work."""


def test_the_main_set_has_eight_tasks_at_most_and_two_of_each_family() -> None:
    tasks = [task for family in MAIN_SET.values() for task in family]
    assert len(MAIN_SET) == 5
    assert len({*tasks}) == len(tasks) <= 8
    assert {*tasks} <= {*FAMILIES} <= {*catalogue.names("task")}
    assert all(1 <= len(family) <= 2 for family in MAIN_SET.values())


@pytest.mark.slow
def test_few_frequencies_of_rope_complete_a_period() -> None:
    def complete(length: int, channels: int) -> int:
        planes = range(0, channels, 2)
        return sum(2 * math.pi * 10_000 ** (plane / channels) <= length for plane in planes)

    turns = set()
    for table in in_main_set(read_tables(ROOT / "results" / "quick")):
        model = table.about.settings["model"]
        channels = model["width"] // model["heads"]
        assert channels // 2 == 8
        turns.add(complete(model["train_length"], channels))
    assert (min(turns), max(turns), complete(1024, 64)) == (1, 3, 18)
    said = "1 to 3 of RoPE's 8 frequencies complete a full period within the training length (18 of"
    for page in ("findings", "tasks"):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert said in " ".join(text.split())


def test_the_signal_of_a_table_is_an_analysis_of_variance(tmp_path: Path) -> None:
    scores = {"rope": (1.0, 2.0, 3.0), "nope": (5.0, 7.0, 9.0), "tape": (20.0, 20.0, 20.0)}
    for encoding, values in scores.items():
        for seed, value in enumerate(values):
            costs = {"all": {"training": {"seconds": 10.0 * (seed + 1)}}}
            rows = [Measurement("all", "bits_per_byte", value, 9)]
            put(tmp_path, encoding, rows, seed, costs=costs)
    (table,) = read_tables(tmp_path)
    signal = measure_signal(table, ["rope", "nope"])
    assert signal.within == pytest.approx(2.5**0.5)  # variances 1 and 4
    assert signal.between == pytest.approx((12.5 - 2.5 / 3) ** 0.5)  # variance of the means 2 and 7
    assert signal.ratio == pytest.approx(((12.5 - 2.5 / 3) / 2.5) ** 0.5)
    assert (signal.best, signal.worst) == (2.0, 7.0)  # fewer bits are better
    assert (signal.learned, signal.seconds) == (1.0, 20.0)


def test_seeds_alone_are_no_signal(tmp_path: Path) -> None:
    for encoding in ("rope", "nope"):
        for seed, value in enumerate((1.0, 9.0)):
            put(tmp_path, encoding, [Measurement("all", "bits_per_byte", value, 9)], seed)
    (table,) = read_tables(tmp_path)
    assert measure_signal(table, ["rope", "nope"]).ratio == 0.0
    assert in_main_set([table]) == []


@pytest.mark.parametrize(
    ("steps", "origin", "counts"),
    [(5, {}, True), (0, {}, False), (0, {"from": {"encoding": "smollm2", "version": "1"}}, True)],
)
def test_only_trained_models_are_compared(
    steps: int, origin: dict[str, Any], counts: bool, tmp_path: Path
) -> None:
    settings = {"train": {"steps": steps, "lr": 0.1, "batch_size": 1}, **origin}
    put(tmp_path, "rope", [Measurement("all", "bits_per_byte", 1.0, 9)], settings=settings)
    (table,) = read_tables(tmp_path)
    assert has_model_scores(table) == counts


@pytest.mark.slow
def test_adapted_models_are_not_averaged_with_others(tmp_path: Path) -> None:
    for origin in ({}, {"from": {"encoding": "rope", "version": "1"}}):
        for task in ("one", "two"):
            for encoding in ("rope", "nope", "alibi"):
                digest = f"{task}{'from' in origin}"
                rows = [Measurement("all", "bits_per_byte", 1.0, 9)]
                put(tmp_path, encoding, rows, task=task, settings=origin, settings_digest=digest)
            guessing = [Measurement("all", "bits_per_byte", 2.0, 9)]
            shown_runs.put_baselines(tmp_path, task, digest, {"guessing": guessing})
    summaries = find_summaries(read_tables(tmp_path))
    assert {summary.title for summary in summaries} == {
        "All tasks · quick · strict",
        "All tasks · quick · strict · from rope",
    }
    for summary in summaries:
        assert len({table.origin for table in summary.tables}) == 1


@pytest.mark.parametrize(
    ("base", "mark"), [(95.0, "Saturated"), (8.0, "At its floor"), (50.0, None)]
)
def test_a_table_says_what_it_can_tell_apart(tmp_path: Path, base: float, mark: str | None) -> None:
    for encoding, offset in (("rope", 0.0), ("nope", 1.0), ("alibi", 0.5)):
        spread = (len(encoding), 1, 0, 2, 1)
        put_scores(tmp_path, "task", encoding, [base + offset + 0.1 * x for x in spread])
    put_baselines(tmp_path, "task")  # 10 %
    (table,) = read_tables(tmp_path)
    lines = describe_sensitivity(table)
    assert lines[0].startswith("Signal: standard deviation ") and " points " in lines[0]
    assert "5 seeds" in lines[1]
    assert [line.partition(":")[0] for line in lines[2:]] == ([mark] if mark else [])
    assert set(lines) <= set(write_notes(table).splitlines())


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """Return the script that writes the table of the page."""
    return load_script("docs/main_set.py")


@pytest.fixture(scope="module")
def committed(page: ModuleType) -> list[Table]:
    """Return the tables whose signal is on the page."""
    return [table for name in page.RESULTS for table in read_tables(ROOT / "results" / name)]


@pytest.mark.slow
def test_the_page_has_the_signal_of_the_committed_results(
    page: ModuleType, committed: list[Table]
) -> None:
    found = find_block(page.PAGE.read_text(encoding="utf-8"), page.BLOCK)
    assert found == page.compose(committed), "run python docs/main_set.py"
    found = find_block(page.PAGE.read_text(encoding="utf-8"), page.SETTINGS)
    assert found == page.compose_settings(committed), "run python docs/main_set.py"
    assert {table.about.settings["model"]["width"] for table in committed} == {64}


@pytest.mark.slow
def test_the_reasons_for_the_main_set_follow_from_the_signal(
    page: ModuleType, committed: list[Table]
) -> None:
    text = " ".join(page.PAGE.read_text(encoding="utf-8").split())
    main = {table.task_name for table in in_main_set(committed)}
    signals = {}
    for table in committed:
        encodings = [name for name in table.ranking.names if ":" not in name]
        signals[table.task_name] = signal = measure_signal(table, encodings)
        if table.task_name in main:
            floor, ceiling = find_limits(table)
            better = 1 if table.ranking.higher_is_better else -1
            assert better * signal.best > better * floor
            assert not table.ranking.higher_is_better or signal.worst <= ceiling - 10
            assert signal.ratio >= 2 and signal.learned >= 0.5

    assert all(signals[task].ratio < 2 for task in TOO_LITTLE_SIGNAL)
    assert signals["indexing"].learned < 0.5
    assert signals["selective-copy"].ratio < signals["copying"].ratio
    assert signals["multiplication"].ratio > signals["addition"].ratio
    times = signals["scrolls"].seconds / signals["passkey"].seconds
    assert f"`scrolls` would be a third, at {times:.1f} times the cost" in text

    a_run = sum(SECONDS.get(task, signals[task].seconds) for task in main)
    another = signals["multiplication"].seconds
    hours = [seconds * 10 * 14 / 3600 for seconds in (a_run, a_run + another)]
    assert hours[0] <= 28 < hours[1]
    for task, seconds in SECONDS.items():
        assert f"{seconds} s for `{task}`" in text
    later = " and ".join(f"{signals[task].seconds:.0f}" for task in SECONDS)
    assert f"The {later} s above" in text
    assert f"about {round(a_run, -1):.0f} s in total, which is {hours[0]:.1f} core-hours" in text
    adding = (ROOT / "docs" / "adding-an-encoding.md").read_text(encoding="utf-8")
    assert f"A row for its six tasks takes about {hours[0] / 10:.1f} core-hours" in adding
    assert f"a second task of {another:.0f} s does not fit" in text

    both = [table for table in committed if table.task_name in ("addition", "multiplication")]
    encodings = sorted({*both[0].ranking.names} & {*both[1].ranking.names})
    correlation = rank_correlations([task_scores(table, encodings) for table in both])[0, 1]
    assert f"(rank correlation {correlation:.1f})" in text
