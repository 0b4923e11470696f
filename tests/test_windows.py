"""Evaluation windows and the statistics of ratios over them."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from pe_bench.tasks.perplexity.tokenized_corpus import TokenText
from pe_bench.tasks.perplexity.windows import find_windows, interval, make_spans, ratio


def text(sizes: Sequence[int], gap: int = 1, bounded: bool = True) -> TokenText:
    """Documents of ascending ids, `gap` ids between them."""
    starts = np.cumsum([0, *(size + gap for size in sizes[:-1])])
    return TokenText(np.arange(sum(sizes) + gap * len(sizes)), starts, starts + sizes, bounded)


@pytest.mark.parametrize("sizes", [[10], [3, 4, 5, 0, 17, 8], [4, 4], [1, 2, 3]])
@pytest.mark.parametrize("length", [1, 4, 5])
@pytest.mark.parametrize("step", [1, 3, 4, 9])
def test_windows_are_those_that_fit_into_a_document(
    sizes: list[int], length: int, step: int
) -> None:
    documents = text(sizes)
    windows = find_windows(documents, length, step)
    expected = [
        (start + i, number)
        for number, (start, end) in enumerate(zip(documents.starts, documents.ends, strict=True))
        for i in range(0, end - start, step)
        if start + i + length <= end
    ]
    found = zip(windows.starts.tolist(), windows.clusters.tolist(), strict=True)
    assert list(found) == expected and len(windows) == len(expected)
    for i, (start, _) in enumerate(expected):
        assert windows.take(i, i + 1).tolist() == [list(range(start, start + length))]
    assert windows.take(0, 2).shape == (min(2, len(expected)), length)


@pytest.mark.parametrize("count", [1, 3, 7, 8, 99])
def test_fewer_windows_are_spread_evenly(count: int) -> None:
    every = find_windows(text([20, 13]), 4, 4)
    some = find_windows(text([20, 13]), 4, 4, count)
    chosen = [i * 8 // count for i in range(count)] if count < 8 else list(range(8))
    assert some.starts.tolist() == every.starts[chosen].tolist()
    assert some.clusters.tolist() == every.clusters[chosen].tolist()


def test_windows_that_overlap_go_together_where_documents_are_not_known() -> None:
    windows = find_windows(text([20], bounded=False), 6, 2)
    assert windows.starts.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert windows.clusters.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_one_window_in_each_cluster_gives_the_usual_error() -> None:
    values = np.random.default_rng(0).normal(5, 2, 30)
    value, error = ratio(values, np.full(30, 4), np.arange(30))
    assert value == pytest.approx(values.mean() / 4)
    assert error == pytest.approx(np.std(values / 4, ddof=1) / math.sqrt(30))


def test_copies_of_a_window_add_no_certainty() -> None:
    random = np.random.default_rng(1)
    above, below, names = random.normal(5, 2, 20), random.integers(3, 9, 20), np.arange(20)
    one = ratio(above, below, names)
    many = ratio(*(np.tile(column, 50) for column in (above, below, names)))
    assert many == pytest.approx(one)
    assert ratio(np.tile(above, 50), np.tile(below, 50), np.arange(1000))[1] < one[1] / 6


def test_the_error_is_the_spread_over_repetitions() -> None:
    """Of documents drawn anew, each with windows that share most of their difficulty."""
    random = np.random.default_rng(2)
    names = np.repeat(np.arange(40), 10)
    found = []
    for _ in range(400):
        below = random.integers(80, 120, 400)
        hardness = np.repeat(random.normal(2, 0.5, 40), 10) + random.normal(0, 0.3, 400)
        found.append(ratio(below * hardness, below, names))
    values, errors = np.array(found).T
    assert errors.mean() == pytest.approx(values.std(), rel=0.1)


def test_an_interval_resamples_clusters() -> None:
    above, below, names = np.array([1.0, 3.0, 20.0]), np.array([1, 1, 4]), np.array([7, 7, 2])
    # Of two clusters, 4/2 and 20/4: a quarter of the resamples has one of them alone.
    assert interval(above, below, names) == pytest.approx((2, 5))
    assert interval(above[:2], below[:2], names[:2]) is None
    assert math.isnan(ratio(above[:2], below[:2], names[:2])[1])


def test_an_interval_is_about_two_errors_wide() -> None:
    random = np.random.default_rng(3)
    above, below, names = random.normal(5, 1, 300), np.full(300, 2), np.arange(300) // 3
    value, error = ratio(above, below, names)
    ends = interval(above, below, names)
    assert ends == pytest.approx((value - 1.96 * error, value + 1.96 * error), rel=0.01)
    assert ends == interval(above, below, names)


@pytest.mark.parametrize("above", [math.inf, math.nan, 1.0])
def test_numbers_without_a_value_are_no_warning(above: float) -> None:
    empty = np.zeros(3, np.int64)
    value, error = ratio(np.full(3, above), empty, np.arange(3))
    assert not math.isfinite(value) and not math.isfinite(error)
    interval(np.full(3, above), empty, np.arange(3))


def test_spans() -> None:
    spans = make_spans([2, 5, 12], 2)
    found = {(span.subset, span.family, span.length): (span.seen, span.scored) for span in spans}
    assert len(found) == len(spans)
    assert found == {
        ("test", "", 2): ((0, 2), (0, 2)),
        ("test", "", 5): ((0, 5), (0, 5)),
        ("test", "", 12): ((0, 12), (0, 12)),
        ("test", "tail_", 2): ((0, 2), (0, 2)),
        ("test", "tail_", 5): ((0, 5), (3, 5)),
        ("test", "tail_", 12): ((0, 12), (10, 12)),
        ("position", "", 1): ((0, 12), (0, 1)),
        ("position", "", 3): ((0, 12), (1, 3)),
        ("position", "", 6): ((0, 12), (3, 6)),
        ("position", "", 12): ((0, 12), (6, 12)),
        ("context", "", 2): ((10, 12), (10, 12)),
        ("context", "", 5): ((7, 12), (10, 12)),
        ("context", "", 12): ((0, 12), (10, 12)),
    }
