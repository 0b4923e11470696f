"""Charts of learning curves: their numbers, axes and titles, and their figures."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import SCORE, put, read_table

from pe_bench.cli import main
from pe_bench.reporting.chart_layout import Limits, linear_ticks, log_ticks
from pe_bench.reporting.charts_json import list_charts
from pe_bench.reporting.figure_files import draw
from pe_bench.reporting.styles import styles
from pe_bench.reporting.training_charts import MOST_POINTS, make_training
from pe_bench.reporting.training_figures import draw_training
from pe_bench.results.layout import CURVES
from pe_bench.results.learning_curves import OF_A_RUN, CurveKey, LearningCurve, write_curve_file

TASK = ("task", "")


def make_curve(loss: Sequence[float], every: int = 1) -> LearningCurve:
    """Return a curve with given losses, a decreasing learning rate and constant norms."""
    count = len(loss)
    return LearningCurve(
        step=tuple(every * (1 + n) for n in range(count)),
        loss=tuple(loss),
        lr=tuple(1e-3 * (count - n) for n in range(count)),
        grad_norm=(2.0,) * count,
        tokens_per_second=(100.0,) * count,
    )


def put_curves(
    root: Path, encoding: str, curves: dict[CurveKey, LearningCurve], seed: int = 0, **changed: Any
) -> None:
    folder = put(root, encoding, [SCORE], seed, **changed)
    write_curve_file(folder / CURVES, curves, OF_A_RUN)


def test_a_curve_is_the_mean_over_seeds_within_their_range(tmp_path: Path) -> None:
    for seed, losses in enumerate(([4.0, 2.0], [2.0, 1.0], [3.0, 3.0])):
        put_curves(tmp_path, "rope", {TASK: make_curve(losses)}, seed)
    put_curves(tmp_path, "nope", {TASK: make_curve([5.0, math.nan])})
    (chart,) = make_training(read_table(tmp_path))
    rope, nope = chart.series["rope"], chart.series["nope"]
    assert (rope.seeds, rope.steps) == (3, [1.0, 2.0])
    assert rope.bands["loss"] == ([3.0, 2.0], [2.0, 1.0], [4.0, 3.0])
    assert rope.bands["lr"] == ([2e-3, 1e-3], [], [])  # all seeds agree
    assert nope.seeds == 1 and nope.bands["loss"].mean[0] == 5.0
    assert "mean over seeds" in chart.says and chart.title == "Training"
    loss, rate, norm, speed = chart.quantities
    assert (loss.name, loss.log, rate.log, norm.log, speed.log) == ("loss", *[False] * 4)
    assert rate.limits[0] == speed.limits[0] == 0 and speed.limits[1] > 100
    assert loss.limits[0] < 1 and loss.limits[1] > 5


def test_long_curves_become_short(tmp_path: Path) -> None:
    losses = [1.0 + n for n in range(250)]
    curve = make_curve(losses, every=8)
    speeds = (10.0, 30.0, 20.0) + (15.0,) * 247
    put_curves(tmp_path, "rope", {TASK: replace(curve, tokens_per_second=speeds)})
    (chart,) = make_training(read_table(tmp_path))
    steps, _, bands = chart.series["rope"]
    assert len(steps) == math.ceil(250 / 3) <= MOST_POINTS
    assert steps[:2] == [24, 48] and steps[-1] == 2000 == chart.x_limits[1]
    assert bands["loss"].mean[:2] == [2.0, 5.0] and bands["loss"].mean[-1] == 250
    assert bands["lr"].mean[0] == pytest.approx(0.248, rel=1e-3)  # rate of the last step
    assert bands["tokens_per_second"].mean[0] == pytest.approx(16.36)  # 3 intervals of equal size
    assert chart.quantities[0].log  # from 2 to 250


def test_seeds_are_averaged_at_the_steps_that_all_have(tmp_path: Path) -> None:
    put_curves(tmp_path, "rope", {TASK: make_curve([4.0, 3.0, 2.0, 1.0])}, 0)
    put_curves(tmp_path, "rope", {TASK: make_curve([1.0, 5.0], every=2)}, 1)
    put_curves(tmp_path, "nope", {TASK: make_curve([1.0], every=3)}, 0)
    put_curves(tmp_path, "nope", {TASK: make_curve([1.0], every=2)}, 1)  # never at the same step
    (chart,) = make_training(read_table(tmp_path))
    assert list(chart.series) == ["rope"]
    assert chart.series["rope"].steps == [2, 4]
    assert chart.series["rope"].bands["loss"].mean == [2.0, 3.0]


def test_each_phase_and_subset_has_a_chart(tmp_path: Path) -> None:
    curve = make_curve([2.0, 1.0])
    curves: dict[CurveKey, LearningCurve]
    curves = {("task", "b"): curve, ("task", "a"): curve, ("start", ""): curve}
    put_curves(tmp_path, "rope", curves)
    titles = [chart.title for chart in make_training(read_table(tmp_path))]
    assert titles == ["Pre-training", "Fine-tuning for a", "Fine-tuning for b"]


@pytest.mark.slow
def test_adapted_models_share_the_curve_of_the_original_model(tmp_path: Path) -> None:
    for label, steps in (("alibi", 0), ("t5", 9)):
        curves: dict[CurveKey, LearningCurve] = {("start", ""): make_curve([3.0, 2.0])}
        if steps:
            curves["task", ""] = make_curve([2.0, 1.0])
        adaptation = {"encoding": label, "from": "rope", "config": {"steps": steps}}
        put_curves(tmp_path, f"rope -> {label}", curves, adaptation=adaptation)
    table = read_table(tmp_path)
    first, second = make_training(table)
    assert (first.title, list(first.series)) == ("Training of rope", ["rope"])
    assert first.series["rope"].seeds == 1
    assert (second.title, list(second.series)) == ("Adaptation", ["rope -> t5"])
    figure = draw_training(table)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["rope", "rope -> t5"]


def test_a_figure_has_a_panel_for_each_quantity(tmp_path: Path) -> None:
    for seed, factor in enumerate((0.5, 1.5)):
        losses = [factor * 8.0 / 10**n for n in range(4)]
        put_curves(tmp_path, "rope", {TASK: make_curve(losses)}, seed)
    table = read_table(tmp_path)
    assert list(draw(table)) == ["training"]
    loss, rate, *_ = draw_training(table).axes
    (line,) = loss.lines
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([8.0, 0.8, 0.08, 0.008])
    assert line.get_color() == styles(["rope"])["rope"].colour
    assert (loss.get_yscale(), rate.get_yscale()) == ("log", "linear")
    assert [label.get_text() for label in loss.get_yticklabels()] == ["0.01", "0.1", "1", "10"]
    (band,) = loss.collections
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == (pytest.approx(0.004), pytest.approx(12.0))
    assert not rate.collections  # the seeds agree


def test_the_page_gets_what_the_figure_draws(tmp_path: Path) -> None:
    put_curves(tmp_path, "rope", {TASK: make_curve([4.0, math.nan])})
    table = read_table(tmp_path)
    (chart,) = list_charts(table, [table])["training"]
    assert chart["series"]["rope"][:2] == [[1, 2], 1]
    assert chart["series"]["rope"][2]["loss"] == [[4, None], [], []]
    assert [name for name, *_ in chart["quantities"]] == [
        "loss", "lr", "grad_norm", "tokens_per_second",
    ]  # fmt: skip


def test_results_without_curves_have_no_chart(tmp_path: Path) -> None:
    put(tmp_path, "rope", [SCORE])
    table = read_table(tmp_path)
    assert make_training(table) == [] and draw(table) == {}
    assert "training" not in list_charts(table, [table])


@pytest.mark.slow
def test_a_damaged_file_of_curves_is_named_and_the_rest_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_curves(tmp_path, "nope", {TASK: make_curve([2.0, 1.0])})
    folder = put(tmp_path, "rope", [SCORE])
    (folder / CURVES).write_bytes(b"else")
    assert main(["report", "--results", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count(CURVES) == 1 and "Traceback" not in said
    assert "Training" in (tmp_path / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("limits", "ticks"),
    [((0, 0.0031), 7), ((0, 55_463), 6), ((1.2, 5.6), 4), ((-1.0, 1.0), 5), ((7.0, 9.0), 5)],
)
def test_linear_ticks_are_round_numbers(limits: Limits, ticks: int) -> None:
    found = linear_ticks(limits)
    assert len(found) == ticks
    assert all(limits[0] <= tick <= limits[1] for tick in found)
    assert all(len(f"{tick:g}".replace(".", "").strip("-0")) <= 2 for tick in found)


@pytest.mark.parametrize(
    ("limits", "ticks"),
    [
        ((2e-4, 7.0), [1e-3, 1e-2, 0.1, 1.0]),
        ((0.3, 4.0), [0.5, 1.0, 2.0]),
        ((1e-12, 1e3), [1e-12, 1e-9, 1e-6, 1e-3, 1.0, 1e3]),
    ],
)
def test_logarithmic_ticks_are_powers_of_ten(limits: Limits, ticks: list[float]) -> None:
    assert log_ticks(limits) == ticks


@pytest.mark.slow
@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0, 3e38, 1e-45])
def test_any_number_of_a_file_is_drawn(tmp_path: Path, number: float) -> None:
    curve = LearningCurve((-1, 0), *[(number, 1.0)] * 4)
    put_curves(tmp_path, "rope", {TASK: curve}, 0)
    put_curves(tmp_path, "rope", {TASK: make_curve([2.0], every=0)}, 1)
    put_curves(tmp_path, "nope", {TASK: replace(curve, loss=(number, number))})
    table = read_table(tmp_path)
    (chart,) = make_training(table)
    for quantity in chart.quantities:
        low, high = quantity.limits
        assert math.isfinite(low) and math.isfinite(high) and low < high
    draw_training(table).draw_without_rendering()
