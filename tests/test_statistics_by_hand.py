"""Statistics over seeds, tasks and sizes, compared with loops and with scipy."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pe_bench.results.items import Floats, Items
from pe_bench.stats.comparison import SeedScores, compare, resample_items
from pe_bench.stats.ranking import (
    TaskScores,
    average_over,
    differences_over_families,
    find_standings,
)
from pe_bench.stats.sizes import SAME_ORDER, draw_means, find_stability, kendall_tau

RNG = np.random.default_rng
NAMES = ("A", "B", "C", "D")


def missing(values: Floats, *places: tuple[int, int]) -> Floats:
    for place in places:
        values[place] = math.nan
    return values


# Differences.


def by_hand(scores: SeedScores, first: int, second: int) -> dict[str, float]:
    """Return the numbers of a difference, from the formulas in the module's docstring."""
    seeds = [
        s
        for s in range(scores.values.shape[1])
        if not math.isnan(scores.values[first, s] + scores.values[second, s])
    ]
    gaps = [scores.values[first, s] - scores.values[second, s] for s in seeds]
    count = len(gaps)
    value = sum(gaps) / count
    spread = math.sqrt(sum((gap - value) ** 2 for gap in gaps) / (count - 1))
    from_seeds = spread**2 / count
    from_items = 0.0
    if scores.resampled is not None:
        drawn = [[b[first, s] - b[second, s] for s in seeds] for b in scores.resampled]
        from_items = float(np.var([sum(row) / count for row in drawn]))
        within = float(np.mean([np.var([row[s] for row in drawn]) for s in range(count)]))
        from_items -= max(0.0, (within - from_items) / (count - 1))
        from_items = max(0.0, from_items)
    variance = from_seeds + from_items
    parts = from_seeds**2 / (count - 1) + from_items**2 / max(1, scores.item_degrees)
    degrees = variance**2 / parts
    half = stats.t.ppf(0.975, degrees) * math.sqrt(variance)
    flips = list(itertools.product([1, -1], repeat=count))
    as_far = [abs(np.dot(f, gaps)) >= abs(sum(gaps)) - 1e-9 for f in flips]
    return {
        "value": value,
        "low": value - half,
        "high": value + half,
        "seeds": count,
        "p_alone": 2 * stats.t.sf(abs(value) / math.sqrt(variance), degrees),
        "p_flips": sum(as_far) / len(flips) if count > 5 else math.nan,
        "spread": spread,
    }


@pytest.mark.parametrize("item_degrees", [0, 1, 39])
def test_a_difference_has_the_numbers_of_its_formulas(item_degrees: int) -> None:
    rng = RNG(item_degrees)
    values = missing(rng.normal([[5.0], [3.0], [4.0]], 1, (3, 9)), (0, 2), (1, 4), (2, 0), (2, 8))
    shared = rng.normal(0, 1, (50, 3, 1))
    resampled = values + 0.5 * shared + rng.normal(0, 0.3, (50, 3, 9)) if item_degrees else None
    scores = SeedScores(NAMES[:3], values, resampled, item_degrees)
    pairs = [("A", "B"), ("C", "B"), ("A", "C")]
    for found, (first, second) in zip(compare(scores, pairs), pairs, strict=True):
        assert (found.first, found.second) == (first, second)
        expected = by_hand(scores, NAMES.index(first), NAMES.index(second))
        assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)


def test_items_are_drawn_with_replacement() -> None:
    """Every choice of three of three items occurs, in each cell by itself."""
    values = np.array([0.0, 9.0, 90.0])
    run = [Items("a", "f1", values), Items("b", "f1", 1000 * values[:2], np.array([1.0, 1.0]))]
    found = resample_items([run, [run[0], Items("b", "f1", 0 * values[:2], np.ones(2))]], 600)
    assert found is not None
    means, degrees = found
    assert degrees == 2 + 1
    choices = itertools.combinations_with_replacement(values, 3)
    near = {round(widened(sum(each) / 3, 33, 3), 6) for each in choices}
    assert {round(2 * one, 6) for one in means[:, 1]} == near
    far = {round(2 * (one - other), 6) for one, other in means}
    assert far == {round(widened(one, 4500, 2), 6) for one in (0, 4500, 9000)}


def widened(mean: float, of_all: float, count: int) -> float:
    """Return the mean of resampled items, so far from that of all that its variance is unbiased."""
    return of_all + math.sqrt(count / (count - 1)) * (mean - of_all)


# Standings.


def made_tasks() -> list[TaskScores]:
    """Return four tasks of three families, with missing seeds and scores below the floor."""
    tasks = []
    given: list[tuple[str, bool, float, float]] = [
        ("sums", True, 10.0, 100.0),
        ("sums", True, 0.0, 50.0),
        ("text", False, 4.0, 1.0),
        ("recall", True, 25.0, 80.0),
    ]
    for number, (family, higher, floor, ceiling) in enumerate(given):
        rng = RNG(number)
        share = rng.uniform(-0.2, 1, (4, 1)) + rng.normal(0, 0.05, (4, 4 - (number == 1)))
        values = floor + share * (ceiling - floor)
        resampled = values + rng.normal(0, 0.1, (6, *values.shape))
        seeds = [3, 0, 7, 5][: values.shape[1]] if number != 3 else [5, 7, 3, 0]
        if number == 2:
            missing(values, (1, 3))
        scores = SeedScores(NAMES, values, resampled, 10 + number, seeds)
        tasks.append(TaskScores(f"task{number}", scores, higher, floor, ceiling, family))
    return tasks


def scaled(task: TaskScores, encoding: int, *, cut: bool) -> float:
    """Return the mean normalised score of an encoding over the seeds that it has."""
    found = []
    for value in task.scores.values[encoding]:
        if not math.isnan(value):
            share = (value - task.floor) / (task.ceiling - task.floor)
            found.append(max(0.0, share) if cut else share)
    return float(np.mean(found))


def family_means(table: list[list[float]]) -> list[list[float]]:
    """Return the rows of the three families from those of the four tasks."""
    sums = [(one + other) / 2 for one, other in zip(table[0], table[1], strict=True)]
    return [sums, table[2], table[3]]


def interval(values: list[float], least: float, most: float) -> tuple[float, float, float]:
    mean = sum(values) / len(values)
    error = math.sqrt(sum((one - mean) ** 2 for one in values) / (len(values) - 1) / len(values))
    half = stats.t.ppf(0.975, len(values) - 1) * error
    return mean, max(least, mean - half), min(most, mean + half)


def test_standings_are_means_over_families() -> None:
    tasks = made_tasks()
    scores = family_means([[scaled(t, e, cut=True) for e in range(4)] for t in tasks])
    plain = [[scaled(t, e, cut=False) for e in range(4)] for t in tasks]
    ranks = family_means([[float(r) for r in stats.rankdata([-x for x in row])] for row in plain])
    expected: dict[str, Any] = {}
    for index, name in enumerate(NAMES):
        rank = interval([row[index] for row in ranks], 1, 4)
        expected[name] = (*rank, *interval([row[index] for row in scores], 0, 1))
    found = find_standings(tasks)
    assert [one.encoding for one in found] == sorted(NAMES, key=lambda name: -expected[name][3])
    for one in found:
        numbers = [one.rank.value, one.rank.low, one.rank.high]
        numbers += [one.score.value, one.score.low, one.score.high]
        assert numbers == pytest.approx(expected[one.encoding])
    beside = differences_over_families(tasks, "C")
    assert [*beside] == ["A", "B", "D"]
    for name, mean in beside.items():
        gaps = [row[NAMES.index(name)] - row[2] for row in scores]
        assert [mean.value, mean.low, mean.high] == pytest.approx(interval(gaps, -1, 1))
    whole = family_means(plain)
    for name, mean in differences_over_families(tasks, "C", cut=False).items():
        gaps = [row[NAMES.index(name)] - row[2] for row in whole]
        numbers = [mean.value, mean.low, mean.high]
        assert numbers == pytest.approx(interval(gaps, -math.inf, math.inf))
    corrected = differences_over_families(tasks, "C", comparisons=3)
    for name, mean in corrected.items():
        ratio = stats.t.ppf(1 - 0.025 / 3, 2) / stats.t.ppf(0.975, 2)
        half = ratio * (beside[name].high - beside[name].value)
        assert mean.high == pytest.approx(min(1, mean.value + half))


def test_an_average_has_the_seeds_of_all_tasks() -> None:
    tasks = made_tasks()
    found = average_over(tasks)
    assert found.seeds == [0, 3, 7] and found.item_degrees == 10 + 11 + 12 + 13
    weights = [1 / 6, 1 / 6, 1 / 3, 1 / 3]
    assert found.resampled is not None
    for encoding, seed in itertools.product(range(4), range(3)):
        for values, numbers in (
            (found.values, [task.scores.values for task in tasks]),
            (found.resampled[4], [task.scores.resampled[4] for task in tasks]),  # type: ignore[index]
        ):
            total = 0.0
            for task, weight, number in zip(tasks, weights, numbers, strict=True):
                place = list(task.scores.seeds).index(found.seeds[seed])
                share = (number[encoding, place] - task.floor) / (task.ceiling - task.floor)
                total += weight * max(0.0, share)
            assert values[encoding, seed] == pytest.approx(total)
    uncut = average_over(tasks, cut=False)
    assert uncut.resampled is not None
    assert uncut.values.min() < found.values.min() and uncut.item_degrees == found.item_degrees
    low = [task.normalise(cut=False) for task in tasks]
    for number in (0, 4):
        mean = np.zeros((4, 3))
        for part, weight in zip(low, weights, strict=True):
            assert part.resampled is not None
            places = [list(part.seeds).index(seed) for seed in found.seeds]
            mean += weight * part.resampled[number][:, places]
        assert uncut.resampled[number] == pytest.approx(mean)
    values = np.clip(tasks[1].scores.values, 0, 1)
    without = TaskScores("x", SeedScores(NAMES, values, seeds=[3, 0, 7]), True, 0.0, 1.0, "x")
    assert average_over([without, without]).resampled is None
    some = average_over([tasks[0], without])  # the second task adds no variance of items
    assert some.resampled is not None and some.item_degrees == 10
    alone = tasks[0].normalise()
    assert alone.resampled is not None
    expected = (alone.resampled[:, :, [1, 0, 2]] + values[:, [1, 0, 2]]) / 2
    assert some.resampled == pytest.approx(expected)


# Sizes.


def test_orders_at_three_sizes() -> None:
    rng = RNG(5)
    truths = ([4, 3, 2, 1], [4, 2, 3, 1], [1, 2, 4, 3])
    sizes = []
    for number, truth in enumerate(truths):
        values = np.array(truth, float)[:, None] + rng.normal(0, 0.6, (4, 4 + number))
        sizes.append(SeedScores(NAMES, missing(values, (number, number))))
    found = find_stability(sizes)
    assert [(one.first, one.second) for one in found.agreements] == [(0, 1), (1, 2), (0, 2)]
    kept = [np.delete(size.values, number, axis=1) for number, size in enumerate(sizes)]
    drawn = [draw_means(values, number) for number, values in enumerate(kept)]
    settled = []
    for one_size, again in zip(kept, drawn, strict=True):
        taus = kendall_tau(one_size.mean(1), again)
        settled.append(float(np.quantile(taus, 0.025, method="lower")) >= SAME_ORDER - 1e-9)
    assert len({*settled}) == 2  # both kinds
    for one in found.agreements:
        first, second = one.first, one.second
        tau = stats.kendalltau(kept[first].mean(1), kept[second].mean(1)).statistic
        taus = kendall_tau(drawn[first], drawn[second])
        low = np.quantile(taus, 0.025, method="lower")
        high = np.quantile(taus, 0.975, method="higher")
        numbers = (one.tau, one.low, one.high)
        assert numbers == pytest.approx((tau, min(low, tau), max(high, tau)))
        assert one.settled == (settled[first] and settled[second])
