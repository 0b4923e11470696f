"""Chained facts: prompts have exact lengths, and the answer follows from the text."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import make_task, merging_tokenizer

from pe_bench.config import IGNORE
from pe_bench.results.splits import ID
from pe_bench.sequences.curriculum import Stage
from pe_bench.tasks.chained_facts import HOPS, PLACES, TEXTS, ChainedFacts


def make(tmp_path: Path, **options: Any) -> ChainedFacts:
    return make_task(ChainedFacts, tmp_path, **options)


def solve(context: str, question: str) -> tuple[str, int]:
    """Return the place of a person or thing, and the number of facts needed to know it."""
    place: dict[str, str] = {}
    holder: dict[str, str] = {}
    facts: dict[str, int] = {}
    for line in context.splitlines():
        if found := re.fullmatch(r"Then (\w+) reached (\w+)\.", line):
            place[found[1]] = found[2]
        elif found := re.fullmatch(r"Then (\w+) took the (\w+)\.", line):
            holder[found[2]] = found[1]
            facts[found[2]] = 2
        elif found := re.fullmatch(r"Then (\w+) gave all to (\w+)\.", line):
            for thing, person in holder.items():
                if person == found[1]:
                    holder[thing] = found[2]
                    facts[thing] += 1
    if found := re.fullmatch(r"Find the (\w+)", question):
        return place[holder[found[1]]], facts[found[1]]
    (person,) = re.findall(r"^Find (\w+)$", question)
    return place[person], 1


@pytest.mark.parametrize("spec", ["words", "bytes", "bpe:400", "merging"])
@pytest.mark.parametrize("subset", HOPS)
def test_prompts_have_exact_lengths_and_answers_that_can_be_read(
    spec: str, subset: str, tmp_path: Path
) -> None:
    folder = None
    if spec == "merging":
        spec = str(merging_tokenizer(TEXTS, tmp_path / "tokenizer.json"))
    if spec == "bpe:400":
        folder = tmp_path / "text"
        for part in ("train", "test"):
            (folder / part).mkdir(parents=True)
            (folder / part / "a.txt").write_text("\n\n".join(TEXTS) * 40)
    task = make(
        tmp_path,
        tokenizer="bytes" if spec == "words" else spec,
        vocabulary="words" if spec == "words" else "tokenizer",
        data=folder,
        hops=3,
        stories=3,
        train={"length": 1000},
    )
    tokenizer = task.tokenizer
    rng = np.random.default_rng(0)
    least = task.min_length(subset)
    for length in (least, least + 1, least + 9, 1000):
        for stage in (None, Stage()):
            context, *turns = task.write(rng, subset, length, stage)
            ids = [*context.prompt]
            for turn in turns:
                ids += [*turn.prompt, *turn.answer]
            assert tokenizer.encode(tokenizer.decode(ids)).tolist() == ids[1:]
            assert len(ids) - len(turns[-1].answer) == length
            for turn in turns:
                question = tokenizer.decode(turn.prompt).strip()
                place, facts = solve(tokenizer.decode(context.prompt), question)
                assert tokenizer.decode(turn.answer) == f" {place}" and facts == HOPS[subset]
                assert len(turn.answer) <= task.max_answer(subset)
    rows = [task.write(rng, subset, 1000, Stage()) for _ in range(40)]
    assert {len(row) for row in rows} == {3, 4}  # a context, and a question for each story


def test_rows_of_training_ask_for_several_stories_and_items_for_one(tmp_path: Path) -> None:
    task = make(tmp_path, samples=3)
    scored = (task.batch(None, 0, 0).targets != IGNORE).sum(1)
    assert 1 <= int(scored.min()) < int(scored.max()) <= 8
    for subset in task.subsets:
        for point in task.eval_points(subset):
            items = task.items(subset, point)
            assert (items.scored.sum(1) == 1).all() and (items.lengths == point.length + 1).all()
            assert (point.split == ID) == (point.length <= 64)


@pytest.mark.slow
def test_references_know_the_places_of_a_prompt(tmp_path: Path) -> None:
    task = make(tmp_path, hops=3, stories=2, moves=2, samples=200, train={"length": 96})
    found = task.baselines()
    guess = {row.value for row in found["guessing in context"] if row.metric == "exact_match"}
    assert guess == {25}
    last = [row.value for row in found["last place"] if row.length == 96]
    assert all(40 < value < 60 for value in last) and len(last) == 3
    chance = {row.value for row in found["guessing"] if row.metric == "exact_match"}
    assert max(chance) == pytest.approx(100 / len(PLACES.split()))
