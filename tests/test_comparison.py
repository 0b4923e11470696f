"""Paired differences: known values, simulated coverage and error rates, ranks, groups."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pe_bench.reporting.paired import FEWEST_ITEM_DEGREES
from pe_bench.results.intervals import wilson
from pe_bench.results.items import Floats, Items
from pe_bench.stats.comparison import (
    Difference,
    SeedScores,
    compare,
    compare_all,
    describe_items,
    letters,
    rank_intervals,
    resample_items,
)
from pe_bench.stats.ranking import TaskScores, rank_correlations
from pe_bench.stats.significance import (
    LEVEL,
    POWER,
    ItemError,
    effect_to_show,
    holm,
    seeds_to_show,
    sign_flip_p,
    smallest_flip_p,
    student_quantile,
    student_tail,
)

RNG = np.random.default_rng


def scores(values: list[list[float]]) -> SeedScores:
    return SeedScores([chr(ord("A") + i) for i in range(len(values))], np.array(values))


def simulate(kind: str, rng: np.random.Generator, seeds: int, resamples: int = 200) -> SeedScores:
    """Return five equal encodings, with items of different difficulty."""
    encodings, cells, items = 5, 2, 40
    effects: dict[str, Callable[[tuple[int, int]], Any]] = {
        "normal": lambda shape: rng.normal(0, 0.5, shape),
        "unequal": lambda shape: rng.normal(0, 1, shape) * np.linspace(0.05, 1.5, 5)[:, None],
        "learned or not": lambda shape: rng.choice([-6.0, 6.0], shape),
        "skewed": lambda shape: rng.exponential(1.5, shape),
        "items alone": lambda shape: np.zeros(shape),
    }
    effect = effects[kind]((encodings, seeds))[..., None, None]
    difficulty = rng.normal(0, 1.5, (cells, items))
    logits = difficulty + effect + rng.normal(0, 0.5, (encodings, seeds, cells, items))
    values = 100.0 * (rng.random(logits.shape) < 1 / (1 + np.exp(-logits)))
    runs = []
    for run in values.reshape(-1, cells, items):
        runs.append([Items("a", "accuracy", cell, length=i) for i, cell in enumerate(run)])
    found = resample_items(runs, resamples)
    assert found is not None
    again = found[0].reshape(-1, encodings, seeds)
    return SeedScores("ABCDE", values.mean((2, 3)), again, found[1])


def simulate_documents(rng: np.random.Generator, documents: int) -> SeedScores:
    """Return two equal encodings with eight seeds, each better on some of the documents."""
    on_documents = rng.normal(size=(2, 1, documents))
    values = on_documents + rng.normal(size=(2, 8, 1)) + rng.normal(size=(2, 8, documents))
    found = resample_items([[Items("a", "f1", run)] for run in values.reshape(16, -1)], 200)
    if found is None:
        return SeedScores("AB", values.mean(2))
    return SeedScores("AB", values.mean(2), found[0].reshape(-1, 2, 8), found[1])


def rate_of_documents(documents: int, times: int = 400) -> float:
    rng = RNG(documents)
    found = []
    for _ in range(times):
        (one,) = compare_all(simulate_documents(rng, documents))
        found.append(one.p_alone <= LEVEL)
    return float(np.mean(found))


@pytest.mark.slow
def test_few_documents_give_too_small_p_values() -> None:
    """From ten documents on, the error rate of p is close to 5 %; with fewer, a note warns."""
    assert FEWEST_ITEM_DEGREES == 10 - 1
    for documents in (10, 40):
        assert rate_of_documents(documents) <= LEVEL + 2.5 * math.sqrt(LEVEL * (1 - LEVEL) / 400)
    assert rate_of_documents(2) > 0.08


def rates(kind: str, seeds: int, times: int) -> tuple[float, float]:
    """Return the frequencies of intervals that contain zero, and of any significant pair."""
    rng = RNG(1)
    covered = []
    mistaken = []
    for _ in range(times):
        differences = compare_all(simulate(kind, rng, seeds))
        covered += [each.low <= 0 <= each.high for each in differences]
        mistaken.append(any(each.significant for each in differences))
    return float(np.mean(covered)), float(np.mean(mistaken))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "unequal", "learned or not", "skewed", "items alone"])
@pytest.mark.parametrize("seeds", [5, 8])
def test_coverage_and_family_wise_error(kind: str, seeds: int) -> None:
    covered, mistaken = rates(kind, seeds, 200)
    assert 0.93 <= covered <= (1.0 if kind == "items alone" else 0.985)
    assert mistaken <= LEVEL + 2 * math.sqrt(LEVEL * (1 - LEVEL) / 200)


def test_a_real_difference_is_found() -> None:
    base = scores([[50, 51, 49, 50, 52], [50.5, 51, 49, 50, 52], [30, 31, 29, 30, 31]])
    near, far = compare(base, [("B", "A"), ("C", "A")])
    assert not near.significant and near.value == pytest.approx(0.1)
    assert far.significant and far.value == pytest.approx(-20.2) and far.high < 0
    expected = stats.ttest_rel(base.values[2], base.values[0]).pvalue
    assert far.p_alone == pytest.approx(expected)
    assert far.p_value == pytest.approx(2 * expected)  # two comparisons
    assert far.p_value <= 0.05 < near.p_value


@pytest.mark.parametrize("seeds", [5, 8])
def test_another_encoding_makes_no_p_value_smaller(seeds: int) -> None:
    values = RNG(seeds).normal(0, 1, (7, seeds)) + np.arange(7)[:, None]
    base = SeedScores("ABCDEFG", values)
    for ask in (compare_all, lambda some: compare(some, [(x, "A") for x in some.encodings[1:]])):
        among_all = {(one.first, one.second): one for one in ask(base)}
        for left_out in range(1, 7):
            kept = [index for index in range(7) if index != left_out]
            for one in ask(SeedScores([base.encodings[k] for k in kept], values[kept])):
                before = among_all[one.first, one.second]
                assert one.p_value <= before.p_value and one.p_alone == before.p_alone
                assert one.significant or not before.significant


def test_pairs_of_some_are_pairs_of_all() -> None:
    """A pair that is significant among all pairs is also significant among fewer comparisons."""
    values = RNG(3).normal(0, 1, (6, 8)) + np.arange(6)[:, None]
    among_all = {(x.first, x.second): x for x in compare_all(SeedScores("ABCDEF", values))}
    for one in compare(SeedScores("ABCDEF", values), [("A", other) for other in "BCDEF"]):
        assert one.p_value <= among_all[one.first, one.second].p_value


def test_too_few_seeds_make_no_claim() -> None:
    (found,) = compare(scores([[90, 91.5, 92, 93], [1, 2, 3, 4]]), [("A", "B")])
    assert found.low > 80 and not found.significant and found.p_value == 1
    assert math.isnan(found.p_alone) and math.isnan(found.p_flips)


def test_from_six_seeds_on_sign_flips_have_to_agree() -> None:
    outlier = scores([[10, 10.1, 9.9, 10, 10.2, -0.1], [0] * 6])
    (found,) = compare(outlier, [("A", "B")])
    assert found.p_value <= LEVEL < found.p_flips == 4 / 64 and not found.significant
    (found,) = compare(SeedScores("AB", np.abs(outlier.values)), [("A", "B")])
    assert found.p_flips == 2 / 64 and found.significant
    (found,) = compare(SeedScores("AB", outlier.values[:, :5]), [("A", "B")])
    assert math.isnan(found.p_flips) and found.significant  # five seeds: no sign flips


def test_equal_differences_have_the_p_value_of_sign_flips() -> None:
    for seeds, claimed in ((5, False), (8, True)):
        (found,) = compare(scores([[3.0] * seeds, [1.0] * seeds]), [("A", "B")])
        assert found.p_alone == smallest_flip_p(seeds) and found.significant == claimed
    (same,) = compare(scores([[3.0] * 8, [3.0] * 8]), [("A", "B")])
    assert same.p_alone == 1 and not same.significant


def test_one_seed_has_an_interval_over_items_and_no_claim() -> None:
    rng = RNG(0)
    values = 100.0 * (rng.random((2, 100)) < np.array([[0.9], [0.3]]))
    found = resample_items([[Items("a", "accuracy", run)] for run in values])
    assert found is not None
    drawn = found[0].reshape(-1, 2, 1)
    (one,) = compare(SeedScores("AB", values.mean(1)[:, None], drawn, found[1]), [("A", "B")])
    error = (values[0] - values[1]).std() / 10
    assert one.high - one.low == pytest.approx(2 * 1.98 * error, rel=0.05)
    assert not one.significant and one.p_value == 1
    (nothing,) = compare(scores([[3], [4]]), [("A", "B")])
    assert math.isnan(nothing.low) and not nothing.significant


def test_pairs_use_the_seeds_that_both_have() -> None:
    (found,) = compare(scores([[1, 2, 3, math.nan], [0, 1, math.nan, 9]]), [("A", "B")])
    assert (found.value, found.seeds) == (1, 2)
    (none,) = compare(scores([[1, math.nan], [math.nan, 1]]), [("A", "B")])
    assert none.seeds == 0 and not none.significant


def test_pairing_takes_out_what_seeds_share() -> None:
    shared = RNG(0).normal(0, 20, 6)
    ours = scores([list(50 + shared), list(45 + shared + RNG(1).normal(0, 0.1, 6))])
    (found,) = compare(ours, [("A", "B")])
    assert 4.5 < found.low < found.high < 5.5


def test_items_of_a_pair_are_resampled_together() -> None:
    hard = 100.0 * (RNG(0).random(200) < 0.5)
    runs = [[Items("a", "accuracy", hard)], [Items("a", "accuracy", hard)]]
    found = resample_items(runs)
    assert found is not None and found[0].std() > 1
    assert np.array_equal(found[0][:, 0], found[0][:, 1])
    described = describe_items(runs[0])
    assert described == describe_items([Items("a", "accuracy", 100 - hard)])
    assert described != describe_items([Items("b", "accuracy", hard)])  # another cell
    assert described != describe_items([Items("a", "accuracy", hard[:9])])
    assert resample_items([]) is None and resample_items([[]]) is None


def test_items_count_once() -> None:
    """The variance over seeds already includes the variance of items within seeds."""
    values = np.array([[3.0, 5.0], [1.0, 1.0]])
    independent = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])  # (B, S)
    shared = np.array([[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0], [-1.0, -1.0]])
    for noise, from_items in ((independent, 0.0), (shared, 1.0)):
        resampled = values + np.stack([noise, 0 * noise], axis=1)  # (B, E, S)
        (found,) = compare(SeedScores("AB", values, resampled, item_degrees=10**9), [("A", "B")])
        variance = 1.0 + from_items  # two seeds of 2 and 4: their mean has a variance of 1
        half = stats.t.ppf(0.975, variance**2) * math.sqrt(variance)
        assert (found.high - found.low) / 2 == pytest.approx(half, rel=1e-6)


def test_documents_are_resampled_whole() -> None:
    values = np.repeat(100.0 * (RNG(0).random(20) < 0.5), 10)
    alone = resample_items([[Items("a", "em", values)]])
    together = resample_items([[Items("a", "em", values, clusters=np.repeat(np.arange(20), 10))]])
    assert alone is not None and together is not None
    assert together[0].std() > 2.5 * alone[0].std() and together[1] == 19


def test_holm_and_student() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1, 1] and holm([]) == []
    for degrees in (1, 4, 30.5, 1e9):
        assert student_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees))
        assert student_tail(-3, degrees) == pytest.approx(2 * stats.t.sf(3, degrees))
    assert student_tail(math.inf, 4) == 0 and student_tail(0, 4) == 1


@pytest.mark.parametrize("seeds", [2, 5, 8])
def test_sign_flips_are_those_of_scipy(seeds: int) -> None:
    pair = RNG(seeds).normal([[0.5], [0.0]], 1, (2, seeds))

    def gap(a: Floats, b: Floats) -> float:
        return float(a.mean() - b.mean())

    expected = stats.permutation_test(pair, gap, permutation_type="samples", n_resamples=10**4)
    assert sign_flip_p(pair[0] - pair[1]) == pytest.approx(expected.pvalue)


@pytest.mark.slow
def test_sign_flips_of_many_seeds_are_random_ones() -> None:
    assert sign_flip_p(np.ones(30)) == 1 / 20_000  # the observed one is always among them
    assert sign_flip_p(np.array([])) == 1 and sign_flip_p(np.zeros(4)) == 1
    many = RNG(0).normal(0.4, 1, 20)
    expected = stats.permutation_test(
        (many,), np.mean, permutation_type="samples", n_resamples=10**5, rng=RNG(1)
    )
    assert sign_flip_p(many) == pytest.approx(expected.pvalue, abs=0.01)


def test_rank_correlations_and_intervals_of_proportions_are_those_of_scipy() -> None:
    values = RNG(1).integers(0, 5, (2, 6, 1)).astype(float)  # with ties
    names = list("ABCDEF")
    tasks = [TaskScores("task", SeedScores(names, one), True, 0.0, 5.0, "task") for one in values]
    expected = stats.spearmanr(values[0, :, 0], values[1, :, 0]).statistic
    assert rank_correlations(tasks)[0, 1] == pytest.approx(expected)
    interval = stats.binomtest(7, 9).proportion_ci(method="wilson")
    assert wilson(7 / 9, 9) == pytest.approx((interval.low, interval.high), rel=1e-5)


@pytest.mark.parametrize("comparisons", [1, 10])
@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_seeds_to_show_a_difference_give_the_power_of_scipy(ratio: float, comparisons: int) -> None:
    """The result is the smallest number of seeds for a power of 80 %, one more for sign flips."""
    seeds, power = 1, 0.0
    while power < POWER:
        seeds += 1
        critical = stats.t.ppf(1 - LEVEL / (2 * comparisons), seeds - 1)
        power = stats.nct.sf(critical, seeds - 1, ratio * math.sqrt(seeds))
    found = seeds_to_show(-ratio, 1.0, comparisons)
    assert found == seeds + (seeds == 10)  # 10 seeds: a power of 78 % with sign flips
    assert effect_to_show(found, 1.0, comparisons) <= ratio
    assert effect_to_show(found - 1, 1.0, comparisons) > ratio


def test_the_number_of_seeds_to_show_a_small_difference_is_approximate() -> None:
    assert seeds_to_show(0.05, 1.0, 1) == pytest.approx(3142, abs=3)


@pytest.mark.parametrize("comparisons", [1, 9])
@pytest.mark.parametrize("seeds", [5, 11, 20])
def test_a_difference_that_seeds_show_has_the_power_of_scipy(seeds: int, comparisons: int) -> None:
    effect = effect_to_show(seeds, 3.0, comparisons)
    critical = stats.t.ppf(1 - LEVEL / comparisons / 2, seeds - 1)
    power = stats.nct.sf(critical, seeds - 1, effect / 3.0 * math.sqrt(seeds))
    assert power == pytest.approx(POWER, abs=1e-3)
    assert effect_to_show(4, 3.0, comparisons) == math.inf


@pytest.mark.parametrize("comparisons", [1, 9])
@pytest.mark.parametrize("effect", [1.5, 2.0, 4.0])
def test_seeds_to_show_a_difference_count_the_items(effect: float, comparisons: int) -> None:
    """The items alone have a standard error of 0.5, with 12 degrees of freedom."""
    items = ItemError(0.25, 12)
    critical = stats.t.ppf(1 - LEVEL / comparisons / 2, 12)
    at_most = stats.nct.sf(critical, 12, effect / 0.5)  # with any number of seeds
    found = seeds_to_show(effect, 2.0, comparisons, items)
    if at_most < POWER:
        assert found is None
        return
    assert found is not None
    variance = 4.0 / found + 0.25
    degrees = variance**2 / ((4.0 / found) ** 2 / (found - 1) + 0.25**2 / 12)
    critical = stats.t.ppf(1 - LEVEL / comparisons / 2, degrees)
    assert stats.nct.sf(critical, degrees, effect / math.sqrt(variance)) >= POWER - 1e-3
    assert effect_to_show(found - 1, 2.0, comparisons, items) > effect


@pytest.mark.slow
@pytest.mark.parametrize("comparisons", [1, 9])
@pytest.mark.parametrize("seeds", [5, 6, 7, 8, 9, 10])
def test_a_difference_that_seeds_show_is_significant_in_80_per_cent(
    seeds: int, comparisons: int
) -> None:
    """Simulated with the test of `compare`, which has sign flips from six seeds on."""
    effect = effect_to_show(seeds, 1.0, comparisons)
    values = RNG(seeds).normal(effect, 1.0, (4000, seeds))
    found = []
    for row in values:
        (one,) = compare(scores([row.tolist(), [0.0] * seeds]), [("A", "B")])
        found.append(one.p_alone <= LEVEL / comparisons and not one.p_flips > LEVEL)
    assert np.mean(found) == pytest.approx(POWER, abs=0.025)


def test_ranks_and_groups() -> None:
    same = Difference("A", "B", 1, -1, 3, 5, p_alone=0.3)
    apart = replace(same, value=5.0, significant=True)
    pairs = [same, replace(apart, second="C"), replace(same, first="B", second="C")]
    ranks = rank_intervals("ABC", pairs, higher_is_better=True)
    assert ranks == {"A": (1, 2), "B": (1, 3), "C": (2, 3)}
    assert rank_intervals("ABC", pairs, higher_is_better=False)["C"] == (1, 2)
    assert letters("ABC", pairs) == {"A": "a", "B": "ab", "C": "b"}
    assert letters("ABC", [same]) == dict.fromkeys("ABC", "a")
    assert letters("ABC", [replace(same, p_alone=math.nan)]) == dict.fromkeys("ABC", "")


@pytest.mark.parametrize(("families", "shown"), [(3, True), (5, False)])
def test_letters_are_left_out_where_there_would_be_too_many(families: int, shown: bool) -> None:
    names = [f"{family}{member}" for family in range(families) for member in range(3)]
    pairs = []
    for one, other in combinations(names, 2):
        significant = one[0] == other[0]
        pairs.append(Difference(one, other, 1, 0, 2, 5, p_alone=0.05, significant=significant))
    found = letters(names, pairs)
    assert all(found.values()) == shown
    if shown:  # 3^3 groups, named a to z and aa
        assert found["00"] == "abcdefghi"
        assert found["22"].endswith("xaa")
    else:  # 3^5
        assert not any(found.values())


def test_a_run_is_the_mean_of_its_cells_each_weighted_by_its_items() -> None:
    weights = np.array([1.0, 4.0, 2.0])
    runs = []
    for score in (10.0, 20.0, 30.0):
        near = Items("near", "f1", score * weights, weights=weights)
        runs.append([near, Items("far", "f1", np.full(3, score + 6))])
    found = resample_items(runs, 5)
    assert found is not None
    np.testing.assert_allclose(found[0], [[13.0, 23.0, 33.0]] * 5)


@pytest.mark.parametrize("more", [0.1, 0.5, 1e-3])
def test_rounding_does_not_decide_on_equal_differences(more: float) -> None:
    values = [1.1, 10.3, 60.7, 30.2, 5.9]
    (found,) = compare(scores([[value + more for value in values], values]), [("A", "B")])
    assert found.p_alone == smallest_flip_p(5) and not found.significant
    assert not found.has_interval  # equal differences do not determine their variance


@pytest.mark.parametrize("pair", [(100.0, 0.0), (100 / 3, 0.0), (66.7, 12.3)])
@pytest.mark.parametrize("cells", [1, 3, 7])
def test_rounding_of_items_does_not_decide_on_equal_differences(
    pair: tuple[float, float], cells: int
) -> None:
    runs = []
    for score in np.repeat(pair, 5):
        runs.append([Items("a", "f1", np.full(30, score), length=n) for n in range(cells)])
    found = resample_items(runs)
    assert found is not None
    again = found[0].reshape(-1, 2, 5)
    values = np.repeat(np.array(pair)[:, None], 5, axis=1)
    (one,) = compare(SeedScores("AB", values, again, found[1]), [("A", "B")])
    assert one.p_alone == smallest_flip_p(5) and not one.has_interval


def test_items_of_one_document_have_no_variance_to_estimate() -> None:
    values = RNG(0).normal(size=12)
    one = Items("a", "f1", values, clusters=np.zeros(12, int))
    several = replace(one, length=1, clusters=np.arange(12))
    assert resample_items([[one]]) is None and resample_items([[one, several]]) is None


def test_documents_without_weight_are_not_drawn() -> None:
    values = RNG(0).normal(size=4)
    run = [Items("a", "f1", values, np.ones(4))]
    more = [Items("a", "f1", np.append(values, [0.0] * 4), np.array([1.0] * 4 + [0.0] * 4))]
    found, expected = resample_items([more]), resample_items([run])
    assert found is not None and expected is not None
    assert np.array_equal(found[0], expected[0]) and found[1] == expected[1] == 3


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_score_that_is_not_finite_concerns_its_run_only(value: float) -> None:
    runs = RNG(0).normal(size=(4, 30))
    expected = resample_items([[Items("a", "f1", run)] for run in runs])
    runs[1, 3] = value
    found = resample_items([[Items("a", "f1", run)] for run in runs])
    assert found is not None and expected is not None and found[1] == expected[1]
    assert np.isnan(found[0][:, 1]).all()
    kept = [0, 2, 3]
    assert np.array_equal(found[0][:, kept], expected[0][:, kept])
    weightless = [[Items("a", "f1", run, np.zeros(30))] for run in RNG(0).normal(size=(4, 30))]
    assert resample_items(weightless) is None
