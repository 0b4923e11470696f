"""The order of encodings at several sizes of the model: statistics, report, grid."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import some_slow
from made_runs import put
from PIL import Image
from scripts import load_script
from test_compare import put as put_scores
from test_compare import put_baselines

from pe_bench.cli import COMMANDS
from pe_bench.commands.parser import parse
from pe_bench.commands.run import make_grid
from pe_bench.reporting.markdown import ABSENT
from pe_bench.reporting.report import write_report
from pe_bench.reporting.size_chart import CEILING, make_size_chart
from pe_bench.reporting.sizes import Ladder, describe_ladder, find_ladders, read_marks, score_rows
from pe_bench.reporting.tables import read_tables
from pe_bench.reporting.task_summary import find_summaries
from pe_bench.results.measurement import Measurement
from pe_bench.results.views import Column, Headline
from pe_bench.runs.factory import RunFactory
from pe_bench.stats.comparison import SeedScores
from pe_bench.stats.significance import student_quantile
from pe_bench.stats.sizes import SAME_ORDER, Stability, draw_means, find_stability, kendall_tau

ROOT = Path(__file__).parents[1]
GRID = ROOT / "results" / "sizes" / "grid.toml"
MEANS = {"alibi": 80.0, "fire": 70.0, "nope": 50.0, "rope": 40.0, "tape": 30.0}
UPSIDE_DOWN = dict(zip(MEANS, reversed(MEANS.values()), strict=True))
NOISE = np.array([0.3, -0.4, 0.1, -0.2, 0.4, 0.0, -0.3, 0.1])  # of seeds


@pytest.mark.slow
@pytest.mark.parametrize(("truth", "mark"), [("the same", "stable"), ("another one", "changes")])
def test_the_page_has_the_simulated_frequencies_of_the_marks(truth: str, mark: str) -> None:
    marks = load_script("benchmarks/marks.py")
    of = next(one for one in marks.TRUTHS if one.startswith(truth.split()[0]))
    counts = marks.simulate(of, 4, 3, 500, "normal")
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^\| {truth} .*\| {mark} \| (\S+) % \|", page, re.MULTILINE)
    assert f"{counts[mark] / 5:.1f}" == line


def scores(means: Sequence[float], seeds: int, spread: float = 1.0) -> SeedScores:
    """Return numbers of encodings whose seeds differ a little, each in its own way."""
    turns = [np.roll(NOISE, index) for index in range(len(means))]
    values = np.array(means)[:, None] + spread * np.array(turns)[:, :seeds]
    return SeedScores([f"e{index}" for index in range(len(means))], values)


def mark(*sizes: SeedScores) -> str:
    return find_stability(sizes).mark


@pytest.mark.slow
def test_tau_is_that_of_scipy() -> None:
    from scipy.stats import kendalltau

    rng = np.random.default_rng(0)
    for _ in range(50):
        one, other = rng.integers(0, 6, (2, 5))  # with ties
        expected = kendalltau(one, other).statistic
        assert float(kendall_tau(one, other)) == pytest.approx(expected, nan_ok=True)


def test_tau_counts_pairs() -> None:
    order = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert kendall_tau(order, order**3) == 1
    assert kendall_tau(order, -order) == -1
    assert kendall_tau(order, order[[1, 0, 2, 3, 4]]) == pytest.approx(0.8)  # one pair of ten
    assert kendall_tau(order[:3], np.array([1.0, 1.0, 2.0])) == pytest.approx(2 / 6**0.5)
    assert np.isnan(kendall_tau(order, 0 * order))


def test_differences_of_drawn_means_have_a_t_distribution() -> None:
    values = scores([3, 2, 1], 5).values
    drawn = draw_means(values)
    assert np.median(drawn, 0) == pytest.approx(values.mean(1), abs=0.02)
    difference = drawn[:, 0] - drawn[:, 1]
    error = (values[0] - values[1]).std(ddof=1) / 5**0.5
    width = np.quantile(difference, 0.975) - (values[0].mean() - values[1].mean())
    assert width == pytest.approx(student_quantile(4) * error, rel=0.05)  # of the paired t-test
    hard = np.array([0, 50, -50, 20, -20])  # seeds that are easy or hard for all
    assert draw_means(values + hard)[:, 0] - draw_means(values + hard)[:, 1] == (
        pytest.approx(difference)
    )
    assert (draw_means(values[:2]) == drawn[:, :2]).all()  # another encoding changes nothing


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([scores([5, 4, 3, 2, 1], 3, 0.2), scores([9, 7, 5, 3, 1], 3, 0.2)], "stable"),
        ([scores([5, 4, 3, 2, 1], 3, 0.2), scores([9, 5, 7, 3, 1], 3, 0.2)], "stable"),  # 9 of 10
        ([scores([5, 4, 3, 2, 1], 5), scores([9, 5, 7, 3, 1], 5)], "changes"),  # by the test
        ([scores([5, 4, 3, 2, 1], 5), scores([9, 5, 7, 3, 1], 3)], "stable"),  # no test of three
        ([scores([5, 4, 3, 2, 1], 3, 0.2), scores([1, 2, 3, 4, 5], 3, 0.2)], "changes"),  # by tau
        ([scores([5, 4, 3, 2, 1], 3, 9), scores([1, 2, 3, 4, 5], 3, 9)], "unknown"),  # not settled
        ([scores([5, 4, 3, 2, 1], 3), scores([9, 7, 5, 3, 1], 2)], "unknown"),  # no interval
        ([scores([5, 4, 3, 2, 1], 1), scores([1, 2, 3, 4, 5], 1)], "unknown"),
        ([scores([2, 1], 3), scores([2, 1], 3)], "unknown"),  # two encodings have two orders
        ([scores([2, 1], 5), scores([1, 2], 5)], "changes"),  # significantly different
        ([scores([3, 2, 1], 5), scores([4, 4, 4], 5, 0)], "unknown"),  # all at the ceiling
        ([scores([5, 4, 3, 2, 1], 3, 0.2)] * 2 + [scores([1, 2, 3, 4, 5], 3, 0.2)], "changes"),
    ],
)  # fmt: skip
def test_the_mark(sizes: list[SeedScores], expected: str) -> None:
    assert mark(*sizes) == expected


def test_equal_encodings_do_not_change_their_order() -> None:
    rng = np.random.default_rng(1)
    sizes = [SeedScores(list("abcde"), rng.normal(size=(5, 3))) for _ in range(2)]
    (found,) = find_stability(sizes).agreements
    assert found.high < SAME_ORDER and not found.settled
    assert mark(*sizes) == "unknown"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("truth", "wrong"), [("same", "changes"), ("another", "stable"), ("equal", "changes")]
)
def test_marks_of_three_seeds_are_rarely_wrong(truth: str, wrong: str) -> None:
    rng = np.random.default_rng(0)
    count = 0
    for _ in range(50):
        first, last = np.zeros((2, 5)) if truth == "equal" else rng.normal(size=(2, 5))
        if truth == "same":
            last = first
        elif truth == "another" and kendall_tau(first, last) > 0.5:
            continue
        sizes = []
        for means in (first, first, last):
            values = means[:, None] + rng.normal(size=(5, 3)) / 3
            sizes.append(SeedScores(list("abcde"), values))
        count += mark(*sizes) == wrong
    assert count <= 1


def test_ties_and_missing_runs() -> None:
    one, other = scores([5, 4, 3, 2, 1], 5, 0.2), scores([9, 7, 5, 3, 1], 5, 0.2)
    other.values[:2] = 100  # two encodings at the ceiling in all seeds
    assert find_stability([one, other]).agreements[0].tau == pytest.approx(9 / 90**0.5)
    assert mark(one, other) == "stable"
    one.values[0, 3:] = math.nan  # three seeds are left, which all have
    assert mark(one, other) == "stable"
    one.values[0, 1:] = math.nan
    assert mark(one, other) == "unknown"
    one.values[:] = math.nan
    assert mark(one, other) == "unknown"


def test_a_pair_is_reversed_once_between_the_farthest_sizes() -> None:
    orders = ([5, 4, 3, 2, 1], [5, 4, 3, 2, 1], [4, 5, 3, 2, 1], [4, 5, 3, 2, 1])
    found: Stability = find_stability([scores(order, 8) for order in orders])
    (reversal,) = found.reversals
    assert (reversal.encodings, reversal.indices) == (("e0", "e1"), (0, 3))
    assert reversal.first.value > 0 > reversal.second.value
    compared = [(one.first, one.second) for one in found.agreements]
    assert compared == [(0, 1), (1, 2), (2, 3), (0, 3)]


def put_size(
    root: Path,
    width: int,
    means: Mapping[str, float],
    *,
    seeds: Sequence[int] = (1, 2, 3),
    heads: int = 0,
    lr: float = 1e-3,
    failed: Sequence[str] = (),
) -> None:
    """Write the runs of one size."""
    model = {"width": width, "heads": heads or width // 16, "layers": 2}
    train = {"steps": 5, "lr": lr, "batch_size": 2}
    fields: dict[str, Any] = {
        "settings": {"model": model, "train": train, "start": None},
        "settings_digest": f"d{width}-{heads}-{lr:g}",
        "headline": Headline("accuracy", "all"),
        "views": (Column("all", "accuracy"),),
        "encoding_parameters": 10,
        "parameters": width**2 + 10,
    }
    for index, (encoding, mean) in enumerate(means.items()):
        for seed in seeds:
            row = Measurement("all", "accuracy", mean + float(np.roll(NOISE, index)[seed]), 9)
            if encoding in failed:
                row = replace(row, status="not_learned")
            put(root, encoding, [row], seed, **fields)


def ladders(root: Path) -> list[Ladder]:
    return find_ladders(read_tables(root))


@pytest.mark.slow
def test_tables_that_differ_in_size_only_are_compared(tmp_path: Path) -> None:
    put_size(tmp_path, 128, MEANS)
    put_size(tmp_path, 32, MEANS)
    assert [ladder.parameters for ladder in ladders(tmp_path)] == [[32**2, 128**2]]
    put_size(tmp_path, 64, MEANS, lr=1e-2)  # another learning rate
    put_size(tmp_path, 96, MEANS, heads=3)  # other channels per head
    (ladder,) = ladders(tmp_path)
    assert ladder.parameters == [32**2, 128**2]
    assert (ladder.encodings, ladder.mark) == (tuple(MEANS), "stable")
    assert score_rows(ladder)[1][0] == "alibi"


def test_what_is_not_compared_is_named(tmp_path: Path) -> None:
    put_size(tmp_path, 32, MEANS, failed=["nope"])
    put_size(tmp_path, 128, {name: MEANS[name] for name in ("tape", "rope", "nope")}, seeds=(4, 5))
    (ladder,) = ladders(tmp_path)
    assert ladder.encodings == ("nope", "rope", "tape")
    assert describe_ladder(ladder) == [
        "Unknown: an interval takes 3 seeds at each size.",
        "Seeds at each size, which all of these encodings have: 3, 2.",
        "No seed learned the training task at 1,024 parameters: nope. Such a score is one of "
        "training, not of positions.",
        "Not compared: alibi, fire, without a score at 16,384 parameters.",
    ]
    rows = score_rows(ladder)[1:]
    assert "0 of 3 learned" in rows[0][1]
    assert [row[0] for row in rows] == ["nope", "rope", "tape", "alibi", "fire"]
    assert [row[2] == ABSENT for row in rows] == [False, False, False, True, True]
    assert all(row[1] != ABSENT for row in rows)
    put_size(tmp_path, 128, {"nope": 50.0}, seeds=(6,))
    (ladder,) = ladders(tmp_path)
    assert "More seeds at 16,384 parameters, which tau does not use: nope." in describe_ladder(
        ladder
    )


@pytest.mark.parametrize(
    ("common", "reason"),
    [
        ([], "the sizes have fewer than two encodings in common"),
        (["rope"], "the sizes have fewer than two encodings in common"),
        (["rope", "tape"], "an order takes 3 encodings in common"),
    ],
)
def test_few_encodings_in_common(tmp_path: Path, common: list[str], reason: str) -> None:
    put_size(tmp_path, 32, {"alibi": 3.0} | dict.fromkeys(common, 1.0))
    put_size(tmp_path, 128, {"nope": 3.0} | dict.fromkeys(common, 1.0))
    (ladder,) = ladders(tmp_path)
    assert ladder.mark == "unknown" and describe_ladder(ladder)[0] == f"Unknown: {reason}."
    write_report(tmp_path)
    figures = [*(tmp_path / "plots").glob("sizes-*.png")]
    assert len(figures) == bool(common)
    assert ("scores by size" in (tmp_path / "leaderboard.md").read_text()) == bool(common)


@pytest.mark.slow
def test_a_size_with_few_encodings_is_left_out(tmp_path: Path) -> None:
    """Such as an ablation at another depth, in a folder with all results."""
    put_size(tmp_path, 32, MEANS)
    put_size(tmp_path, 48, {"rope": 40.0, "own": 20.0})
    put_size(tmp_path, 64, {"rope": 40.0, "tape": 30.0, "own": 20.0})
    put_size(tmp_path, 128, MEANS)
    (ladder,) = ladders(tmp_path)
    assert ladder.parameters == [32**2, 128**2] and len(ladder.encodings) == len(MEANS)
    assert ladder.mark == "stable"
    for parameters in ("2,304", "4,096"):
        said = f"Left out: {parameters} parameters, with too few encodings in common."
        assert said in describe_ladder(ladder)


@pytest.mark.slow
def test_tables_of_three_sizes_have_different_headings(tmp_path: Path) -> None:
    for width in (32, 64, 128):
        put_size(tmp_path, width, MEANS)
    tables = read_tables(tmp_path)
    assert len({table.heading for table in tables}) == 3
    long = {f"model.{name}": 1 for name in ("heads", "kv_heads", "width", "mlp_width", "layers")}
    table = replace(tables[0], differences=long)
    assert table.distinction == f"{table.parameters:,} parameters"
    table = replace(tables[0], differences=long | {"train.lr": 1.0})
    assert table.distinction == f"train.lr=1.0, {table.parameters:,} parameters"
    table = replace(tables[0], differences=long | {"source": "a" * 90})
    assert table.distinction == f"settings={table.about.settings_digest}"


@pytest.mark.slow
def test_the_report_has_a_section_and_a_figure(tmp_path: Path, real_figures: None) -> None:
    put_size(tmp_path, 32, UPSIDE_DOWN)
    put_size(tmp_path, 64, MEANS, failed=["tape"])
    put_size(tmp_path, 128, MEANS)
    write_report(tmp_path)
    text = (tmp_path / "leaderboard.md").read_text(encoding="utf-8")
    section = text[text.index("## Sizes of the model") : text.index("\n## lm")]
    assert "| changes | 1,024 and 4,096 | -1.00 | -1.00 to -1.00 |" in " ".join(section.split())
    assert "Changes: an interval of tau is below 0.6" in section
    (figure,) = (tmp_path / "plots").glob("sizes-*.png")
    assert f"](plots/{figure.name})" in section
    with Image.open(figure) as image:
        assert image.width > 500
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert '<section id="sizes">' in page and "<td>-1.00 to -1.00</td>" in page
    chart = make_size_chart(ladders(tmp_path)[0])
    assert [one.name for one in chart.baselines] == [CEILING]
    xs = [[points[index].x for points in chart.series.values()] for index in range(3)]
    assert max(xs[0]) < min(xs[1]) and max(xs[1]) < min(xs[2])
    before = figure.stat().st_ino
    write_report(tmp_path)
    assert figure.stat().st_ino == before  # not drawn again
    put_size(tmp_path, 256, MEANS)
    write_report(tmp_path)
    assert figure.stat().st_ino != before


@pytest.mark.slow
def test_means_over_tasks_take_the_largest_model_of_each(tmp_path: Path) -> None:
    put_size(tmp_path, 128, MEANS)
    put_size(tmp_path, 32, MEANS)
    for encoding in MEANS:
        put_scores(tmp_path, "another", encoding, [11.0, 12.0])
    put_baselines(tmp_path, "another")
    for width in (32, 128):
        put_baselines(tmp_path, "lm", digest=f"d{width}-0-0.001", subset="all")
    (summary,) = find_summaries(read_tables(tmp_path))
    assert [table.parameters for table in summary.tables] == [0, 128**2]
    assert summary.left_out[0] == (
        "lm: the table with the largest model counts, not the one with settings d32-0-0.001."
    )


@pytest.mark.slow
def test_marks_by_the_title_of_a_task(tmp_path: Path) -> None:
    assert read_marks(tmp_path) == {}
    (tmp_path / "grid.toml").write_text("task = 'lm'")
    assert read_marks(tmp_path) == {}
    put_size(tmp_path, 32, MEANS)
    assert read_marks(tmp_path) == {}
    put_size(tmp_path, 64, MEANS)
    title = read_tables(tmp_path)[0].title
    assert read_marks(tmp_path) == {title: "stable"}
    put_size(tmp_path, 32, MEANS, lr=1e-2)
    put_size(tmp_path, 64, UPSIDE_DOWN, lr=1e-2)
    assert read_marks(tmp_path) == {title: "unknown"}  # two ladders that do not agree


@pytest.mark.parametrize("task", some_slow(["mqar", "addition", "perplexity"], ["mqar"]))
def test_the_grid_has_three_sizes_with_searches_of_their_own(task: str) -> None:
    _, grids = parse(COMMANDS, ["run", str(GRID)])
    comments = GRID.read_text(encoding="utf-8")
    digests = set()
    for grid in map(make_grid, grids):
        if task not in grid.tasks:
            continue
        options = grid.options
        resolved = RunFactory(options).task(task)
        assert resolved.tuning and resolved.model.head_dim == 16
        digests.add(resolved.digest())  # the search is stored under it
        encoding = RunFactory(options).encoding("rope")
        count = sum(one.numel() for one in resolved.make_empty(encoding).parameters())
        assert f"{count:,}" in comments
    assert len(digests) == 3
