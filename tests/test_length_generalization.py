"""The base class of synthetic tasks: means over points, the gate, resuming."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import Oracle, answer_after, make_task, means, measure

from pe_bench.api import (
    END,
    FAR,
    FIRST,
    ID,
    OOD,
    TINY,
    Batch,
    Column,
    Curve,
    Decoder,
    EvalPoint,
    Headline,
    Heatmap,
    InputError,
    Items,
    LengthGeneralizationTask,
    Measurement,
    Metric,
    Preset,
    Scores,
    Sequences,
    TrainConfig,
    Turn,
    Vocabulary,
    collate,
)
from pe_bench.results.intervals import mean_of
from pe_bench.results.journal import Journal


class Echo(LengthGeneralizationTask):
    """A task with rows `a a a = a a a`, trained on lengths 1 and 2, with two kinds of symbols."""

    headline = Headline("exact_match", OOD)
    presets = {"quick": Preset(TrainConfig(steps=1), TINY)}
    vocabulary = Vocabulary(FIRST + 4)
    all_subsets: tuple[str, ...] = ("one", "two")

    def eval_points(self, subset: str) -> list[EvalPoint]:
        points = []
        for n in (1, 2, 3):
            groups = ("odd",) if n % 2 else ()
            points.append(EvalPoint(n, "", ID if n <= 2 else OOD, groups))
        return [*points, EvalPoint(4)] if subset == "one" else points

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        text = [FIRST + self.all_subsets.index(subset)] * point.length
        return collate([[Turn([*text, FIRST + 3], [*text, END])]] * self.count(subset, point))

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        return self.items("one", EvalPoint(2)).batch()


class EchoEach(Echo):
    averages_each_subset = True


class EchoTrained(EchoEach):
    trains_each_subset = True


class EchoForced(Echo):
    autoregressive = False


class EchoGrid(Echo):
    all_subsets: tuple[str, ...] = ("one",)

    def eval_points(self, subset: str) -> list[EvalPoint]:
        lengths = [(n, second) for n in (1, 2, 3) for second in (10, 20)]
        return [EvalPoint(n, str(m), ID if n <= 2 and m == 10 else OOD) for n, m in lengths]


class EchoFar(Echo):
    def eval_points(self, subset: str) -> list[EvalPoint]:
        return [*super().eval_points(subset)[:3], EvalPoint(8, split=FAR), EvalPoint(16, split=FAR)]


class EchoEachFar(EchoFar):
    averages_each_subset = True


class EchoNowhere(Echo):
    def eval_points(self, subset: str) -> list[EvalPoint]:
        return [EvalPoint(1, split=OOD)]


def echo(limits: dict[int, int], consistent: bool = True) -> Oracle:
    """Return a model that answers correctly up to a length, for each symbol."""

    def answer(ids: list[int]) -> list[int]:
        size = ids.index(FIRST + 3)
        right = size <= limits[ids[0] - FIRST]
        return answer_after(size + 1, [*ids[:size], END if right else 0])

    return Oracle(answer, prefix_consistent=consistent)


def summary(task: Echo, folder: Path, limits: dict[int, int]) -> dict[str, tuple[float, str]]:
    found = means(task, measure(task, echo(limits), folder))
    return {name: (row.value, row.status) for name, row in found.items()}


def test_means_over_splits_and_groups(tmp_path: Path) -> None:
    task = make_task(Echo, tmp_path, samples=5)
    found = summary(task, tmp_path, {0: 4, 1: 2})
    assert found == {
        ID: (100, "ranked"), OOD: (50, "ranked"), "odd": (75, "ranked"),
    }  # fmt: skip


@pytest.mark.slow
def test_what_is_extrapolated_from_something_not_learned_is_not_ranked(tmp_path: Path) -> None:
    task = make_task(Echo, tmp_path, samples=5, gate=75)
    assert summary(task, tmp_path / "a", {0: 4, 1: 1})[OOD] == (50, "ranked")  # at the gate
    task.gate = 76
    found = summary(task, tmp_path / "b", {0: 4, 1: 1})
    assert found == {ID: (75, "ranked"), OOD: (50, "not_learned"), "odd": (75, "ranked")}


def test_each_subset_has_its_gate_and_the_headline_needs_all(tmp_path: Path) -> None:
    task = make_task(EchoEach, tmp_path, samples=5)
    found = summary(task, tmp_path, {0: 3, 1: 1})
    assert found[f"one-{ID}"] == (100, "ranked") and found[f"one-{OOD}"] == (100, "ranked")
    assert found[f"two-{ID}"] == (50, "ranked") and found[f"two-{OOD}"] == (0, "not_learned")
    assert found[OOD] == (50, "not_learned")


@pytest.mark.parametrize("cls", [Echo, EchoEach])
def test_a_mean_over_some_subsets_is_partial(tmp_path: Path, cls: type[Echo]) -> None:
    task = make_task(cls, tmp_path, samples=5)
    rows = [row for row in measure(task, echo({0: 4, 1: 4}), tmp_path) if row.subset == "two"]
    row = means(task, rows)[OOD]
    assert (row.value, row.n, row.status) == (100, 5, "partial")
    one = make_task(cls, tmp_path, subsets=("two",), samples=5)
    row = means(one, rows)[OOD]
    assert row.status == "partial"  # all subsets share a model, so the others can still be measured
    assert task.summarize([]) == []


def test_where_subsets_are_trained_one_by_one_those_of_the_run_are_all(tmp_path: Path) -> None:
    one = make_task(EchoTrained, tmp_path, subsets=("two",), samples=5)
    rows = measure(one, echo({0: 4, 1: 4}), tmp_path)
    assert {row.status for row in one.summarize(rows)} == {"ranked"}
    assert one.fingerprint != make_task(EchoTrained, tmp_path).fingerprint


def test_far_lengths_have_a_mean_of_their_own(tmp_path: Path) -> None:
    task = make_task(EchoFar, tmp_path, samples=60)
    assert (task.max_eval_tokens, task.max_far_tokens) == (8, 34)
    assert task.items("one", EvalPoint(8, split=FAR)).ids.shape == (50, 18)
    rows = measure(task, echo({0: 8, 1: 16}), tmp_path)
    found = means(task, rows)
    kept = means(task, [row for row in rows if (row.length or 0) < 8])
    assert (found["far"].value, found["far"].n, found["far"].status) == (75, 200, "ranked")
    assert {name: row for name, row in found.items() if name != "far"} == kept
    effective = [row for row in task.summarize(rows) if row.metric == "effective_length"]
    assert {row.value for row in effective} == {3}
    assert Column("far", "exact_match") in task.views
    each = means(make_task(EchoEachFar, tmp_path, samples=60), rows)
    assert [each[name].value for name in ("far", "one-far", "two-far")] == [75, 50, 100]


@pytest.mark.parametrize(("limit", "kept"), [(33, [8]), (17, [])])
def test_an_encoding_without_positions_that_far_keeps_the_other_cells(
    tmp_path: Path, limit: int, kept: list[int]
) -> None:
    task = make_task(EchoFar, tmp_path, samples=5)
    model = echo({0: 16, 1: 16})
    everywhere = measure(task, model, tmp_path / "all")
    model.encoding.max_position = limit
    assert task.skip(model.encoding) is None
    rows = measure(task, model, tmp_path / "some")
    assert rows == [row for row in everywhere if row.length in (1, 2, 3, *kept)]
    statuses = {name: row.status for name, row in means(task, rows).items()}
    assert statuses.get("far") == ("partial" if kept else None)
    assert statuses[OOD] == "ranked"
    found = task.evaluate(model, "one", 0, Journal(tmp_path / "journal.jsonl"))
    left_out = "16" if kept else "8 and 16"
    assert f"one: left out {left_out} tokens (far)" in found.notes[0]
    assert f"{limit} positions" in found.notes[0]


def test_a_note_says_after_how_many_tokens_logits_are_first_not_finite(tmp_path: Path) -> None:
    task = make_task(Echo, tmp_path)
    journal = Journal(tmp_path / "journal.jsonl")
    for length, tokens in (("3", 7), ("4", 9), ("2", 8)):
        entry = {"scores": [None], "finite_tokens": tokens, "forward_tokens": 0}
        journal.add({length: entry | {"decoding_tokens": 0}})
    found = task.evaluate(echo({0: 4, 1: 4}), "one", 0, journal)
    assert {row.length for row in found.rows} == {1}
    (note,) = (note for note in found.notes if "left out" in note)
    assert note.startswith("one: left out 2 and 3 and 4 ") and note.endswith("after 7 tokens")


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize(("lost", "partial"), [(1, {ID, "odd"}), (3, {OOD, "odd"})])
def test_means_without_some_points_are_not_ranked(
    tmp_path: Path, lost: int, partial: set[str], learned: bool
) -> None:
    """Points without finite logits are missing, whether or not the model has learned."""
    task = make_task(Echo, tmp_path, samples=5, gate=80)
    rows = measure(task, echo({0: 4, 1: 4} if learned else {0: 0, 1: 0}), tmp_path)
    kept = [row for row in rows if (row.subset, row.length) != ("one", lost)]
    statuses = {name: row.status for name, row in means(task, kept).items()}
    assert {name for name, status in statuses.items() if status == "partial"} == partial
    if OOD not in partial:
        assert statuses[OOD] == ("ranked" if learned else "not_learned")


def test_far_lengths_are_behind_the_gate(tmp_path: Path) -> None:
    task = make_task(EchoFar, tmp_path, samples=5, gate=80)
    rows = measure(task, echo({0: 16, 1: 1}), tmp_path)
    assert means(task, rows)["far"].status == "not_learned"


def test_lengths_follow_from_cells(tmp_path: Path) -> None:
    task = make_task(Echo, tmp_path)
    assert (task.max_train_axis, task.train_length, task.max_eval_tokens) == (2, 6, 10)
    assert (task.data_label, task.fingerprint) == ("echo-v2", "echo-v2")


def test_views_follow_from_cells(tmp_path: Path) -> None:
    columns = [Column(ID, "exact_match", at_trained_length=True), Column("odd", "exact_match")]
    columns.append(Column(OOD, "effective_length", "effective length"))
    curves = [Curve("one", "exact_match"), Curve("two", "exact_match")]
    assert [*make_task(Echo, tmp_path).views] == [*columns, *curves]
    each = [Column(f"{subset}-{OOD}", "exact_match") for subset in ("one", "two")]
    assert {*make_task(EchoEach, tmp_path).views} == {*columns, *curves, *each}
    (heatmap,) = [v for v in make_task(EchoGrid, tmp_path).views if isinstance(v, Heatmap)]
    assert (heatmap.subset, heatmap.trained) == ("one", (10, 2))


def test_a_task_that_trains_on_none_of_its_cells(tmp_path: Path) -> None:
    task = make_task(EchoNowhere, tmp_path)
    with pytest.raises(InputError, match="echo-nowhere has no evaluation point in distribution"):
        task.train_length  # noqa: B018


def test_an_interrupted_evaluation_goes_on(tmp_path: Path) -> None:
    task = make_task(Echo, tmp_path, samples=5)
    whole = task.evaluate(echo({0: 4, 1: 4}), "one", 0, Journal(tmp_path / "whole"))
    lines = (tmp_path / "whole").read_text().splitlines(keepends=True)
    (tmp_path / "part").write_text("".join(lines[:3]))
    model = echo({0: 4, 1: 4})
    assert task.evaluate(model, "one", 0, Journal(tmp_path / "part")) == whole
    assert len(lines) == 1 + 4 and len(model.seen) == 2


def test_notes_say_what_one_pass_saves(tmp_path: Path) -> None:
    task = make_task(Echo, tmp_path, samples=5)
    (note,) = task.evaluate(echo({0: 4, 1: 4}), "two", 0, Journal(tmp_path / "j")).notes
    # Rows of 4, 6 and 8 tokens; each answer token needs all before it.
    assert note.startswith("two: 75 tokens in forward passes")
    assert f"{5 * ((2 + 3) + (3 + 4 + 5) + (4 + 5 + 6 + 7)):,} tokens of decoding" in note
    made = make_task(EchoForced, tmp_path, samples=5)
    assert made.evaluate(echo({0: 4, 1: 4}), "two", 0, Journal(tmp_path / "k")).notes == ()


def test_answers_are_generated_where_outputs_depend_on_the_length(tmp_path: Path) -> None:
    task = make_task(Echo, tmp_path, samples=2)
    model = echo({0: 2, 1: 2}, consistent=False)
    found = task.evaluate(model, "two", 0, Journal(tmp_path / "j")).rows
    assert [row.value for row in found] == [100, 100, 0]
    assert (2, 2) in model.seen and (2, 3) in model.seen  # one token after the other


def test_a_mean_of_rows() -> None:
    rows = [
        Measurement("a", "accuracy", 50.0, 10, 3.0, ci_low=46.0, ci_high=56.0),
        Measurement("a", "accuracy", 80.0, 30, 4.0, ci_low=77.0, ci_high=88.0),
    ]
    expected = Measurement("b", "accuracy", 65.0, 40, 2.5, ci_low=62.5, ci_high=70.0)
    assert mean_of("b", rows) == expected
    assert mean_of("b", rows, "not_learned").status == "not_learned"
    certain = [Measurement("a", "accuracy", 100.0, 9, 0.0, ci_low=70.0, ci_high=100.0)] * 4
    assert mean_of("b", certain).ci_low == pytest.approx(85)  # not 100
    assert np.isnan(mean_of("b", [Measurement("a", "accuracy", 1.0, 1, 1.0)]).ci_low)


def test_an_item_without_an_answer_is_refused(tmp_path: Path) -> None:
    class Silent(Echo):
        items = LengthGeneralizationTask.items

        def sample(self, rng: np.random.Generator, subset: str, point: EvalPoint) -> list[Turn]:
            return [Turn([FIRST])]

    with pytest.raises(InputError, match="an item of one at length 1 has no answer"):
        make_task(Silent, tmp_path).items("one", EvalPoint(1))


def test_a_gate_of_the_class_is_refused(tmp_path: Path) -> None:
    class Gated(Echo):
        gate = 50.0

    with pytest.raises(InputError, match=r"gated\.gate has no effect.*\{'gate': 50.0\}"):
        make_task(Gated, tmp_path)


def test_items_without_a_prompt_are_refused(tmp_path: Path) -> None:
    class Unasked(Echo):
        items = LengthGeneralizationTask.items

        def sample(self, rng: np.random.Generator, subset: str, point: EvalPoint) -> list[Turn]:
            return [Turn([], [FIRST, FIRST])]

    with pytest.raises(InputError, match="begins with an answer, whose first token nothing"):
        make_task(Unasked, tmp_path).items("one", EvalPoint(1))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([FIRST + 4], "has the ids 2 to 6, but the vocabulary has 0 to 5"),
        ([-1], "has the ids -1 to"),
        ([1.5], "token ids must be whole numbers, not 1.5"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(
    ids: list[int], message: str, tmp_path: Path
) -> None:
    class Outside(Echo):
        items = LengthGeneralizationTask.items

        def sample(self, rng: np.random.Generator, subset: str, point: EvalPoint) -> list[Turn]:
            return [Turn(ids, [FIRST])]

    with pytest.raises(InputError, match=message):
        make_task(Outside, tmp_path).items("one", EvalPoint(1))


@pytest.mark.parametrize(
    ("point", "message"),
    [
        (EvalPoint(3, "", OOD), "one, 3, '' occurs 2 times: its items would count several times"),
        (EvalPoint(3, "a\nb", OOD), "has a control character"),
        (EvalPoint(3, 5, OOD), "has a second axis that is not a string: write '5'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_points_are_refused(point: EvalPoint, message: str, tmp_path: Path) -> None:
    class Wrong(Echo):
        def eval_points(self, subset: str) -> list[EvalPoint]:
            return [*super().eval_points(subset), point]

    with pytest.raises(InputError, match=message):
        make_task(Wrong, tmp_path).train_length  # noqa: B018


@pytest.mark.parametrize("name", ["in-distribution", "one-out-of-distribution", "far"])
def test_a_group_is_no_split(name: str, tmp_path: Path) -> None:
    class Groups(Echo):
        def eval_points(self, subset: str) -> list[EvalPoint]:
            return [*super().eval_points(subset)[:3], EvalPoint(5, split=OOD, groups=(name,))]

    with pytest.raises(InputError, match=f"a point in the group '{name}', the name of the mean"):
        _ = make_task(Groups, tmp_path).train_length


def test_groups_are_a_tuple(tmp_path: Path) -> None:
    class Forgotten(Echo):
        def eval_points(self, subset: str) -> list[EvalPoint]:
            return [EvalPoint(1, split=ID, groups=("long"))]  # type: ignore[arg-type]

    with pytest.raises(InputError, match=r"one group for each letter: write groups=\('long',\)"):
        _ = make_task(Forgotten, tmp_path).train_length


def test_a_point_is_in_a_group_once(tmp_path: Path) -> None:
    class Twice(Echo):
        def eval_points(self, subset: str) -> list[EvalPoint]:
            return [EvalPoint(1, split=ID, groups=("odd", "odd"))]

    with pytest.raises(InputError, match="one has a point 2 times in the group 'odd'"):
        _ = make_task(Twice, tmp_path).train_length


def test_a_shorter_point_with_longer_rows_is_refused(tmp_path: Path) -> None:
    class Longer(Echo):
        def items(self, subset: str, point: EvalPoint) -> Sequences:
            text = [FIRST] * (9 if point.length == 1 else point.length)
            return collate([[Turn([*text, FIRST + 3], [*text, END])]])

    task = make_task(Longer, tmp_path)
    with pytest.raises(InputError, match="items of one have 20 tokens and `max_eval_tokens` is"):
        task.provenance()


@pytest.mark.parametrize("name", ["point_metrics", "headline"])
def test_lower_scores_have_no_gate(name: str, tmp_path: Path) -> None:
    class Errors(Echo):
        metrics = {"errors": Metric("errors", "%", higher_is_better=False)}

    wrong = ("errors",) if name == "point_metrics" else Headline("errors", OOD)
    setattr(Errors, name, wrong)
    with pytest.raises(InputError, match="lower values of errors are better, but the gate"):
        make_task(Errors, tmp_path)


def test_partial_credit_is_kept(tmp_path: Path) -> None:
    class Half(Echo):
        def score(self, model: Decoder, items: Sequence[Sequences]) -> list[Scores]:
            return [replace(each, exact=each.exact / 2) for each in super().score(model, items)]

    task = make_task(Half, tmp_path)
    found = {row.value for row in measure(task, echo({0: 9, 1: 9}), tmp_path)}
    assert found == {50.0}


def test_a_task_gives_its_metric_a_unit(tmp_path: Path) -> None:
    class Points(Echo):
        point_metrics = ("score",)
        headline = Headline("score", OOD)
        metrics = {"score": Metric("game score", "points", higher_is_better=True)}

        def measure(self, subset: str, point: EvalPoint, scores: Scores) -> list[Items]:
            return [Items(subset, "score", np.array([240.0, 260.0]), length=point.length)]

    task = make_task(Points, tmp_path)
    for row in measure(task, echo({0: 9, 1: 9}), tmp_path):
        assert row.ci_low < row.value == 250 < row.ci_high
