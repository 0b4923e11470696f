"""Effective length: the length up to which a score holds, from the training length on."""

from pathlib import Path

import pytest
from helpers import make_task, measure
from test_length_generalization import Echo, EchoEach, EchoGrid, echo

from pe_bench.api import ID, OOD, EvalPoint, Measurement
from pe_bench.sequences.effective_length import LengthCurve


def curve(values: dict[int, float], trained: dict[int, float]) -> LengthCurve:
    def rows(points: dict[int, float]) -> list[Measurement]:
        return [Measurement("s", "accuracy", v, 10, length=n) for n, v in points.items()]

    return LengthCurve("s", "s", rows(values), rows(trained))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({4: 100, 8: 100, 16: 85, 32: 84, 64: 100}, 16),  # all shorter lengths must keep it
        ({4: 100, 8: 100, 16: 99, 32: 90}, 32),
        ({4: 100, 8: 100, 16: 50}, 8),
        ({64: 100, 16: 100, 8: 100}, 64),  # in any order
        ({4: 10, 8: 100, 16: 100}, 16),  # shorter ones do not count
        ({4: 100, 8: 60, 16: 100}, 0),
    ],
)
def test_the_longest_length_that_keeps_85_per_cent(values: dict[int, float], expected: int) -> None:
    found = curve(values, {4: 100, 8: 100}).effective_length("s", learned=True)
    assert (found.value, found.status, found.length) == (expected, "ranked", None)


def test_it_is_relative_to_its_own_score_in_distribution() -> None:
    some = curve({8: 50, 16: 43, 32: 42}, {8: 50})
    assert some.effective_length("s", learned=True).value == 16
    nothing = some.effective_length("s", learned=False)
    assert (nothing.value, nothing.status) == (0, "not_learned")


@pytest.mark.slow
def test_a_run_has_one_and_one_for_each_of_several_curves(tmp_path: Path) -> None:
    for cls in (Echo, EchoEach):
        task = make_task(cls, tmp_path, samples=5)
        rows = task.summarize(measure(task, echo({0: 4, 1: 2}), tmp_path / cls.__name__))
        found = {row.subset: row.value for row in rows if row.metric == "effective_length"}
        assert found == {OOD: 3, "one": 4, "two": 2}
    assert task.metrics["effective_length"].unit == "tokens"


def test_curves_of_one_subset_have_their_own(tmp_path: Path) -> None:
    class Curves(EchoGrid):
        def eval_points(self, subset: str) -> list[EvalPoint]:
            points = super().eval_points(subset)
            return [
                point._replace(
                    split=ID if point.length < 3 else OOD, curve=f"by-{point.second_axis}"
                )
                for point in points
            ]

    task = make_task(Curves, tmp_path, samples=5)
    rows = task.summarize(measure(task, echo({0: 4}), tmp_path))
    found = {row.subset: row.value for row in rows if row.metric == "effective_length"}
    assert found == {OOD: 3, "one-by-10": 3, "one-by-20": 3}


def test_what_has_not_learned_has_none(tmp_path: Path) -> None:
    task = make_task(EchoEach, tmp_path, samples=5)
    rows = task.summarize(measure(task, echo({0: 4, 1: 1}), tmp_path))
    found = {row.subset: row for row in rows if row.metric == "effective_length"}
    assert {name: row.value for name, row in found.items()} == {OOD: 2, "one": 4, "two": 0}
    assert found[OOD].status == found["two"].status == "not_learned"
