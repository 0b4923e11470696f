"""Comparison of two encodings, and of all over several tasks: planted effects are found."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import made_runs
import numpy as np
import pytest
from made_runs import write_record
from matplotlib import image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy import stats

from pe_bench.cli import main
from pe_bench.reporting import ranks, sentences, task_summary, verdicts
from pe_bench.reporting.columns import list_columns, show_learned
from pe_bench.reporting.forest import draw_forest
from pe_bench.reporting.new_runs import summarize
from pe_bench.reporting.paired import compare_table, describe_basis, headline_scores, scores_of
from pe_bench.reporting.tables import Table, read_tables
from pe_bench.reporting.terminal import WIDTH, plain_table
from pe_bench.results.item_files import write_items
from pe_bench.results.items import Items, RowKey
from pe_bench.results.layout import baselines_path
from pe_bench.results.measurement import CSV_COLUMNS, Measurement, Status
from pe_bench.results.record import RunRecord
from pe_bench.results.row_files import write_rows
from pe_bench.results.store import read_record
from pe_bench.results.views import Headline
from pe_bench.stats.comparison import (
    Difference,
    SeedScores,
    compare,
    compare_all,
    compare_asked,
)
from pe_bench.stats.ranking import (
    Mean,
    TaskScores,
    average_over,
    differences_over_families,
    find_standings,
    rank_correlations,
    smallest_correlation,
)
from pe_bench.stats.significance import LEVEL, holm
from pe_bench.system.files import slug

ROOT = Path(__file__).parents[1]

ROW: dict[str, Any] = {"preset": "quick", "protocol": "strict", "subset": "ood", "n": 40}
NOISE = np.random.default_rng(0).normal(0, 1, (12, 5))


def put(
    root: Path,
    task: str,
    encoding: str,
    values: Sequence[float],
    *,
    metric: str = "accuracy",
    first_seed: int = 0,
    digest: str = "",
) -> None:
    """Write a run for each value, with consecutive seeds from `first`."""
    for seed, value in enumerate(values, first_seed):
        name = f"seed{seed}-{digest}"
        folder = root / "runs" / slug(task) / slug(encoding) / name
        about = {"task": task, "encoding": encoding, "seed": seed, "metric": metric, "run": name}
        write_rows(
            folder / "rows.csv", [{**ROW, **about, "value": value, "status": "ranked"}], CSV_COLUMNS
        )
        record = RunRecord(
            status="done",
            task=task,
            encoding=encoding,
            seed=seed,
            preset="quick",
            protocol="strict",
            settings_digest=digest or task,
            headline=Headline(metric, "ood"),
        )
        write_record(folder, record)
        each = value + np.linspace(-9, 9, 16)
        write_items(folder / "items.parquet", [Items("a", metric, each, groups=(RowKey("ood"),))])


def put_baselines(root: Path, *tasks: str, digest: str = "", subset: str = "ood") -> None:
    for task in tasks:
        row = {**ROW, "encoding": "guessing", "task": task, "metric": "accuracy", "seed": 0}
        row |= {"subset": subset, "value": 10.0, "status": "ranked", "run": "guessing"}
        write_rows(baselines_path(root, task, digest or task), [row], CSV_COLUMNS)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return three tasks with known truth: "good" is better in the first two, not in the third."""
    root = tmp_path_factory.mktemp("results")
    truths = {"near": (60, 40, 41), "far": (80, 50, 50), "none": (50, 50, 50)}
    noise = iter(NOISE)
    for task, means in truths.items():
        for encoding, mean in zip(("good", "plain", "third"), means, strict=True):
            put(root, task, encoding, mean + next(noise))
    put_baselines(root, *truths)
    put(root, "bits", "good", [0.5, 0.51, 0.5, 0.49, 0.5], metric="bits_per_byte")
    put(root, "bits", "plain", [0.9, 0.91, 0.9, 0.89, 0.92], metric="bits_per_byte")
    return root


@pytest.fixture(scope="module")
def tables(results: Path) -> list[Table]:
    return read_tables(results)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two tasks of two encodings, and encodings that share no seed or task with them."""
    root = tmp_path_factory.mktemp("small")
    for encoding, mean in (("good", 60), ("plain", 50)):
        put(root, "near", encoding, [mean, mean + 1, mean + 2])
    put(root, "near", "late", [1, 2], first_seed=7)
    put(root, "elsewhere", "other", [1, 2])
    put_baselines(root, "near")
    return root


def read(root: Path, *tasks: str) -> list[Table]:
    return verdicts.tables_to_compare(read_tables(root), tasks)


@pytest.mark.slow
def test_sentences_say_what_was_planted(tables: list[Table]) -> None:
    found = verdicts.compare_pair(
        verdicts.tables_to_compare(tables, ["near", "far", "none"]), "good", "plain"
    )
    near, far, none = (
        {v.table.about.task: v.difference for v in found.tasks}[n] for n in ("near", "far", "none")
    )
    assert near.significant and far.significant and not none.significant
    assert near.low < 20 < near.high and far.low < 30 < far.high and none.low < 0 < none.high
    lines = {line.partition(":")[0]: line for line in sentences.describe(found)}
    assert re.match(
        r"near: good is better than plain, as good has \d\d\.\d\d points more accuracy "
        r"\(\d\d\.\d\d against \d\d\.\d\d %; 95 % interval: .* more; 5 seeds; "
        r"p < 0.001, corrected for 3 comparisons\)\.$",
        lines["near"],
    )
    assert "good and plain do not differ significantly" in lines["none"]
    assert "less to" in lines["none"] and "seeds to show it." in lines["none"]
    assert (
        "good is better on 2 and does not differ significantly on 1 of 3 tasks" in lines["Together"]
    )
    assert "which is significant (p < 0.001, 5 seeds)." in lines["Together"]
    assert found.mean is not None and found.mean.significant
    expected = (20 / 90 + 30 / 90 + 0) / 3  # relative to the distance from guessing, 10 %, to 100 %
    assert found.mean.value == pytest.approx(expected, abs=0.02)
    back = verdicts.compare_pair(verdicts.tables_to_compare(tables, ["near"]), "plain", "good")
    (line,) = sentences.describe(back)
    assert line.startswith("near: good is better than plain, as plain has") and "less" in line


def test_where_lower_is_better_the_ceiling_is_0(tables: list[Table]) -> None:
    (bits,) = verdicts.compare_pair(
        verdicts.tables_to_compare(tables, ["bits"]), "good", "plain"
    ).tasks
    line = sentences.describe_verdict(bits, "bits")
    assert "good is better than plain, as good has 0.404 less bits per byte (0.500 " in line
    value, low, high = verdicts.scaled(bits)
    assert value == pytest.approx(0.404 / 0.904, abs=0.001) and low < value < high
    assert (
        "; for all tasks, without a lower baseline, 0 is the worst"
        in task_summary.describe_limits([bits.table])
    )
    assert (
        "; for bits, without a lower baseline, 0 is the worst encoding"
        in task_summary.describe_limits(tables)
    )
    assert "against 0.904, lower is better; 95 % interval: 0.3" in line


def test_a_title_counts_the_tasks(tables: list[Table]) -> None:
    titles = {
        ("near", "far", "none"): "good is better than plain on 2 of 3 tasks, no significant "
        "difference on 1",
        ("near", "far"): "good is better than plain on 2 of 2 tasks",
        ("near",): "good is better than plain on near",
        ("none",): "good and plain do not differ significantly on none",
    }
    for tasks, title in titles.items():
        chosen = verdicts.tables_to_compare(tables, tasks)
        found = verdicts.compare_pair(chosen, "good", "plain")
        assert sentences.title(found) == title
        back = verdicts.compare_pair(chosen, "plain", "good")
        turned = title.replace("good", "x").replace("plain", "good").replace("x", "plain")
        assert sentences.title(back) == turned.replace("better", "worse")


@pytest.mark.slow
def test_few_seeds_are_not_a_finding(results: Path, small: Path, tmp_path: Path) -> None:
    few = verdicts.compare_pair(read(small, "near"), "good", "plain")
    (line, *_) = sentences.describe(few)
    assert line.startswith("near: good and plain are not tested: good has 10.00 points more")
    assert line.endswith("no claim is possible with fewer than 5 seeds.")
    assert sentences.title(few) == "good and plain are not tested on near: too few seeds"
    put(tmp_path, "next", "good", [60, 61])
    put(tmp_path, "next", "plain", [50, 51])
    one_more = verdicts.compare_pair(read(tmp_path), "good", "plain")
    two = verdicts.Verdicts("good", "plain", [*few.tasks, *one_more.tasks], few.mean)
    assert "Together: good and plain are not tested on any of 2 tasks" in sentences.describe_all(
        two
    )
    both = verdicts.compare_pair(read(results, "near", "none"), "good", "plain")
    mixed = verdicts.Verdicts("good", "plain", [*both.tasks, *one_more.tasks], both.mean)
    assert (
        "good is better on 1, does not differ significantly on 1 and is not tested on 1 of 3 tasks"
    ) in sentences.describe_all(mixed)
    assert sentences.title(mixed) == (
        "good is better than plain on 1 of 3 tasks, no significant difference on 1, not tested on 1"
    )


@pytest.mark.slow
def test_few_seeds_ask_for_more(tmp_path: Path) -> None:
    put(tmp_path, "t", "a", [90, 91, 92])
    put(tmp_path, "t", "b", [10, 11, 12.5])
    line, scale = sentences.describe(verdicts.compare_pair(read(tmp_path), "a", "b"))
    assert scale.startswith("Scale of the figure: 0 is") and "0 is the worst encoding" in scale
    assert "no claim is possible with fewer than 5 seeds." in line
    put(tmp_path, "u", "a", [90])
    put(tmp_path, "u", "b", [10])
    line, _ = sentences.describe(verdicts.compare_pair(read(tmp_path, "u"), "a", "b"))
    assert "one seed is one model each" in line and "fewer than 5 seeds." in line


def simulate(rng: np.random.Generator, effect: float) -> list[TaskScores]:
    """Return three tasks of two encodings, the first better by an effect in standard deviations."""
    tasks = []
    for name in "abc":
        values = rng.normal(50, 2, (2, 5))
        values[0] += 2 * effect
        tasks.append(TaskScores(name, SeedScores("AB", values, seeds=range(5)), True, 0, 100, name))
    return tasks


@pytest.mark.slow
@pytest.mark.parametrize(("effect", "low", "high"), [(0, 0.0, 0.1), (5, 0.9, 1.0)])
def test_over_tasks_and_their_mean_mistakes_are_few(effect: float, low: float, high: float) -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(60):
        tasks = simulate(rng, effect)
        asked = [(task.scores, "A", "B") for task in tasks]
        differences = compare_asked([*asked, (average_over(tasks), "A", "B")])
        apart = [difference.significant for difference in differences]
        found.append(any(apart) if effect == 0 else all(apart))
    assert low <= np.mean(found) <= high


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder", ["quick", "scrolls", "extension", "pretrained", "rates", "sizes", "tape"]
)
def test_leaving_out_an_encoding_makes_no_claim_weaker(folder: str) -> None:
    """Equivalently, an additional encoding never makes another difference significant."""
    for table in read_tables(ROOT / "results" / folder):
        if table.about.measures_time:
            continue
        scores = scores_of(table, table.ranking.names)
        asked = {}
        for ask in (compare_all, compare_with_rope):
            asked[ask] = {(one.first, one.second): one for one in ask(scores)}
        for left_out in scores.encodings:
            names = [name for name in scores.encodings if name != left_out]
            kept = scores_of(table, names)
            for ask, among_all in asked.items():
                for one in ask(kept):
                    before = among_all[one.first, one.second]
                    assert one.p_value <= before.p_value, (table.heading, one.first, one.second)
                    assert one.significant or not before.significant


def compare_with_rope(scores: SeedScores) -> list[Difference]:
    """Return the difference of each other encoding to RoPE, if RoPE is there."""
    if "rope" not in scores.encodings:
        return []
    return compare(scores, [(name, "rope") for name in scores.encodings if name != "rope"])


@pytest.mark.slow
def test_the_numbers_of_a_pair_do_not_depend_on_other_encodings() -> None:
    table = next(t for t in read_tables(ROOT / "results/quick") if t.about.task == "mqar")
    both = scores_of(table, ["rope", "tape"])
    among_all = scores_of(table, ["alibi", "rope", "fire", "tape"])
    assert both.resampled is not None and among_all.resampled is not None
    assert np.array_equal(both.values, among_all.values[[1, 3]])
    assert np.array_equal(both.resampled, among_all.resampled[:, [1, 3]])


@pytest.mark.slow
def test_items_that_an_encoding_lacks_change_no_other_pair() -> None:
    table = next(t for t in read_tables(ROOT / "results/quick") if t.about.task == "perplexity")
    names = table.ranking.names
    lacking = names[-1]
    items = []
    for record, own in zip(table.records, table.items, strict=True):
        items.append([] if (record.encoding, record.seed) == (lacking, 1) else own)
    with_all = {(one.first, one.second): one for one in compare_all(scores_of(table, names))}
    vars(table)["items"] = items  # a cached property
    found = compare_table(table)
    assert found.without_items == (lacking,) and found.fewest_degrees > 0
    basis = "".join(describe_basis(found))
    assert f"(for {lacking}: seeds only" in basis and "so few documents" not in basis
    few = "".join(describe_basis(replace(found, fewest_degrees=8)))
    assert "come from so few documents (8 degrees of freedom) that p may be too small." in few
    for one in found.pairs:
        before = with_all[one.first, one.second]
        same = (one.low, one.high, one.p_alone) == (before.low, before.high, before.p_alone)
        assert same == (lacking not in (one.first, one.second))


def test_correction_is_for_all_tasks_together() -> None:
    asked = [(task.scores, "A", "B") for task in simulate(np.random.default_rng(0), 2)]
    alone = [compare_asked([one])[0].p_value for one in asked]
    together = [difference.p_value for difference in compare_asked(asked)]
    assert together == holm(alone) and together != alone


def test_normalised_scores() -> None:
    scores = SeedScores("AB", np.array([[60.0], [10.0]]), seeds=[0])
    assert TaskScores("t", scores, True, 10, 110, "t").normalise().values.tolist() == [[0.5], [0]]
    assert TaskScores("t", scores, False, 110, 10, "t").normalise().values.tolist() == [[0.5], [1]]


def test_below_the_floor_a_score_counts_as_0_and_has_its_rank() -> None:
    bits = SeedScores("ABC", np.array([[2.0, 2.0], [50.0, 60.0], [90.0, 80.0]]), seeds=[0, 1])
    tasks = [TaskScores(name, bits, False, 3, 2, name) for name in "abc"]
    found = find_standings(tasks)
    assert [one.encoding for one in found] == ["A", "B", "C"]
    assert [one.rank.value for one in found] == [1, 2, 3]
    assert [one.score for one in found[1:]] == [Mean(0, 0, 0)] * 2
    assert average_over(tasks).values.tolist() == [[1, 1], [0, 0], [0, 0]]


def test_a_task_without_a_fixed_scale_is_in_no_mean(tmp_path: Path) -> None:
    """Otherwise an encoding with a bad score could make another difference significant."""
    for task in ("one", "two", "three"):
        put(tmp_path, task, "a", [60.0, 61.5, 60.2, 61.0, 60.6])
        put(tmp_path, task, "b", [60.2, 61.1, 60.1, 61.3, 60.3])
    put_baselines(tmp_path, "one", "two")
    put(tmp_path, "bits", "a", [1.20, 1.30, 1.25, 1.21, 1.24], metric="bits_per_byte")
    put(tmp_path, "bits", "b", [1.10, 1.25, 1.30, 1.20, 1.31], metric="bits_per_byte")
    before = verdicts.compare_pair(read_tables(tmp_path), "a", "b")
    assert before.mean is not None
    no_floor = "is in no mean over tasks: it has no baseline."
    assert set(before.left_out) == {f"bits {no_floor}", f"three {no_floor}"}
    assert "in the mean score over 2 of these tasks (0: " in sentences.describe_all(before)
    for task in ("one", "two", "three"):
        put(tmp_path, task, "c", [1.0, 2.0, 3.0, 4.0, 5.0])
    put(tmp_path, "bits", "c", [50.0, 51.0, 49.0, 50.0, 52.0], metric="bits_per_byte")
    tables = read_tables(tmp_path)
    assert verdicts.compare_pair(tables, "a", "b").mean == before.mean
    (summary,) = task_summary.find_summaries(tables)
    assert [table.about.task for table in summary.tables] == ["one", "two"]
    assert {f"bits {no_floor}", f"three {no_floor}"} <= {*summary.left_out}


def make_tasks(means: Sequence[Sequence[float]], seeds: int = 3) -> list[TaskScores]:
    rng = np.random.default_rng(0)
    tasks = []
    for number, row in enumerate(means):
        values = np.array(row)[:, None] + rng.normal(0, 0.01, (len(row), seeds))
        scores = SeedScores("ABCDEFG"[: len(row)], values, seeds=range(seeds))
        tasks.append(TaskScores(str(number), scores, True, 0.0, 1.0, str(number)))
    return tasks


def test_standings_and_correlations() -> None:
    tasks = make_tasks([[0.9, 0.5, 0.1], [0.8, 0.4, 0.2], [0.1, 0.4, 0.9]])
    best, *_ = standings = find_standings(tasks)
    assert [one.rank.value for one in standings] == pytest.approx([5 / 3, 2, 7 / 3])
    assert best.encoding == "A" and best.score.value == pytest.approx(0.6, abs=0.02)
    assert best.rank.low == 1 and best.rank.high == 3 and best.score.low < 0.2 < best.score.high
    correlations = rank_correlations(tasks)
    assert correlations == pytest.approx(np.array([[1, 1, -1], [1, 1, -1], [-1, -1, 1]]))


@pytest.mark.parametrize("encodings", [3, 4, 5, 6, 7])
def test_the_smallest_significant_correlation_is_that_of_all_orders(encodings: int) -> None:
    order = np.arange(encodings)
    orders = np.array(list(permutations(order)))
    squares = ((orders - order) ** 2).sum(1)
    values = np.abs(1 - 6 * squares / (encodings**3 - encodings))
    significant = [one for one in np.unique(values) if np.mean(values >= one - 1e-9) <= LEVEL]
    assert smallest_correlation(encodings) == pytest.approx(min(significant, default=np.inf))


def test_smallest_correlations_of_more_encodings_are_those_of_printed_tables() -> None:
    """Zar 2010, table B.20, two-sided 5 %; the values of t would be up to 0.016 smaller."""
    tabulated = {10: 0.648, 11: 0.618, 12: 0.587, 13: 0.560, 14: 0.538, 15: 0.521, 16: 0.503}
    for encodings, value in tabulated.items():
        assert smallest_correlation(encodings) == pytest.approx(value, abs=5e-4)
    assert smallest_correlation(20) == pytest.approx(0.447, abs=4e-3)


def test_intervals_of_standings_are_students_over_families() -> None:
    means = np.array([[0.6, 0.4], [0.5, 0.6], [0.55, 0.5], [0.2, 0.7]])
    tasks = make_tasks(means.tolist(), seeds=1)
    values = np.array([task.scores.values[:, 0] for task in tasks])
    for one in find_standings(tasks):
        interval = stats.ttest_1samp(values[:, "AB".index(one.encoding)], 0).confidence_interval()
        assert (one.score.low, one.score.high) == pytest.approx((interval.low, interval.high))
    paired = stats.ttest_rel(values[:, 1], values[:, 0]).confidence_interval()
    found = differences_over_families(tasks, "A")["B"]
    assert (found.low, found.high) == pytest.approx((paired.low, paired.high))


def test_a_family_of_many_tasks_counts_once() -> None:
    tasks = make_tasks([[0.9, 0.1], [0.7, 0.3], [0.2, 0.5], [0.3, 0.4]], seeds=2)
    tasks[1] = replace(tasks[1], family=tasks[0].family)
    best, _ = find_standings(tasks)
    assert best.encoding == "A"
    assert best.score.value == pytest.approx((0.8 + 0.2 + 0.3) / 3, abs=0.02)
    assert best.rank.value == pytest.approx((1 + 2 + 2) / 3)
    over = average_over(tasks)
    assert over.values.mean(1) == pytest.approx(
        [one.score.value for one in sorted(find_standings(tasks), key=lambda one: one.encoding)]
    )


@pytest.mark.parametrize(
    ("ranked", "expected"),
    [
        (["abcdefgh", "abc", "abc", "abc", "abcd"], "abc"),  # 15 cells; the first alone has 8
        (["abcdefgh", "abcdefgh", "abc", "abc", "abcxyz"], "abcdefgh"),  # 16, and abc 15
        (["abcdefgh", "abz", "abz", "abz"], "abz"),  # 9; the most in common with the first: 8
        (["abcd", "abcd", "abef", "abef"], "ab"),  # 8 of more tasks than 8
        (["abcdefghi", "a", "b"], "abcdefghi"),
        (["a", "b"], "a"),
    ],
)
def test_the_largest_grid(ranked: list[str], expected: str) -> None:
    assert task_summary._largest_in_common([frozenset(one) for one in ranked]) == set(expected)


@pytest.mark.slow
def test_the_largest_grid_of_very_many_tasks() -> None:
    names = frozenset(f"{n}" for n in range(40))
    ranked = [names - {name} for name in sorted(names)]
    common = task_summary._largest_in_common(ranked)
    assert len(common) * sum(common <= one for one in ranked) >= 350  # the best possible is 400


@pytest.mark.slow
def test_the_summary_over_tasks(tables: list[Table]) -> None:
    (summary,) = task_summary.find_summaries(tables)
    section = task_summary.describe_summary(summary)
    assert section.startswith("## All tasks · quick · strict\n")
    assert "bits is in no mean over tasks: it has no baseline." in section
    assert "Means over 3 families of tasks (3 tasks)" in section
    row = r"^\| good +\| +(\S+) \|[^|]+\| +(\S+) \|[^|]+\| +a \| +1 \| +(1|2|3) \|"
    first = re.search(row, section, re.MULTILINE)
    assert first is not None and 0 < float(first[1]) < 1 and 1 <= float(first[2]) < 2
    assert "+1.00" in section and "with so few encodings, none is significant" in section
    shown = ranks.describe_ranks(tables)
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert "1 (a)" in shown and "2 to 3 (b)" in shown


def test_wide_tables_are_divided() -> None:
    numbers = [str(n) for n in range(1, 17)]
    rows = [[f"{n} a long name", *["+1.00"] * 16] for n in numbers]
    shown = ranks._divided(numbers, rows)
    assert max(len(line) for table in shown for line in table.splitlines()) <= WIDTH
    assert [table.split()[0] for table in shown] == ["1", "12"]
    assert " ".join(table.splitlines()[0] for table in shown).split() == numbers
    assert all(table.count("a long name") == 16 for table in shown)


LONG = ("tape:base=500000,position_size=16", "rope:scaling=yarn,factor=4")


@pytest.mark.slow
@pytest.mark.parametrize("names", [("good", "plain"), LONG], ids=["short", "long"])
def test_the_figure_says_what_is_to_be_seen(tables: list[Table], names: tuple[str, str]) -> None:
    chosen = verdicts.tables_to_compare(tables, ["near", "far", "none"])
    found = replace(verdicts.compare_pair(chosen, "good", "plain"), first=names[0], second=names[1])
    figure = draw_forest(found)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    better = f"{found.first} is better than {found.second} on 2 of 3 tasks"
    expected = f"{better}, no significant difference on 1"
    assert figure.get_suptitle().replace("\n", " ").startswith(expected)
    (axis,) = figure.axes
    renderer = canvas.get_renderer()
    texts = [*axis.texts, *axis.get_yticklabels(), axis.xaxis.label, *figure.texts]
    boxes = [text.get_window_extent(renderer) for text in texts if text.get_text()]
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:index]), texts[index].get_text()
    low, high = axis.get_xlim()
    ends = [x for line in axis.lines[1:-1] for x in np.ravel(line.get_xdata())]
    assert low < min(ends) and max(ends) < high


def test_a_partial_headline_is_not_compared(tmp_path: Path) -> None:
    """Such as that of a run with `--subsets`."""
    for encoding, value in {"rope": 50.0, "tape": 60.0}.items():
        for seed in range(3):
            status: Status = "partial" if seed == 2 else "not_learned"
            rows = [Measurement("all", "f1", value + 30 * (seed == 2), 9, status=status)]
            made_runs.put(tmp_path, encoding, rows, seed, headline=Headline("f1", "all"), gate=95.0)
    table = made_runs.read_table(tmp_path)
    found = headline_scores(table, ["rope", "tape"])
    assert found.values.tolist() == [[50, 50], [60, 60]] and list(found.seeds) == [0, 1]
    column = list_columns(table)[0]
    assert show_learned(table, column, "rope").startswith("0 of 2 ")
    assert table.ranking.means == {"rope": 50, "tape": 60}


def test_an_encoding_is_not_judged_by_its_best_seeds(tmp_path: Path) -> None:
    """Logits that are not finite in one seed leave all seeds of the encoding without a rank."""
    about: dict[str, Any] = {"headline": Headline("f1", "all"), "subsets": ("a", "b")}
    for encoding in ("rope", "tape"):
        for seed in range(6):
            status: Status = "partial" if (encoding, seed) == ("tape", 3) else "ranked"
            rows = [Measurement("all", "f1", 50.0 + seed, 9, status=status)]
            made_runs.put(tmp_path, encoding, rows, seed, **about)
    table = made_runs.read_table(tmp_path)
    assert table.ranking.names == ["rope"] and table.ranking.order == ["rope", "tape"]
    assert np.isnan(headline_scores(table, ["rope", "tape"]).values[1]).all()
    (missing,) = verdicts.find_shared([table], "rope", "tape")[2]
    assert "no score of tape, because a part of its measurements is missing or not a" in missing


@pytest.mark.slow
def test_the_command(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "figure.png"
    command = ["compare", "good", "plain", "--results", str(small)]
    assert main([*command, "--figure", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("near: good and plain are not tested: good has") and out.endswith(
        f"\n{path}\n"
    )
    assert max(map(len, out.splitlines()[:-1])) <= WIDTH
    assert image.imread(path).shape[1] > 600
    assert main([*command, "--task", "near"]) == 0
    of_labels = capsys.readouterr().out
    of_files = ["compare", "own/good", "./plain", "--task", "near", "--results", str(small)]
    assert main(of_files) == 0
    assert capsys.readouterr().out == of_labels
    assert (small / "plots" / "compare-good-plain.png").exists()
    assert main(["compare", "--all", "--results", str(small)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^good +– ", out, re.MULTILINE) and "(a)" not in out  # too few seeds


@pytest.mark.slow
@pytest.mark.parametrize(
    "values", [[np.nan] * 3, [np.inf] * 3, [np.nan, np.nan, 99.0], [99.0, 99.0, np.nan]]
)
def test_headlines_that_are_not_finite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: list[float]
) -> None:
    put(tmp_path, "near", "good", [60, 62, 61])
    put(tmp_path, "near", "plain", [50, 51, 52])
    put(tmp_path, "near", "broken", values)
    where = ["--results", str(tmp_path)]
    assert main(["compare", "good", "broken", *where]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no score of broken, because a part of its measurements is missing" in line
    put(tmp_path, "near", "lost", values)
    assert main(["compare", "lost", "broken", *where]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be compared: near" in line and line.count("not a finite number.") == 2
    assert main(["compare", "--all", *where]) == 0
    assert re.search(r"\nbroken +– ", capsys.readouterr().out)  # no rank
    assert main(["report", *where]) == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["good"], "takes two encodings, not 1: name two, or write --all"),
        (["good", "plain", "third"], "takes two encodings, not 3"),
        (["good", "plain", "--figure", "a.jpeg"], "a figure's name ends in .png, .svg or .pdf"),
        (["good", "good"], "good is given twice: name two encodings"),
        (["good", "plane"], "no results of 'plane' on"),
        (["good", "plane"], "(did you mean 'plain'?)"),
        (["good", "other"], "never run on the same task"),
        (["good", "late"], "no seed in common (good: 0, 1, 2; late: 7, 8)"),
        (["good", "plain", "--task", "nar"], "of a task 'nar' (did you mean 'near'?)"),
        (["--all", "good"], "leave out good"),
        (["good", "plain", "--results", "absent"], "there is no folder absent"),
    ],
)
def test_bad_input(
    small: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(small)
    where = [] if "--results" in args else ["--results", str(small)]
    assert main(["compare", *args, *where]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.slow
def test_two_encodings_at_the_floor_have_no_mean_difference(tmp_path: Path) -> None:
    for task in ("near", "far"):
        for name in ("good", "plain"):
            put(tmp_path, task, name, [9, 10, 9, 10, 9])  # guessing: 10 %
    put_baselines(tmp_path, "near", "far")
    found = verdicts.compare_pair(read(tmp_path), "good", "plain")
    said = sentences.describe_all(found)
    assert "neither is above the best baseline of any task" in said and "on average" not in said


@pytest.mark.slow
def test_the_terminal_names_points_without_finite_logits(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = "near: left out 512 tokens: the model's logits are NaN or infinite after 300 tokens"

    def noted(folder: Path) -> RunRecord:
        return replace(read_record(folder), notes=(note,))

    monkeypatch.setattr("pe_bench.reporting.new_runs.read_record", noted)
    runs = [path.parent for path in results.glob("runs/near/*/*/run.json")]
    shown = " ".join(summarize(runs).split())
    assert f"Not complete: good, plain, third: {note}" in shown


@pytest.mark.slow
def test_tables_of_the_terminal(results: Path) -> None:
    long = "a:" + "x" * 90
    table = plain_table(
        ["encoding", "a heading of several words"], [["b", "9.00 ± 1.00"], [long, "10.00 ± 12.00"]]
    )
    lines = table.splitlines()
    assert lines[-2:] == [long, f"{'':8}  {'10.00 ± 12.00':>14}"] or long in lines
    signs = {line.index("±") for line in lines if "±" in line}
    assert len(signs) == 1 and max(len(line) for line in lines if line != long) <= WIDTH
    runs = [path.parent for path in results.glob("runs/near/*/*/run.json")]
    brief = summarize(runs)
    assert max(map(len, brief.splitlines())) <= WIDTH
    assert "±: standard deviation over seeds." in brief and "All columns: --wide." in brief
    assert "parameters" not in brief
    assert re.search(r"^encoding +rank .* +parameters$", summarize(runs, wide=True), re.MULTILINE)
    assert "guessing" in brief


def test_an_answer_without_its_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A figure that cannot be saved is an error only if --figure asks for it."""
    for encoding in "ab":
        put(tmp_path, "t", encoding, [11, 12, 14, 13, 11])
    (tmp_path / "plots").write_text("in the way")
    assert main(["compare", "a", "b", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("t: a and b") and "write --figure FILE" in shown.err
    figure = ["--figure", str(tmp_path / "plots" / "figure.png")]
    assert main(["compare", "a", "b", "--results", str(tmp_path), *figure]) == 2
    assert "write --figure" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_report_of_several_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "one", "t", "a", [11, 12])
    put(tmp_path / "two", "t", "b", [13, 14])
    put(tmp_path / "two", "u", "a", [11, 12])
    put(tmp_path / "two", "u", "b", [13, 14])
    put_baselines(tmp_path / "one", "t")
    put_baselines(tmp_path / "two", "t", "u")
    assert main(["report", str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    text = (tmp_path / "one" / "leaderboard.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| ([ab]) ", text, re.MULTILINE)[:2] == ["b", "a"]
    assert "Tasks of 2 families are too few for means over tasks" in text and "Spearman" not in text
    assert str(tmp_path / "one" / "leaderboard.csv") in capsys.readouterr().out
    assert not (tmp_path / "two" / "leaderboard.md").exists()
