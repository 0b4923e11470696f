"""Scores of single items: values, errors over clusters, means over draws, files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from pe_bench.errors import InputError
from pe_bench.results.intervals import wilson
from pe_bench.results.item_files import read_items, read_labelled_items, write_items
from pe_bench.results.items import Items, RowKey, average_draws, recompute
from pe_bench.results.measurement import Measurement
from pe_bench.results.metrics import Metric
from pe_bench.results.row_checks import check_rows

SHARE = Items("a", "accuracy", np.array([100.0, 0, 100, 100]), length=3, groups=(RowKey("all"),))
RATIO = Items("b", "accuracy", np.array([100.0, 300]), np.array([2.0, 4]), groups=(RowKey("all"),))
LOSS = Items("c", "perplexity", np.array([2.0, 4]), np.array([2.0, 2]), combine="exp")
ROUGE = Items(
    "d",
    "rgm",
    np.array([[40.0, 10], [60, 30], [20, 20]]),
    clusters=np.array([5, 5, 7]),
    groups=(RowKey("all", "score"),),
    combine="geometric mean",
)
MANY = [SHARE, RATIO, LOSS, ROUGE]


def test_values_of_cells_and_summaries() -> None:
    assert [cell.value for cell in MANY] == pytest.approx([75, 400 / 6, np.exp(1.5), 800**0.5])
    found = recompute(MANY)
    assert found[RowKey("all", "accuracy")] == pytest.approx((75 + 400 / 6) / 2)
    assert found[RowKey("all", "score")] == found[RowKey("d", "rgm")] == ROUGE.value
    assert len(found) == 6


def test_a_share_has_the_interval_of_wilson() -> None:
    row = SHARE.row()
    low, high = wilson(0.75, 4)
    assert row == Measurement("a", "accuracy", 75, 4, row.stderr, 3, "", 100 * low, 100 * high)
    certain = replace(SHARE, values=np.full(4, 100.0)).row()
    assert certain.ci_low == pytest.approx(100 * wilson(1, 4)[0]) and certain.ci_high == 100


def test_questions_on_one_document_are_not_independent() -> None:
    values = np.repeat([100.0, 0, 100, 0, 100, 100], 4)
    alone = Items("a", "em", values).row()
    together = Items("a", "em", values, clusters=np.repeat(np.arange(6), 4)).row()
    assert together.stderr > 1.9 * alone.stderr
    assert together.ci_low < alone.ci_low and together.ci_high > alone.ci_high
    share = together.value / 100
    independent = share * (1 - share) / (together.stderr / 100) ** 2
    low, high = wilson(share, independent)
    assert (together.ci_low, together.ci_high) == pytest.approx((100 * low, 100 * high))
    all_right = Items("a", "em", np.full(24, 100.0), clusters=np.repeat(np.arange(6), 4)).row()
    assert all_right.ci_low == pytest.approx(100 * wilson(1, 6)[0])  # as for six answers


def test_the_error_of_a_geometric_mean_leaves_out_documents() -> None:
    row = ROUGE.row()
    without = [(20 * 20) ** 0.5, (50 * 20) ** 0.5]  # one document each
    assert row.value == pytest.approx(800**0.5) and row.n == 3
    assert row.stderr == pytest.approx(np.std(without))
    assert row.ci_low < row.value < row.ci_high
    assert np.isnan(replace(ROUGE, clusters=np.zeros(3, int)).row().stderr)


def test_draws_are_averaged_item_by_item() -> None:
    other = [replace(SHARE, values=np.zeros(4)), RATIO, replace(LOSS, values=np.zeros(2)), ROUGE]
    rows = [[cell.row() for cell in cells] for cells in (MANY, other)]
    means, items = average_draws(rows, [MANY, other])
    assert [row.value for row in means] == pytest.approx([cell.value for cell in items])
    assert means[0].value == 37.5 and items[0].values.tolist() == [50, 0, 50, 50]
    assert means[2].value == pytest.approx(np.exp(0.75))  # exponential of the mean loss
    assert average_draws(rows[:1], [MANY]) == (rows[0], MANY)


def test_a_file_holds_them_and_what_else_is_known(tmp_path: Path) -> None:
    path = tmp_path / "items.parquet"
    write_items(path, MANY, {"run": ["a", "b", "c", "d"]})
    assert read_items(path) == MANY
    labels = [labels for _, labels in read_labelled_items(path, ["run"])]
    assert labels == [{"run": run} for run in "abcd"]
    assert read_items(path)[0] != replace(SHARE, values=np.zeros(4))
    write_items(path, [])
    assert read_items(path) == []
    path.write_text("torn")
    with pytest.raises(InputError, match="cannot read"):
        read_items(path)


BAD: list[dict[str, Any]] = [
    {"subset": "a\nb"},
    {"metric": "a\nb"},
    {"second_axis": "a\nb"},
    {"groups": (RowKey("all"), RowKey("a\nb"))},
    {"groups": (RowKey("all"), RowKey("all", "a\nb"))},
    {"groups": (RowKey("all"), RowKey("all", second_axis="a\nb"))},
    {"groups": (RowKey("all", length=-1),)},
    {"length": -1},
    {"combine": "median"},
    {"weights": np.ones(3)},
    {"clusters": np.ones(5)},
]


@pytest.mark.parametrize("changes", BAD)
def test_a_foreign_file_with_an_impossible_row_is_refused(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    cell = replace(SHARE, **changes)
    path = tmp_path / "items.parquet"
    write_items(path, [LOSS, cell])
    with pytest.raises(InputError, match=r"cannot read .* (has a row|control characters)"):
        read_items(path)


def test_losses_are_kept_bit_by_bit_in_a_smaller_form(tmp_path: Path) -> None:
    """Files of earlier versions, with one dictionary for all items, are read as before."""
    rng = np.random.default_rng(0)
    losses = [Items("a", "loss", rng.random(500).astype(np.float32)) for _ in range(9)]
    new = tmp_path / "new.parquet"
    write_items(new, losses)
    old = tmp_path / "old.parquet"
    parquet.write_table(parquet.ParquetFile(new).read(), old, compression="zstd")
    assert read_items(new) == read_items(old) == losses
    assert new.stat().st_size < 0.9 * old.stat().st_size


def test_cells_differ_in_any_of_their_fields() -> None:
    """Equality decides whether two runs have the same items."""
    cell = replace(ROUGE, weights=np.array([1.0, 2, 3]), length=4, second_axis="x")
    assert cell == replace(cell, values=cell.values.copy())
    others: list[Items] = [
        replace(cell, values=cell.values + 1),
        replace(cell, weights=np.array([1.0, 3, 2])),
        replace(cell, weights=None),
        replace(cell, clusters=np.array([5, 7, 7])),
        replace(cell, clusters=None),
        replace(cell, length=5),
        replace(cell, second_axis="y"),
        replace(cell, groups=()),
        replace(cell, combine="mean"),
        replace(cell, metric="f1"),
        replace(cell, subset="e"),
    ]
    assert not any(other == cell or cell == other for other in others)


def test_clusters_may_be_hashes_of_64_bits(tmp_path: Path) -> None:
    hashes = np.array([2**62, 7, 2**62, 2**33, 7])
    cell = Items("a", "f1", np.arange(5.0), clusters=hashes)
    write_items(tmp_path / "items.parquet", [cell])
    (read,) = read_items(tmp_path / "items.parquet")
    assert read.clusters is not None
    same = hashes[:, None] == hashes
    assert np.array_equal(read.clusters[:, None] == read.clusters, same)
    assert recompute([read]) == recompute([cell])


def test_an_averaged_value_is_in_its_interval() -> None:
    """The perplexity of averaged scores is below the mean perplexity."""
    rng = np.random.default_rng(0)
    base = rng.normal(4, 0.05, 400)
    draws = [Items("a", "perplexity", base + rng.normal(0, 0.8), combine="exp") for _ in "abcd"]
    (row,), _ = average_draws([[draw.row()] for draw in draws], [[draw] for draw in draws])
    mean = np.mean([draw.row().ci_low for draw in draws])
    assert row.ci_low == row.value < mean and row.value < row.ci_high
    check_rows([row], {})


@pytest.mark.parametrize(("better", "largest"), [(False, 150.0), (True, 100.0)])
def test_an_error_rate_can_be_above_one_hundred(better: bool, largest: float) -> None:
    metric = Metric("word error rate", "%", higher_is_better=better)
    values = np.array([largest - 20, largest])
    row = Items("a", "wer", values).row(metric)
    assert (row.ci_high > 100) == (not better)
    check_rows([row], {"wer": metric})
