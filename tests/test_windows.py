"""Evaluation windows and the statistics of ratios over them."""

from collections.abc import Sequence

import numpy as np
import pytest

from pe_bench.tasks.perplexity.tokenized_corpus import TokenText
from pe_bench.tasks.perplexity.windows import find_windows, make_spans


def text(sizes: Sequence[int], gap: int = 1, bounded: bool = True) -> TokenText:
    """Return documents of ascending ids, with `gap` ids between them."""
    starts = np.cumsum([0, *(size + gap for size in sizes[:-1])], dtype=np.int64)
    return TokenText(
        np.arange(sum(sizes) + gap * len(sizes)), starts, starts + np.array(sizes), bounded
    )


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


def test_spans() -> None:
    spans = make_spans([2, 5, 12], 2)
    found = {(span.subset, span.family, span.length): span[3:] for span in spans}
    assert len(found) == len(spans)
    assert found == {
        ("test", "", 2): ((0, 2), (0, 2), False),
        ("test", "", 5): ((0, 5), (0, 5), False),
        ("test", "", 12): ((0, 12), (0, 12), False),
        ("test", "tail_", 2): ((0, 2), (0, 2), False),
        ("test", "tail_", 5): ((0, 5), (3, 5), False),
        ("test", "tail_", 12): ((0, 12), (10, 12), False),
        ("position", "", 1): ((0, 12), (0, 1), False),
        ("position", "", 3): ((0, 12), (1, 3), False),
        ("position", "", 6): ((0, 12), (3, 6), False),
        ("position", "", 12): ((0, 12), (6, 12), False),
        ("context", "", 2): ((10, 12), (10, 12), False),
        ("context", "", 5): ((7, 12), (10, 12), False),
        ("context", "", 12): ((0, 12), (10, 12), False),
        ("key-tokens", "", 2): ((10, 12), (10, 12), True),
        ("key-tokens", "", 5): ((7, 12), (10, 12), True),
        ("key-tokens", "", 12): ((0, 12), (10, 12), True),
    }
