"""The search for shortcuts finds each kind in a task that has it, and in no other task."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import make_task, some_slow

from pe_bench.api import (
    FIRST,
    ID,
    IGNORE,
    OOD,
    TINY,
    Batch,
    EvalPoint,
    Headline,
    LengthGeneralizationTask,
    Preset,
    Sequences,
    Task,
    TaskContext,
    TokenIds,
    TrainConfig,
    Turn,
    Vocabulary,
    collate,
)
from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.shortcuts import (
    HALFWAY,
    ShortcutScore,
    explained,
    find_problem,
    search,
    strongest,
)
from pe_bench.registry import plugins
from pe_bench.results.measurement import Measurement
from pe_bench.results.metrics import Metric
from pe_bench.sequences.baselines import (
    CANDIDATE,
    CONSTANT,
    FROM_END,
    LAST,
    POSITION,
    TABLES,
    Baselines,
)

Answer = Callable[[np.random.Generator, TokenIds], TokenIds]
"""Makes the targets (T,) of a row's tokens (T,), which are numbers from 0 on."""

SYMBOLS = 5
MANY = 50_000  # training rarely has one of these symbols twice


class Rows(LengthGeneralizationTask):
    """A task with rows of random tokens, and questions after the last one or after each.

    Training has 12 to 20 tokens, evaluation up to 40.
    """

    headline = Headline("accuracy", OOD)
    axes = {"length": "tokens", "second": ""}
    autoregressive = False
    point_metrics = ("accuracy",)
    presets = {"quick": Preset(TrainConfig(steps=1, batch_size=512), TINY)}
    symbols = SYMBOLS
    everywhere = False
    answer: Answer

    @property
    def vocabulary(self) -> Vocabulary:  # type: ignore[override]
        return Vocabulary(FIRST + self.symbols + SYMBOLS)

    def eval_points(self, subset: str) -> list[EvalPoint]:
        return [EvalPoint(n, split=ID if n <= 20 else OOD) for n in (12, 16, 20, 40)]

    def row(self, rng: np.random.Generator, size: int) -> TokenIds:
        return rng.integers(0, self.symbols, size)

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        rng = np.random.default_rng([1, point.length])
        return self._draw(rng, np.full(self.samples, point.length))

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        rng = np.random.default_rng([2, seed, step])
        return self._draw(rng, rng.integers(12, 21, self.train.batch_size)).batch()

    def _draw(self, rng: np.random.Generator, sizes: TokenIds) -> Sequences:
        ids = np.zeros((len(sizes), int(sizes.max())), dtype=np.int64)
        targets = np.full(ids.shape, IGNORE)
        for index, size in enumerate(sizes):
            row = self.row(rng, size)
            wanted = FIRST + type(self).answer(rng, row)
            ids[index, :size] = FIRST + row
            asked = slice(0, size) if self.everywhere else slice(size - 1, size)
            targets[index, asked] = wanted[asked]
        return Sequences(ids, targets != IGNORE, sizes, targets)


def sums(last: int, modulus: int) -> Answer:
    """Return a rule: the sum of the last tokens, plus 1 so that it is not the last token."""

    def answer(rng: np.random.Generator, row: TokenIds) -> TokenIds:
        return np.full(len(row), (row[-last:].sum() + 1) % modulus)

    return answer


class Honest(Rows):
    """The sum of all tokens."""

    answer = staticmethod(sums(0, SYMBOLS))


class Constant(Rows):
    """The answer is nearly always the same token."""

    @staticmethod
    def answer(rng: np.random.Generator, row: TokenIds) -> TokenIds:
        return np.full(len(row), rng.integers(SYMBOLS) if rng.random() < 0.1 else 3)


class Last(Rows):
    """The answer is the last token, one of so large a number that a table has seen few of them."""

    symbols = MANY

    @staticmethod
    def answer(rng: np.random.Generator, row: TokenIds) -> TokenIds:
        return row


class Position(Rows):
    """The answer is the position of the last token."""

    @staticmethod
    def answer(rng: np.random.Generator, row: TokenIds) -> TokenIds:
        return np.arange(len(row)) % SYMBOLS


class FromEnd(Rows):
    """The answer, after every token, is the number of remaining tokens."""

    everywhere = True

    @staticmethod
    def answer(rng: np.random.Generator, row: TokenIds) -> TokenIds:
        return np.arange(len(row))[::-1] % SYMBOLS


class Candidate(Rows):
    """The answer is the only possible candidate in the row, far from the end."""

    def row(self, rng: np.random.Generator, size: int) -> TokenIds:
        row = rng.integers(SYMBOLS, 2 * SYMBOLS, size)
        row[rng.integers(0, size - len(TABLES))] = rng.integers(0, SYMBOLS)
        return row

    @staticmethod
    def answer(rng: np.random.Generator, row: TokenIds) -> TokenIds:
        return np.full(len(row), row.min())


def ngram(context: int) -> type[Rows]:
    """Return a task whose answer is the sum of this number of last tokens."""
    rule = staticmethod(sums(context, 3))
    return type(f"Sum{context}", (Rows,), {"symbols": 3, "answer": rule})


# Each task with the reported shortcut, and with all shortcuts that come halfway.
EVERY_TABLE = {CONSTANT, POSITION, FROM_END, "n-gram table"}  # these fall back to the constant
TOYS: dict[str, tuple[type[Rows], str, set[str]]] = {
    "constant": (Constant, CONSTANT, EVERY_TABLE),
    "last": (Last, LAST, {LAST}),
    "position": (Position, POSITION, {POSITION}),
    "from-end": (FromEnd, FROM_END, {FROM_END}),
    "candidate": (Candidate, CANDIDATE, {CANDIDATE}),
    **{
        f"{context}-tokens": (ngram(context), table, {"n-gram table"})
        for context, table in enumerate(TABLES, start=1)
    },
}


@pytest.mark.parametrize("name", some_slow(TOYS, ["last", "candidate", "3-tokens"]))
def test_each_kind_is_found_where_it_is(name: str, tmp_path: Path) -> None:
    cls, shortcut, halfway = TOYS[name]
    scores = search(make_task(cls, tmp_path))
    assert {score.name for score in scores if score.most >= HALFWAY} == halfway
    (best,) = strongest(scores)
    assert (best.subset, best.shortcut) == ("", shortcut)
    assert best.most == pytest.approx(1, abs=0.12)
    if shortcut in TABLES:
        shorter = TABLES[: TABLES.index(shortcut)]
        assert all(score.most < HALFWAY for score in scores if score.shortcut in shorter)


def test_an_honest_task_has_none(tmp_path: Path) -> None:
    scores = search(make_task(Honest, tmp_path))
    assert {score.shortcut for score in scores} == {
        *(CONSTANT, LAST, POSITION, FROM_END, CANDIDATE),
        *TABLES,
    }
    assert max(score.most for score in scores) < 0.2
    assert find_problem(scores, [], default=True) is None


class Sums(LengthGeneralizationTask):
    """Sums of earlier numbers: x_t = x_(t-1) + x_(t-2) + x_(t-3), or + x_0, modulo 11.

    The second rule does not need x_0 either: x_t = 2 x_(t-1) - x_(t-3).
    """

    headline = Headline("exact_match", OOD)
    all_subsets = ("recurrent", "chain")
    axes = {"length": "numbers", "second": ""}
    autoregressive = False
    trains_each_subset = True
    averages_each_subset = True
    vocabulary = Vocabulary(FIRST + 11)
    presets = {"quick": Preset(TrainConfig(steps=1, batch_size=512), TINY)}

    def eval_points(self, subset: str) -> list[EvalPoint]:
        return [EvalPoint(n, split=ID if n <= 16 else OOD) for n in (8, 16, 32)]

    def items(self, subset: str, point: EvalPoint) -> Sequences:
        rows = self._rows(np.random.default_rng([1, point.length]), subset, 100, point.length)
        rows.scored[:, :-1] = False
        return rows

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        return self._rows(np.random.default_rng([2, step]), subset, 512, 16).batch()

    def _rows(
        self, rng: np.random.Generator, subset: str | None, rows: int, size: int
    ) -> Sequences:
        numbers = rng.integers(0, 11, (rows, size))
        for index in range(3, size):
            far = 0 if subset == "chain" else index - 3
            given = numbers[:, index - 1] + numbers[:, index - 2] + numbers[:, far]
            numbers[:, index] = given % 11
        scored = np.tile(np.arange(size) > 2, (rows, 1))
        return Sequences(FIRST + numbers, scored, np.full(rows, size))


class Needles(LengthGeneralizationTask):
    """Keys with values, and a question about one key; no key is ever a value."""

    headline = Headline("string_match_all", OOD)
    point_metrics = ("string_match_all", "exact_match")
    all_subsets = ("single", "multikey", "multivalue")
    averages_each_subset = True
    axes = {"length": "tokens", "second": ""}
    vocabulary = Vocabulary(FIRST + 48)
    presets = {"quick": Preset(TrainConfig(steps=1, batch_size=512), TINY)}

    def eval_points(self, subset: str) -> list[EvalPoint]:
        return [EvalPoint(n, split=ID if n <= 32 else OOD) for n in (24, 32, 64)]

    def sample(self, rng: np.random.Generator, subset: str, point: EvalPoint) -> list[Turn]:
        keys = FIRST + rng.permutation(16)[:4]
        values = FIRST + 16 + rng.permutation(16)[:4]
        needles = {"single": 1, "multikey": 4, "multivalue": 4}[subset]
        if subset == "multivalue":
            keys[:2] = keys[0]
            keys[2:] = keys[2]
        prompt = rng.integers(FIRST + 32, FIRST + 48, point.length)
        places = np.sort(rng.permutation(point.length // 2 - 1)[:needles]) * 2
        prompt[places] = keys[:needles]
        prompt[places + 1] = values[:needles]
        key = rng.choice(keys[:needles])
        answers = [int(v) for k, v in zip(keys, values[:needles], strict=False) if k == key]
        return [Turn([*prompt.tolist(), int(key)], answers)]


def by_subset(scores: Sequence[ShortcutScore]) -> dict[str, tuple[str, int, int]]:
    """Return the strongest shortcut of each subset and how far it comes, in per cent."""
    found = strongest(scores)
    return {r.subset: (r.shortcut, round(100 * r.inside), round(100 * r.outside)) for r in found}


def test_sums_that_three_numbers_tell(tmp_path: Path) -> None:
    """A table of 4-grams predicts both rules of an earlier version of `posgen`."""
    scores = search(make_task(Sums, tmp_path))
    found = by_subset(scores)
    assert {shortcut for shortcut, _, _ in found.values()} == {"4-gram table"}
    assert min(inside for _, inside, _ in found.values()) > 95
    assert min(outside for _, _, outside in found.values()) > 95
    trigram = [score.most for score in scores if score.shortcut in TABLES[:2]]
    assert max(trigram) < 0.1
    wrong = find_problem(scores, [], default=True) or ""
    assert "n-gram table of recurrent (" in wrong and "n-gram table of chain (" in wrong


@pytest.mark.slow
def test_values_that_can_be_told_from_keys(tmp_path: Path) -> None:
    """A random value of the prompt is a shortcut, as in an earlier version of `ruler`."""
    found = by_subset(search(make_task(Needles, tmp_path)))
    # One of 1, one of 4 and two of 4 values, where guessing names one or two of 16.
    assert found["single"] == (CANDIDATE, 100, 100)
    assert found["multikey"] == (CANDIDATE, 20, 20)
    assert found["multivalue"] == (CANDIDATE, 43, 43)


class Explained(Position):
    """The position of the last token.

    Shortcuts:
        position table: that is the question, which this
            line continues.
        n-gram table of majority: another one.

    Args:
        samples: rows.
    """


def test_a_docstring_explains_what_is_intended() -> None:
    assert explained(Position) == {}
    assert explained(Explained) == {
        "position table": "that is the question, which this line continues.",
        "n-gram table of majority": "another one.",
    }


def test_what_comes_halfway_is_explained_and_nothing_else_is() -> None:
    half = ShortcutScore("", "4-gram table", 0.5, 0.1)
    more = ShortcutScore("", "5-gram table", 0.2, 0.75)
    less = ShortcutScore("", LAST, 0.4, float("nan"))
    wrong = find_problem([half, more, less], [], default=True) or ""
    assert "n-gram table (20 % in distribution, 75 % out of it); change the task" in wrong
    assert find_problem([half, more, less], ["n-gram table"], default=True) is None
    stale = "the docstring explains the shortcut 'last token', which does not come halfway"
    names = ["n-gram table", LAST]
    assert (find_problem([half, more, less], names, default=True) or "").startswith(stale)
    assert find_problem([half, more, less], names, default=False) is None
    of_subset = ShortcutScore("parity", "7-gram table", float("nan"), 0.6)
    assert "n-gram table of parity (60 %)" in (
        find_problem([of_subset], names, default=False) or ""
    )
    assert find_problem([of_subset], ["n-gram table of parity"], default=True) is None


class Losses(Task):
    """A task measured in bits, with its own tables."""

    headline = Headline("bits", "far")
    presets = {"quick": Preset(TrainConfig(steps=1), TINY)}
    metrics = {"bits": Metric("bits", higher_is_better=False)}
    all_subsets = ("far",)

    def baselines(self) -> dict[str, list[Measurement]]:
        values = {"unigram table": 4.0, "bigram table": 3.0}
        return {name: [Measurement("far", "bits", value, 1)] for name, value in values.items()}


def test_of_a_loss_the_first_table_is_chance_and_nothing_the_ceiling() -> None:
    (score,) = search(Losses(TaskContext()))
    assert score.shortcut == "bigram table" and score.outside == 0.25
    assert np.isnan(score.inside) and score.most == 0.25


def test_what_has_no_ceiling_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Losses, "metrics", {"bits": Metric("bits", higher_is_better=True)})
    with pytest.raises(NotApplicable, match="the best value of bits is not known"):
        search(Losses(TaskContext()))


@pytest.mark.parametrize(
    ("name", "why"), [("efficiency", "it measures time"), ("properties", "it has no baselines")]
)
def test_where_nothing_is_trained_there_is_no_search(name: str, why: str, tmp_path: Path) -> None:
    cls: Any = plugins.load("task", name).cls
    with pytest.raises(NotApplicable, match=why):
        search(make_task(cls, tmp_path))


def batch_of(rows: list[list[Turn]]) -> Batch:
    return collate(rows).batch()


def test_candidates_are_of_their_place_and_of_the_row() -> None:
    """In training, the first place of an answer has 11 or 12, and the second 21 or 22."""
    train = [[Turn([5], [11, 21])], [Turn([5], [12, 22])]]
    baselines = Baselines([batch_of(train)], 30, consecutive=True)
    test = batch_of([[Turn([11, 12, 21, 5, 11], [12, 21])], [Turn([22, 12, 5], [11, 22])]])
    found = baselines.scores(test)[CANDIDATE]
    assert found.correct is not None
    assert list(found.correct) == [0.5 + 1, 0 + 1]  # 21 alone; 11 is not in the second row yet
    assert list(found.exact) == [0.5, 0] and list(found.leading) == [1, 0]


def test_answers_in_any_order_are_drawn_without_repetition() -> None:
    train = [[Turn([5], [value])] for value in (11, 12, 13, 14)]
    baselines = Baselines([batch_of(train)], 30, consecutive=True, ordered=False)
    test = batch_of([[Turn([11, 5, 12, 13, 14, 11], [13, 11])]])
    found = baselines.scores(test)
    for name in ("guessing", CANDIDATE):  # four of each
        assert found[name].correct == pytest.approx([2 * 2 / 4])
        assert found[name].exact == pytest.approx([1 / 6])


def test_answers_of_several_questions_begin_anew() -> None:
    train = [[Turn([5], [11, 21]), Turn([6], [11, 21])]]
    baselines = Baselines([batch_of(train)], 30, consecutive=True)
    test = batch_of([[Turn([7, 8], [11, 21]), Turn([9], [11])]])
    (exact,) = baselines.scores(test)[CONSTANT].exact
    assert exact == 1


def test_a_score_that_was_not_measured_is_no_shortcut() -> None:
    unknown = ShortcutScore("", LAST, math.nan, math.nan)
    inside = ShortcutScore("", CONSTANT, 0.2, math.nan)
    assert math.isnan(unknown.most) and inside.most == 0.2
    assert find_problem([unknown, inside], (), default=True) is None
    assert strongest([inside, unknown]) == [inside]
