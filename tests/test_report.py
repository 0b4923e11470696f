"""The report: tables and leaderboard, made from files alone."""

import errno
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from made_runs import (
    CURVE,
    HEADING,
    PART_COLUMNS,
    PARTS,
    SCORE,
    cells,
    put,
    put_seeds,
    read_table,
    report,
    write_rows,
)

from pe_bench.cli import main
from pe_bench.errors import InputError
from pe_bench.reporting import paper_captions, ranks, sentences, verdicts
from pe_bench.reporting.frames import read_results
from pe_bench.reporting.new_runs import summarize
from pe_bench.reporting.notes import describe_unfinished, write_notes
from pe_bench.reporting.paired import compare_table, scores_of
from pe_bench.reporting.report import write_report
from pe_bench.reporting.selection import select_tables
from pe_bench.reporting.tables import read_tables
from pe_bench.results.item_files import write_items
from pe_bench.results.items import Items, RowKey
from pe_bench.results.layout import PACKED_ROWS, baselines_path
from pe_bench.results.measurement import CSV_COLUMNS, Measurement, Status
from pe_bench.results.metrics import Metric
from pe_bench.results.record import RunRecord
from pe_bench.results.run_data import read_run_items
from pe_bench.results.store import read_records
from pe_bench.results.views import Column, Headline
from pe_bench.system import commit


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    for seed, value in enumerate((1.0, 2.0, 4.5)):
        score = replace(SCORE, value=value, stderr=0.25 * (seed + 1), ci_low=value - 1)
        put(tmp_path, "rope", [score], seed)
    text, csv = report(tmp_path)
    (row,) = csv.to_dict("records")
    assert (row["mean"], row["seeds"], row["n"], row["status"]) == (2.5, 3, 9, "ranked")
    assert row["sd"] == pytest.approx(math.sqrt((1.5**2 + 0.5**2 + 2**2) / 2), rel=1e-5)
    half = 4.302653 * row["sd"] / 3**0.5  # Student's t with two degrees of freedom
    assert row["ci_low"] == pytest.approx(2.5 - half, rel=1e-4)
    assert row["ci_high"] == pytest.approx(2.5 + half, rel=1e-4)
    line = {"encoding": "rope", HEADING: "2.500 ± 1.803", "seeds": "3", "parameters": "1,234"}
    assert cells(text) == [line]
    assert "## lm · quick · strict · data=builtin\n" in text
    assert ".png" not in text and not list((tmp_path / "plots").iterdir())  # there is no length
    assert "Settings 5e77; measured on CPU at commit cccccccccc with changes.\n" in text
    assert list(row.values())[:5] == ["lm", "quick", "strict", "builtin", "5e77"]


def test_a_table_names_every_commit_that_it_was_measured_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "find_commit", lambda: {"commit": "e" * 40, "dirty": False})
    put(tmp_path, "rope", [SCORE])
    later = {"device": "CPU", "git": {"commit": "d" * 40, "dirty": False}}
    put(tmp_path, "alibi", [SCORE], environment=later)
    text, _ = report(tmp_path)
    assert (
        "measured on CPU at commits cccccccccc with changes, dddddddddd; numbers of these commits "
        "are equal up to rounding, which training amplifies.\n"
    ) in text
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    footer = page[page.index("<footer>") : page.index("</footer>")]
    assert "at commits cccccccccc with changes, dddddddddd; numbers" in page
    assert "at commit eeeeeeeeee from the files" in footer
    assert "equal up to rounding, which training amplifies" in footer


def test_all_seeds_are_ranked_and_those_that_learned_stand_beside(tmp_path: Path) -> None:
    statuses: list[Status] = ["ranked", "ranked", "not_learned"]
    for seed, status in enumerate(statuses):
        rope = [replace(SCORE, value=seed + 1.0, status=status)]
        put(tmp_path, "rope", rope, seed, gate=95.0)
        put(tmp_path, "alibi", [replace(SCORE, value=1.8)], seed, gate=95.0)
        put(tmp_path, "0", [replace(SCORE, value=9, status="not_learned")], seed, gate=95.0)
    text, csv = report(tmp_path)
    lines = cells(text)
    assert [line["encoding"] for line in lines] == ["alibi", "rope", "0"]  # 1.5 among the learned
    assert [line[HEADING] for line in lines] == ["1.800 ± 0.000", "2.000 ± 1.000", "9.000 ± 0.000"]
    shares = [line["seeds that learned"] for line in lines]
    assert shares == ["3 of 3 (44 to 100 %)", "2 of 3 (21 to 94 %)", "0 of 3 (0 to 56 %)"]
    beside = [line["their mean, not ranked"] for line in lines]
    assert beside == ["1.800 ± 0.000", "1.500 ± 0.707", "–"]
    assert [line["seeds"] for line in lines] == ["3"] * 3
    assert "A seed has learned the task if it reaches at least 95 % in distribution." in text
    seeds = dict(zip(csv["encoding"].astype(str), csv["learned_seeds"], strict=True))
    assert seeds == {"alibi": 3, "rope": 2, "0": 0}
    assert set(csv["metric"]) == {"bits_per_byte"}  # the verdict is not part of the name


def test_the_training_loss_is_shown(tmp_path: Path) -> None:
    for seed, loss in enumerate((0.5, 0.25, 3.0)):
        costs = {
            part: {"training": {"loss": loss * factor}} for part, factor in (("a", 0), ("b", 2))
        }
        put(tmp_path, "rope", [SCORE], seed, costs=costs)
    put(tmp_path, "fire", [SCORE])
    text, _ = report(tmp_path)
    assert {line["encoding"]: line["training loss"] for line in cells(text)} == {
        "rope": "0.5000", "fire": "–",
    }  # fmt: skip
    assert "median over seeds" in text


def test_sizes_and_costs_are_shown(tmp_path: Path) -> None:
    settings = {
        "model": {"layers": 2, "width": 64, "heads": 4},
        "train": {"steps": 1600, "batch_size": 32, "lr": 3e-3},
    }
    for seed, seconds in enumerate((90.0, 110.4)):
        put(tmp_path, "rope", [SCORE], seed, settings=settings, seconds=seconds,
            peak_memory_bytes=300 * 2**20)  # fmt: skip
    put(tmp_path, "fire", [SCORE], settings=settings)
    text, _ = report(tmp_path)
    shown = {line["encoding"]: (line["seconds"], line["MiB"]) for line in cells(text)}
    assert shown == {"rope": ("100", "300"), "fire": ("–", "–")}
    assert "2 layers of width 64, 4 heads; training: 1,600 steps of 32 rows." in text
    assert "Learning rate: 3e-3 for every encoding" in text
    assert "Seconds: mean time of the training and the evaluation of a run" in text


@pytest.mark.slow
def test_what_can_be_significant(tmp_path: Path) -> None:
    put_seeds(tmp_path, "rope", [50, 51, 49, 50.5, 52])
    put_seeds(tmp_path, "near", [50.2, 51, 49, 50, 52.5])
    put_seeds(tmp_path, "far", [20, 22, 19, 20.5, 22])
    text, _ = report(tmp_path)
    ranks = {line["encoding"]: line["rank"] for line in cells(text)}
    assert ranks == {"near": "1 to 2 (a)", "rope": "1 to 2 (a)", "far": "3 (b)"}
    (near,) = re.findall(r"^\| near +\| +\+0\.04 \| .*$", text, re.MULTILINE)
    assert "| not significant |" in near and " to +" in near
    (far,) = re.findall(r"^\| far +\| +-29\.80 \| .*$", text, re.MULTILINE)
    assert "| worse " in far and "<0.001 |" in far
    assert "minus rope" in text and "over seeds and items" in text
    differences = pd.read_csv(tmp_path / "comparisons.csv")
    assert differences["significant"].tolist() == [False, True, True, False, True]
    assert set(differences["family"]) == {"all pairs", "to rope"}
    write_report(tmp_path, "far")
    assert "minus far" in (tmp_path / "leaderboard.md").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="there are no results of 'fat'"):
        write_report(tmp_path, "fat")


def test_points_of_a_curve_are_no_headline(tmp_path: Path) -> None:
    """A mean takes precedence over the points of its curve, in rows and in items."""
    points = RowKey("all", "f1", 8)
    for encoding, value in (("rope", 50.0), ("far", 20.0)):
        for seed in range(5):
            rows = [
                replace(SCORE, metric="f1", value=v, length=n) for v, n in ((99, 8), (value, None))
            ]
            folder = put(tmp_path, encoding, rows, seed, headline=Headline("f1", "all"))
            each = np.linspace(0, 9, 20)
            near = each if encoding == "rope" else each[::-1]  # the differences have a spread
            items = [
                Items("near", "f1", near, groups=(points,)),
                Items("test", "f1", value + seed / 9 + 0 * each, groups=(points, RowKey("all"))),
            ]
            write_items(folder / "items.parquet", items)
    (table,) = read_tables(tmp_path)
    (difference,) = compare_table(table).to_reference
    assert difference.value == -30 and difference.spread == 0 and not difference.has_interval


def test_three_seeds_tell_nothing_apart_and_the_report_says_so(tmp_path: Path) -> None:
    put_seeds(tmp_path, "rope", [50, 51, 49])
    put_seeds(tmp_path, "far", [20, 22, 19])
    text, _ = report(tmp_path)
    assert {line["rank"] for line in cells(text)} == {"–"}
    assert "not tested" in text and "not significant" not in text and "letter" not in text
    assert "3 seeds are too few for a test, which needs 5." in text


def test_selected_tables_have_the_chosen_encodings_only(tmp_path: Path) -> None:
    put_seeds(tmp_path, "rope", [50, 51])
    put_seeds(tmp_path, "far", [20, 22])
    (table,) = select_tables(read_tables(tmp_path), encodings=["rope"])
    assert table.encodings == ["rope"]
    for numbers in (table.rows, table.means):
        assert {*numbers["encoding"]} == {"rope"}


def test_one_seed_says_nothing_of_differences(tmp_path: Path) -> None:
    put_seeds(tmp_path, "rope", [50])
    put_seeds(tmp_path, "far", [20])
    text, _ = report(tmp_path)
    assert "rank" not in cells(text)[0] and "cannot be tested" in text


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["bits_per_byte", "f1", "mine"])
def test_best_comes_first(tmp_path: Path, metric: str) -> None:
    known = {"mine": Metric("my score", "points", higher_is_better=True)}
    changed: dict[str, Any] = {"headline": Headline(metric, "all"), "metrics": known}
    for encoding, value in {"b": 7.0, "a": 9.0, "c": 11.0}.items():
        put(tmp_path, encoding, [replace(SCORE, metric=metric, value=value)], **changed)
    put(tmp_path, "0", CURVE, **changed)
    lines = cells(report(tmp_path)[0])
    higher = metric != "bits_per_byte"
    expected = [*(["c", "a", "b"] if higher else ["b", "a", "c"]), "0"]
    assert [line["encoding"] for line in lines] == expected
    headings = {"bits_per_byte": HEADING, "f1": "all (F1, % ↑)", "mine": "all (my score, points ↑)"}
    assert [*lines[0]][1] == headings[metric]


@pytest.mark.parametrize("earlier", [0, 1])
def test_of_two_runs_of_one_cell_the_later_counts(tmp_path: Path, earlier: int) -> None:
    for i in (earlier, 1 - earlier):
        when = f"2026-01-0{1 if i == earlier else 2}T00:00:00"
        rows = [replace(SCORE, value=i)]
        put(tmp_path, "rope", rows, encoding_version=str(i), finished=when)
    _, csv = report(tmp_path)
    assert (csv["mean"].tolist(), csv["seeds"].tolist()) == ([1 - earlier], [1])
    assert read_results(tmp_path)["value"].tolist() == [1 - earlier]


def test_a_clock_that_was_wrong_does_not_decide(tmp_path: Path) -> None:
    put(tmp_path, "rope", [SCORE], 0, encoding_version="old", finished="2036-01-01", order=1)
    put(tmp_path, "rope", [SCORE], 1, encoding_version="new", finished="1970-01-01", order=2)
    assert read_results(tmp_path)["seed"].tolist() == [1]


def test_seeds_of_older_code_are_left_out(tmp_path: Path) -> None:
    put(tmp_path, "rope", [SCORE], 0, encoding_version="old", finished="2026-01-01")
    put(tmp_path, "rope", [SCORE], 1, encoding_version="new", finished="2026-01-02")
    assert read_results(tmp_path)["seed"].tolist() == [1]


def test_results_are_one_tidy_frame(tmp_path: Path) -> None:
    put(tmp_path, "rope", [*CURVE, replace(SCORE, second_axis="NA", status="partial")])
    put(tmp_path, "rope", [SCORE], 1, settings_digest="d1", parameters=5)
    put(tmp_path, "fire", [SCORE], status="failed")
    frame = read_results(str(tmp_path))
    assert list(frame.columns) == [*CSV_COLUMNS, "settings", "parameters"]
    assert frame["encoding"].tolist() == ["rope"] * 5
    assert frame["length"].tolist()[:3] == [8, 16, 32] and frame["length"].isna().sum() == 2
    assert frame["second_axis"].tolist() == ["", "", "", "NA", ""]
    assert frame["status"].tolist() == ["ranked"] * 3 + ["partial", "ranked"]
    assert frame["settings"].tolist() == ["5e77"] * 4 + ["d1"]
    assert frame["parameters"].tolist() == [1234] * 4 + [5]
    (tmp_path / "nothing").mkdir()
    assert read_results(tmp_path / "nothing").empty
    with pytest.raises(InputError, match="there is no folder"):
        read_results(tmp_path / "absent")


@pytest.mark.slow
def test_tables_of_one_title_are_significant_in_the_heading(tmp_path: Path) -> None:
    for digest, lr in (("d1", 0.1), ("d2", 0.2)):
        settings = {"train": {"lr": lr, "steps": 5, "batch_size": 8}, "start": None}
        put(tmp_path, "rope", CURVE, settings_digest=digest, settings=settings)
    text, _ = report(tmp_path)
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    title = "lm · quick · strict · data=builtin"
    assert headings == [f"{title} · train.lr=0.1", f"{title} · train.lr=0.2"]
    assert [table.heading for table in read_tables(tmp_path)] == headings
    assert "steps=" not in text


@pytest.mark.slow
def test_a_long_distinction_is_below_the_heading(tmp_path: Path) -> None:
    for digest, name in (("d1", "a" * 80), ("d2", "b")):
        put(tmp_path, "rope", [SCORE], settings_digest=digest, settings={"source": name})
    text, _ = report(tmp_path)
    assert "data=builtin · settings=d1\n" in text and "data=builtin · source=b\n" in text
    assert f"Differs from other tables of this title in: source={'a' * 80}.\n" in text


@pytest.mark.slow
def test_a_heading_says_which_learning_rates_were_tuned(tmp_path: Path) -> None:
    search = {"lr": [0.1, 0.3], "seeds": [1000], "batches": 16}
    train = {"steps": 9, "batch_size": 2}
    several: list[dict[str, Any]] = [
        {"train": {**train, "lr": 0.3}, "tune": search},
        {"train": {**train, "lr": 0.1}},
        {"train": {**train, "lr": 0.3}},
    ]
    for index, settings in enumerate(several):
        put(tmp_path, "rope", [SCORE], settings_digest=f"d{index}", settings=settings)
    told = {table.about.settings_digest: table.distinction for table in read_tables(tmp_path)}
    assert told == {"d0": "train.lr=tuned", "d1": "train.lr=0.1", "d2": "train.lr=0.3"}
    other = {"train": {**train, "lr": 0.3}, "tune": {**search, "seeds": [1000, 1001]}}
    put(tmp_path, "rope", [SCORE], settings_digest="d3", settings=other)
    found = {table.about.settings_digest: table.differences for table in read_tables(tmp_path)}
    assert found["d0"]["tune.seeds"] == [1000] and found["d0"]["train.lr"] == 0.3


@pytest.mark.slow
def test_a_setting_that_a_record_lacks_has_its_default(tmp_path: Path) -> None:
    """Records of earlier versions lack the factor."""
    train = {"steps": 9, "batch_size": 2}
    several = [{"lr": 0.1}, {"lr": 0.3, "encoding_lr_factor": 1.0}]
    for index, settings in enumerate(several):
        given = {"train": train | settings}
        put(tmp_path, "rope", [SCORE], settings_digest=f"d{index}", settings=given)
    told = [table.distinction for table in read_tables(tmp_path)]
    assert told == ["train.lr=0.1", "train.lr=0.3"]


@pytest.mark.slow
def test_models_with_equally_many_parameters_have_different_headings(tmp_path: Path) -> None:
    names = ("layers", "heads", "kv_heads", "width", "mlp_width")
    for index in range(3):
        settings = {"model": dict.fromkeys(names, 2**index)}
        put(
            tmp_path, "rope", [SCORE], settings_digest=f"d{index}", settings=settings,
            parameters=1000,
        )  # fmt: skip
    distinctions = [table.distinction for table in read_tables(tmp_path)]
    assert distinctions == [f"settings=d{index}, 1,000 parameters" for index in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{"preset": "small"}, {"data": {"label": "b-1234"}}, {}])
def test_settings_are_never_mixed(tmp_path: Path, changed: dict[str, Any]) -> None:
    put(tmp_path, "rope", [*CURVE, SCORE])
    put(tmp_path, "rope", [*CURVE, replace(SCORE, value=3.0)], settings_digest="d1", **changed)
    text, csv = report(tmp_path)
    scores = csv[csv.subset == "all"].set_index("settings")["mean"]
    assert scores.to_dict() == {"5e77": 1.0, "d1": 3.0}
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert len(set(headings)) == 2
    assert sorted(line[HEADING] for line in cells(text)) == ["1.000", "3.000"]
    assert [line["test at 32 ↓"] for line in cells(text)] == ["2.500 (2.010 to 2.990)"] * 2
    assert len(list((tmp_path / "plots").glob("*.png"))) == 2


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"items_sha256": "b"}, ["nope (items_sha256)"]),
        ({"items_sha256": "a", "far_items_sha256": "c"}, []),
        ({"label": "builtin", "folder": "/elsewhere"}, []),
        ({"items_sha256": "b", "subsets": ("latest",)}, []),  # a run of fewer subsets
    ],
)
def test_runs_on_other_items_are_named_and_not_paired_by_item(
    tmp_path: Path, other: dict[str, Any], named: list[str]
) -> None:
    label = {"label": "builtin"}
    for encoding in ("rope", "tape"):
        put_seeds(tmp_path, encoding, [50, 52, 54], data=label | {"items_sha256": "a"})
    subsets = other.pop("subsets", ())
    put_seeds(tmp_path, "nope", [40, 41, 42], data=label | other, subsets=subsets)
    table = read_table(tmp_path)
    without_items = compare_table(table).without_items
    warnings = [line for line in write_notes(table).splitlines() if line.startswith("Other data")]
    assert [re.findall(r"\w+ \(.*?\)", line) for line in warnings] == ([named] if named else [])
    assert without_items == (("nope",) if named else ())
    pair = verdicts.compare_pair([table], "rope", "nope")
    shown = [*sentences.describe(pair), ranks.describe_ranks([table])]
    shown.append(paper_captions.describe_figure(table, "curves"))
    found = [bool(re.search(r"Other data: \w+ \(", " ".join(text.split()))) for text in shown]
    assert any(found[:-2]) == found[-2] == found[-1] == bool(named)
    fine = verdicts.compare_pair([table], "rope", "tape")
    assert not any("Other data" in line for line in fine.left_out)
    assert scores_of(table, ["rope", "tape"]).resampled is not None


def test_figures_of_other_settings_have_other_names(tmp_path: Path) -> None:
    put(tmp_path, "rope", [SCORE])
    put(tmp_path, "rope", [SCORE], settings_digest="07e4")
    names = {table.name for table in read_tables(tmp_path)}
    assert names == {f"lm-quick-strict-builtin-{digest}" for digest in ("5e77", "07e4")}


def test_an_unfinished_run_is_one_line() -> None:
    begun = partial(RunRecord, task="lm", encoding="rope", settings_digest="5e77")
    records = [
        begun(status="failed", seed=0, reason="ZeroDivisionError: by zero\nanother\n"),
        begun(status="skipped", seed=1),
        begun(status="done", seed=2),
    ]
    assert describe_unfinished(records) == [
        "rope on lm, seed 0: failed, ZeroDivisionError: by zero",
        "rope on lm, seed 1: skipped, no reason recorded",
    ]


@pytest.mark.slow
def test_unfinished_runs_are_listed_and_in_no_table(tmp_path: Path) -> None:
    rope = put(tmp_path, "rope", [SCORE])
    put(tmp_path, "nope", [SCORE])
    put(tmp_path, "fire", [SCORE], status="failed", reason="ZeroDivisionError: by zero\nanother\n")
    skipped = put(tmp_path, "learned", [], 3, status="skipped", reason="it has 8 positions")
    text, csv = report(tmp_path)
    listed = [line["encoding"] for line in cells(text)]
    assert sorted(listed) == sorted(set(csv["encoding"])) == ["nope", "rope"]
    assert "- fire on lm, seed 0: failed, ZeroDivisionError: by zero\n" in text
    assert "- learned on lm, seed 3: skipped, it has 8 positions\n" in text
    brief = summarize([rope, skipped])  # only of these two
    assert re.findall(r"^(\w+) +1\.000", brief, re.MULTILINE) == ["rope"]
    assert brief.startswith("lm · quick · strict · data=builtin\n")
    assert "learned" in brief and "fire" not in brief


@pytest.mark.slow
def test_parts_that_are_missing(tmp_path: Path) -> None:
    about: dict[str, Any] = {"unavailable": {"far": "no file far.jsonl"}, "views": PART_COLUMNS}
    put(tmp_path, "alibi", [*PARTS[:2], replace(SCORE, status="partial")], **about)
    put(tmp_path, "rope", [*PARTS, SCORE], **about)
    text, _ = report(tmp_path)
    rope, alibi = cells(text)  # encodings without a score come last
    columns = ("near (F1, % ↑)", "far (ROUGE geometric mean, % ↑)", HEADING, "partial ↓")
    error = "23.45 (21.00 to 26.00)"  # over items, because there is one seed
    assert [rope[column] for column in columns] == [error, error, "1.000", "–"]
    assert [alibi[column] for column in columns] == [error, "–", "–", "1.000"]
    assert "Missing: far (no file far.jsonl)." in text


@pytest.mark.slow
def test_columns_without_rows_are_left_out(tmp_path: Path) -> None:
    views = (Column("near", "f1"), Column("close", "em", "index ID"), Column("absent", "f1"))
    put(tmp_path, "rope", [*PARTS, SCORE], views=views)
    text, _ = report(tmp_path)
    (line,) = cells(text)
    expected = ["encoding", HEADING, "near (F1, % ↑)", "index ID (exact match, % ↑)"]
    assert [*line][:4] == expected and "absent" not in text


@pytest.mark.slow
def test_a_mean_over_lengths_stands_in_the_table_not_the_first_length(tmp_path: Path) -> None:
    put(tmp_path, "rope", [*CURVE, Measurement("test", "bits_per_byte", 42.0, 27)])
    (line,) = cells(report(tmp_path)[0])
    assert line["test ↓"] == "42.00"


def test_runs_without_a_headline_are_damaged(tmp_path: Path) -> None:
    folder = put(tmp_path, "rope", [SCORE], headline=None)
    with pytest.raises(InputError, match="lacks a headline") as caught:
        write_report(tmp_path)
    assert str(folder) in str(caught.value)


@pytest.mark.slow
def test_an_export_reports_as_the_runs_do(tmp_path: Path) -> None:
    runs = tmp_path / "elsewhere"
    put_seeds(runs, "rope", [50, 51, 49, 50.5, 52])
    put_seeds(runs, "far", [20, 22, 19, 20.5, 22])
    put(runs, "rope", [SCORE], settings_digest="d1")
    put(runs, "fire", [SCORE], status="failed")
    path = baselines_path(runs, "lm", "5e77")
    path.parent.mkdir(parents=True)
    write_rows(path, [SCORE], task="lm", encoding="guessing")
    export = tmp_path / "results" / "quick"
    written = write_report(runs, export=export)
    assert {export / PACKED_ROWS, export / "items.parquet", export / "records.json"} < {*written}
    assert baselines_path(export, "lm", "5e77").read_text() == path.read_text()
    write_report(runs)
    for name in ("leaderboard.csv", "comparisons.csv"):
        assert (export / name).read_text() == (runs / name).read_text()
    text = (export / "leaderboard.md").read_text(encoding="utf-8")
    write_report(export)  # only from these files
    again = (export / "leaderboard.md").read_text(encoding="utf-8")
    assert again == text
    # A new run is shown together with an export in a subfolder of its results folder.
    put_seeds(tmp_path / "results", "mine", [60, 62, 61, 60.5, 59])
    text, _ = report(tmp_path / "results")
    ranks = {line["encoding"]: line["rank"] for line in cells(text) if "rank" in line}
    assert ranks == {"mine": "1 (a)", "rope": "2 (b)", "far": "3 (c)"}
    assert len(read_results(tmp_path / "results")) == 16
    # An export can be exported again, together with new runs.
    write_report(tmp_path / "results", export=tmp_path / "more")
    assert len(read_results(tmp_path / "more")) == 16
    with pytest.raises(InputError, match="is the results folder"):
        write_report(export, export=export)
    (export / "records.json").write_text('{"tables": [{}]}')
    with pytest.raises(InputError, match="is not an export of runs"):
        write_report(export)


def test_an_export_has_losses_in_few_digits_and_all_else_as_it_is(tmp_path: Path) -> None:
    folder = put(tmp_path / "runs", "rope", [SCORE])
    losses = np.random.default_rng(0).gamma(2, 3, 1000)
    shares = np.arange(101.0)
    items = [Items("test", "bits_per_byte", losses), Items("test", "f1", shares)]
    write_items(folder / "items.parquet", items)
    write_report(tmp_path / "runs", export=tmp_path / "export")
    (record,) = read_records(tmp_path / "export")
    found, whole = (cell.values for cell in read_run_items(record))
    np.testing.assert_allclose(found, losses, rtol=1 / 4000)
    assert len(set(found)) < len(set(losses)) and found.mean() == pytest.approx(losses.mean(), 1e-5)
    assert whole.tolist() == shares.tolist()


@pytest.mark.parametrize("content", [b'{"status": "do', b"", b"\xff\xfe"])
def test_nothing_to_report_and_a_broken_record(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError, match=r"no runs in .*: use pe-bench run first"):
        write_report(tmp_path)
    path = put(tmp_path, "rope", [SCORE]) / "run.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        write_report(tmp_path)
    assert str(caught.value).startswith(f"{path} cannot be read (")


@pytest.mark.slow
def test_names_and_reasons_are_text_not_html(tmp_path: Path) -> None:
    wild = "<img src=x onerror=alert(1)>|a b`[c](d)"
    put(tmp_path, wild, [*CURVE, SCORE])
    put(tmp_path, "rope", [*CURVE, replace(SCORE, value=2.0)], 1)
    put(tmp_path, "fire", [], status="failed", reason="TypeError: <class 'x'> | <b>\nmore")
    text, _ = report(tmp_path)
    assert not re.search(r"(?<!\\)<", text)
    shown = r"\<img src=x onerror=alert(1)\>\|a b\`\[c\](d)"
    (line,) = [line for line in text.splitlines() if line.startswith("| " + shown)]
    columns = len(re.findall(r"(?<!\\)\|", line))
    assert f"| {shown} |" in line
    assert columns == len(re.findall(r"(?<!\\)\|", text[text.index("| encoding") :].split("\n")[0]))
    assert r"TypeError: \<class 'x'\> \| \<b\>" in text


@pytest.mark.slow
@pytest.mark.usefixtures("real_figures")
def test_a_report_that_cannot_be_saved_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "rope", [*CURVE, SCORE])
    command = ["report", "--results", str(tmp_path)]
    for number, reason in ((errno.ENOSPC, "No space left"), (errno.EROFS, "Read-only file")):
        failing = Mock(side_effect=OSError(number, os.strerror(number)))
        monkeypatch.setattr(Path, "touch", failing)
        assert main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"pe-bench: cannot save {tmp_path}/") and reason in line


@pytest.mark.parametrize("name", ["leaderboard.md", "plots", "runs"])
def test_what_is_in_the_way_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = tmp_path / name
    if name == "leaderboard.md":
        (path / "full").mkdir(parents=True)
    else:
        path.touch()
    if name != "runs":
        put(tmp_path, "rope", [SCORE])
    assert main(["report", "--results", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path if name != "runs" else tmp_path) in line


@pytest.mark.slow
def test_no_torch_needed(tmp_path: Path) -> None:
    put(tmp_path, "rope", [*CURVE, SCORE])
    code = "import sys, pathlib; from pe_bench.reporting.report import write_report as write; "
    code += "write(pathlib.Path(sys.argv[1])); sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(command, cwd=Path(__file__).parents[1], check=True)
