"""Baselines in the report: rows that are not ranked, grey lines, marks."""

import csv
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_runs import CURVE, HEADING, PART_COLUMNS, PARTS, SCORE, cells, put, report
from matplotlib.axes import Axes
from test_figures import legend_of

from pe_bench.reporting.curve_charts import make_curves
from pe_bench.reporting.curves import draw_curves
from pe_bench.reporting.dot_plot import draw_scores
from pe_bench.reporting.tables import read_tables
from pe_bench.reporting.task_summary import find_limits
from pe_bench.results.layout import baselines_path
from pe_bench.results.measurement import CSV_COLUMNS, Measurement
from pe_bench.results.metrics import Metric
from pe_bench.results.row_files import write_rows
from pe_bench.results.views import Column, Curve, Headline
from pe_bench.runs.baselines import write_baselines


def test_rows_of_baselines_name_task_and_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = SimpleNamespace(preset="small", protocol="paper")
    measured = {"guess": [PARTS[0], PARTS[0]]}
    task = SimpleNamespace(
        context=context, data_label="text-1", metrics={}, baselines=lambda: measured
    )
    resolved: Any = SimpleNamespace(task=task, label="lm:size=3", digest=lambda: "5e77")
    write_baselines(resolved, tmp_path)
    assert "occurs twice: give it one number" in capsys.readouterr().err
    measured["guess"] = PARTS
    write_baselines(resolved, tmp_path)
    path = baselines_path(tmp_path, "lm:size=3", "5e77")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    names = {"task": "lm:size=3", "encoding": "guess", "preset": "small", "protocol": "paper"}
    names |= {"data": "text-1", "run": path.stem, "seed": "0"}
    assert [row["subset"] for row in rows] == [row.subset for row in PARTS]
    assert all(row | names == row for row in rows)


def put_baselines(root: Path, rows: dict[str, list[Measurement]]) -> None:
    path = baselines_path(root, "lm", "5e77")
    path.parent.mkdir()
    written = []
    for name, some in rows.items():
        written += [{"encoding": name, "seed": 0} | asdict(row) for row in some]
    write_rows(path, written, CSV_COLUMNS)


def scaled(rows: list[Measurement], factor: float) -> list[Measurement]:
    return [replace(row, value=factor * row.value) for row in rows]


@pytest.mark.slow
def test_they_stand_below_the_encodings_and_mark_those_that_are_not_better(tmp_path: Path) -> None:
    put(tmp_path, "rope", [replace(SCORE, value=9.0), *CURVE])
    put(tmp_path, "alibi", [SCORE, *CURVE])
    put_baselines(tmp_path, {"guessing": scaled([SCORE], 20), "bigram table": scaled([SCORE], 9)})
    text, csv = report(tmp_path)
    rows = cells(text)
    names = [row["encoding"] for row in rows]
    assert names == ["alibi", "rope †", "*guessing*", "*bigram table*"]  # 9 is not below 9
    assert [row[HEADING] for row in rows[2:]] == ["20.000", "9.000"]
    assert {row["parameters"] for row in rows[2:]} == {"–"}
    assert "In italics: chance and the strongest baseline" in text and "†: not better" in text
    assert set(csv["encoding"]) == {"rope", "alibi"}


OPEN = Metric("open", "", higher_is_better=True)
ERRORS = Metric("errors", "%", higher_is_better=False)


@pytest.mark.parametrize(
    ("unit", "values", "limited"),
    [("points", (240.0, 260.0), False), ("%", (99.0, 95.0), True), ("%", (1.0, 5.0), True)],
)
def test_intervals_end_where_the_metric_of_the_task_ends(
    tmp_path: Path, unit: str, values: tuple[float, float], limited: bool
) -> None:
    """A metric of the task comes before a known one of the same name."""
    metrics = {name: Metric("score", unit, higher_is_better=True) for name in ("f1", "own")}
    for name in metrics:
        for seed, value in enumerate(values):
            row = replace(SCORE, metric=name, value=value)
            headline = Headline(name, "all")
            put(tmp_path / name, "rope", [row], seed, headline=headline, metrics=metrics)
        (table,) = read_tables(tmp_path / name)
        low, high = table.scores[["ci_low", "ci_high"]].iloc[0]
        assert low < sum(values) / 2 < high
        assert (low >= 0 and high <= 100) == limited


@pytest.mark.parametrize(
    ("metric", "baseline", "limits"),
    [
        ("f1", 20.0, (20.0, 100.0)),
        ("f1", 99.0, (99.0, 100.0)),
        ("f1", None, (50.0, 100.0)),
        ("errors", 90.0, (90.0, 0.0)),
        ("errors", 10.0, (10.0, 0.0)),
        ("bits_per_byte", 90.0, (90.0, 0.0)),
        ("bits_per_byte", 10.0, (10.0, 0.0)),  # no encoding beats the baseline
        ("open", 20.0, (20.0, 60.0)),  # the best encoding is the ceiling
        ("open", 90.0, (50.0, 60.0)),
    ],
)
def test_normalised_scores_grow_with_quality(
    tmp_path: Path, metric: str, baseline: float | None, limits: tuple[float, float]
) -> None:
    metrics = {"open": OPEN, "errors": ERRORS}
    for encoding, value in (("rope", 50.0), ("nope", 60.0)):
        score = replace(SCORE, metric=metric, value=value)
        headline = Headline(metric, "all")
        put(tmp_path, encoding, [score], headline=headline, metrics=metrics)
    if baseline is not None:
        rows = [replace(SCORE, metric=metric, value=baseline)]
        put_baselines(tmp_path, {"guessing": rows})
    (table,) = read_tables(tmp_path)
    assert find_limits(table) == limits


@pytest.mark.slow
def test_without_them_nothing_is_said(tmp_path: Path) -> None:
    put(tmp_path, "rope", [SCORE, *CURVE])
    put_baselines(tmp_path, {"guessing": scaled([SCORE], 20)})
    assert "†" not in report(tmp_path)[0]
    baselines_path(tmp_path, "lm", "5e77").unlink()
    assert "italics" not in report(tmp_path)[0]


def lines(axis: Axes) -> list[list[float]]:
    return [np.asarray(line.get_ydata()).tolist() for line in axis.lines]


def test_the_best_is_a_line_that_the_legend_names(tmp_path: Path) -> None:
    put(tmp_path, "rope", [SCORE, *CURVE])
    rows = {"guessing": scaled(CURVE, 3), "bigram table": scaled(CURVE, 2)}
    put_baselines(tmp_path, rows)
    (table,) = read_tables(tmp_path)
    figure = draw_curves(table)
    (axis,) = figure.axes
    best = [row.value for row in rows["bigram table"]]
    assert best in lines(axis) and [3 * row.value for row in CURVE] not in lines(axis)
    assert legend_of(figure) == ["rope", "best baseline:\nbigram table"]


@pytest.mark.parametrize(
    ("metric", "best"), [("bits_per_byte", "bigram table"), ("f1", "guessing")]
)
def test_the_best_baseline_is_that_of_the_direction(tmp_path: Path, metric: str, best: str) -> None:
    rows = [replace(row, metric=metric) for row in CURVE]
    put(tmp_path, "rope", rows, views=(Curve("test", metric),), headline=Headline(metric, "test"))
    put_baselines(tmp_path, {"guessing": scaled(rows, 3), "bigram table": scaled(rows, 2)})
    (table,) = read_tables(tmp_path)
    (curve,) = make_curves(table)
    assert [one.name for one in curve.baselines] == [best]


@pytest.mark.slow
def test_parts_have_a_line_each(tmp_path: Path) -> None:
    put(tmp_path, "rope", [SCORE, *PARTS], views=PART_COLUMNS)
    put_baselines(tmp_path, {"guessing": scaled(PARTS, 0.5)})
    (table,) = read_tables(tmp_path)
    (axis,) = draw_scores(table).axes
    halves = [values for values in lines(axis) if values == pytest.approx([PARTS[0].value / 2] * 2)]
    assert len(halves) == 3


@pytest.mark.slow
def test_a_column_called_like_its_metric_says_it_once(tmp_path: Path) -> None:
    metrics = {"span": Metric("effective length", "tokens", higher_is_better=True)}
    rows = [SCORE, Measurement("all", "span", 64.0, 9)]
    views = (Column("all", "span", "effective length"),)
    put(tmp_path, "rope", rows, views=views, metrics=metrics)
    (row,) = cells(report(tmp_path)[0])
    assert row["effective length (tokens ↑)"] == "64.00"
