"""Ratios over clusters, with errors and intervals."""

import math
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from pe_bench.results.intervals import Numbers, average, ratio
from pe_bench.results.measurement import Measurement


def of(above: Numbers, below: Numbers, clusters: Any = None, **options: Any) -> Measurement:
    return ratio("test", "bits_per_byte", above, below, clusters, **options)


def test_one_item_in_each_cluster_gives_the_usual_error() -> None:
    values = np.random.default_rng(0).normal(5, 2, 30)
    row = of(values, np.full(30, 4), np.arange(30))
    assert row.value == pytest.approx(values.mean() / 4) and row.n == 30
    assert row.stderr == pytest.approx(np.std(values / 4, ddof=1) / math.sqrt(30))
    assert row.ci_high - row.value == pytest.approx(1.959964 * row.stderr)
    assert row.value - row.ci_low == pytest.approx(1.959964 * row.stderr)
    assert astuple(of(values, np.full(30, 4))) == astuple(row)


def test_copies_of_an_item_add_no_certainty() -> None:
    rng = np.random.default_rng(1)
    above = rng.normal(5, 2, 20)
    below = rng.integers(3, 9, 20)
    one = of(above, below, np.arange(20))
    many = of(np.tile(above, 50), np.tile(below, 50), np.tile(np.arange(20), 50))
    assert (many.value, many.stderr) == pytest.approx((one.value, one.stderr))
    assert of(np.tile(above, 50), np.tile(below, 50)).stderr < one.stderr / 6


def test_the_error_is_the_spread_over_repetitions() -> None:
    """Documents are drawn repeatedly; the windows of a document have similar difficulty."""
    rng = np.random.default_rng(2)
    names = np.repeat(np.arange(40), 10)
    rows = []
    for _ in range(400):
        below = rng.integers(80, 120, 400)
        hardness = np.repeat(rng.normal(2, 0.5, 40), 10) + rng.normal(0, 0.3, 400)
        rows.append(of(below * hardness, below, names))
    spread = np.std([row.value for row in rows])
    assert np.mean([row.stderr for row in rows]) == pytest.approx(spread, rel=0.1)


def test_an_interval_resamples_clusters() -> None:
    above = np.array([1.0, 3.0, 20.0])
    below = np.array([1, 1, 4])
    names = np.array([7, 7, 2])
    # Of two clusters, 4/2 and 20/4: a quarter of the resamples has one of them alone.
    row = of(above, below, names, resamples=1000)
    assert (row.ci_low, row.ci_high) == pytest.approx((2, 5))
    alone = of(above[:2], below[:2], names[:2], resamples=1000)
    assert math.isnan(alone.stderr) and math.isnan(alone.ci_low) and math.isnan(alone.ci_high)


def test_an_interval_is_about_two_errors_wide() -> None:
    rng = np.random.default_rng(3)
    above = rng.normal(5, 1, 300)
    below = np.full(300, 2)
    names = np.arange(300) // 3
    usual = of(above, below, names)
    row = of(above, below, names, resamples=1000)
    halves = [usual.value - row.ci_low, row.ci_high - usual.value]
    assert halves == pytest.approx([1.96 * usual.stderr] * 2, rel=0.1)
    assert row == of(above, below, names, resamples=1000)


def test_intervals_end_where_values_do() -> None:
    row = ratio("a", "accuracy", np.array([900, 1000, 1000]), np.full(3, 10))
    assert row.value < row.ci_high == 100
    losses = np.array([0.0, 0.1, 3.0])
    assert of(losses, np.ones(3)).ci_low == 0
    assert of(losses - 0.2, np.ones(3)).ci_low < -0.5  # differences may be negative


@pytest.mark.parametrize("above", [math.inf, math.nan, 1.0])
def test_numbers_without_a_value_are_no_warning(above: float) -> None:
    row = of(np.full(3, above), np.zeros(3, np.int64), resamples=100)
    assert not math.isfinite(row.value) and not math.isfinite(row.stderr)


def test_the_average_of_evaluations_keeps_their_uncertainty() -> None:
    one = Measurement("a", "accuracy", 50.0, 10, 3.0, 7, ci_low=44.0, ci_high=56.0)
    other = Measurement("a", "accuracy", 70.0, 10, 5.0, 7, ci_low=60.0, ci_high=80.0)
    expected = Measurement("a", "accuracy", 60.0, 10, 4.0, 7, ci_low=52.0, ci_high=68.0)
    assert average([[one], [other]]) == [expected]
