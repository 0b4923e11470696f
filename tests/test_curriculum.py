"""The curriculum for retrieval: training rows begin with few facts and few words."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pe_bench.config import IGNORE
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import resolve
from pe_bench.sequences.curriculum import (
    ALL_FRACTION,
    FEW_FRACTION,
    FEW_WORDS,
    FIRST_FACTS,
    FIRST_FRACTION,
    Stage,
    make_rows,
    stage_at,
)
from pe_bench.sequences.prompt_task import PromptTask
from pe_bench.sequences.rows import PAD, Turn

Make = Callable[[str], PromptTask]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(spec: str) -> PromptTask:
        task = resolve(RunOptions(cache=tmp_path), spec).task
        assert isinstance(task, PromptTask)
        return task

    return made


def test_stages_come_in_order() -> None:
    found = [stage_at(done) for done in (0, FEW_FRACTION, ALL_FRACTION, FIRST_FRACTION, 1)]
    assert found == [Stage(2, 0), Stage(2, 0), Stage(2, 1), Stage(), Stage()]
    words = [len(stage_at(done).in_use(range(40))) for done in np.linspace(0, 1, 101)]
    assert words == sorted(words) and {*words} >= {4, 8, 16, 32, 40}
    assert len(Stage(2, 0).in_use(range(40), 6)) == 6


def test_only_the_last_question_is_followed_by_its_answer() -> None:
    samples = [
        [Turn([7, 8]), Turn([20], [1, 2]), Turn([21, 22], [3, 4]), Turn([23], [5])],
        [Turn([9]), Turn([24], [6])],
    ]
    tokens, targets = make_rows(samples, np.random.default_rng(0))
    first, second = tokens.tolist()
    at = [0, 0, 1, 0, 0, 0, 3, 0, 0, 5]
    assert targets.tolist()[0] == [each or IGNORE for each in at]
    assert [first[i] for i in (0, 1, 2, 5, 6, 9)] == [7, 8, 20, 21, 22, 23]
    for shown in (first[3:5], first[7:9]):  # an answer of as many tokens, of any question
        assert shown in ([1, 2], [3, 4])
    assert second == [9, 24, *[PAD] * 8]
    assert targets.tolist()[1] == [IGNORE, 6, *[IGNORE] * 8]


@pytest.mark.parametrize("spec", ["ruler:curriculum=true", "chained-facts"])
def test_a_model_meets_few_facts_and_few_words_first(make: Make, spec: str) -> None:
    task = make(spec)
    steps = task.train.steps
    sizes = []
    words = []
    for step in (0, int(ALL_FRACTION * steps) + 1, int(FIRST_FRACTION * steps) + 1):
        batch = task.batch(None, 0, step)
        sizes.append(batch.tokens.shape)
        words.append(len(set(batch.targets[batch.targets != IGNORE].tolist())))
    (few, short), (more, _), (rows, long) = sizes
    assert min(few, more) > rows == task.train.batch_size
    assert short < long <= task.train_length
    assert words[0] <= 2 * FIRST_FACTS < words[1] - FEW_WORDS  # keys may be answers too


@pytest.mark.parametrize("spec", ["ruler:curriculum=true", "chained-facts"])
def test_held_out_rows_are_those_of_the_last_stages(make: Make, spec: str) -> None:
    task = make(spec)
    assert len(task.held_out_batch(None, 0).tokens) == task.train.batch_size
    last = task.batch(None, 0, task.train.steps - 1)
    assert len(last.tokens) == task.train.batch_size


def test_without_the_subset_of_the_first_stages_there_are_none(make: Make) -> None:
    task = make("ruler:kinds=niah-single+niah-multiquery")
    assert len(task.batch(None, 0, 0).tokens) == task.train.batch_size
