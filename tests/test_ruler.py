"""Ruler: prompts have exact lengths, answers follow from the text, and recall."""

import re
from collections import Counter
from itertools import chain
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Oracle, make_task, means, measure, merging_tokenizer, some_slow

from pe_bench.config import IGNORE, TrainConfig
from pe_bench.registry import plugins
from pe_bench.results.splits import ID, OOD
from pe_bench.results.views import Column
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import resolve
from pe_bench.sequences.curriculum import Stage
from pe_bench.sequences.eval_points import EvalPoint
from pe_bench.sequences.rows import Sequences
from pe_bench.task import TaskContext
from pe_bench.tasks.passkey.prompts import nonsense_names
from pe_bench.tasks.ruler.prompts import KINDS, NIAH, TEXTS, RulerPrompts
from pe_bench.tasks.ruler.task import Ruler
from pe_bench.text.corpus import Corpus
from pe_bench.text.folder_corpus import folder_corpus
from pe_bench.text.load_tokenizer import load_tokenizer
from pe_bench.text.tokenizer import Tokenizer
from pe_bench.text.word_tokenizer import WordTokenizer

NAMES = nonsense_names(300)
MAX_LENGTH = 2600
NEEDLES = "niah-multikey+niah-multivalue"


@pytest.fixture(params=["words", "bytes", "bpe:400", "merging"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    if request.param == "words":
        return WordTokenizer([*TEXTS, *(f" {name}" for name in NAMES)])
    if request.param == "merging":
        path = merging_tokenizer(TEXTS, tmp_path / "tokenizer.json")
        return load_tokenizer(str(path), Corpus(""), tmp_path)
    for part in ("train", "test"):
        (tmp_path / "text" / part).mkdir(parents=True)
        text = "\n\n".join(TEXTS) + "\nWe call bado kilu.\n"
        (tmp_path / "text" / part / "a.txt").write_text(text * 40)
    return load_tokenizer(request.param, folder_corpus(tmp_path / "text"), tmp_path)


def make(tmp_path: Path, **options: Any) -> Ruler:
    return make_task(Ruler, tmp_path, **options)


def solve(context: str, question: str) -> list[str]:
    """Return the answers to a question as a set, found by reading the text."""
    if asked := re.fullmatch(r"We call (.+)", question):
        pairs = re.findall(r"^We call (\w+) (\w+)\.$", context, re.MULTILINE)
        keys = asked[1].split(" and ")
        return [value for key, value in pairs if key in keys]
    if asked := re.fullmatch(r"Variables equal to (\w+)", question):
        values = dict(re.findall(r"^VAR (\w+) = (\w+)\.$", context, re.MULTILINE))
        found = []
        for variable in values:
            at = variable
            while at in values:
                at = values[at]
            found += [variable] if at == asked[1] else []
        return found
    (line,) = re.findall(r"^List:(.*)\.$", context, re.MULTILINE)
    counts = Counter(line.split())
    if "frequent" in question:
        assert counts.most_common(1)[0][0] == "blank"
        ranked = counts.most_common(5)[1:]
        assert ranked[2][1] > dict(enumerate(ranked)).get(3, ("", 0))[1]
        return [word for word, _ in ranked[:3]]
    return [word for word, count in counts.items() if count == 12]


@pytest.mark.parametrize("needles", some_slow([4, 10], [4]))
@pytest.mark.parametrize("kind", KINDS)
def test_prompts_have_exact_lengths_and_answers_that_can_be_read(
    tokenizer: Tokenizer, kind: str, needles: int
) -> None:
    prompts = RulerPrompts(tokenizer, MAX_LENGTH, NAMES, needles)
    least = prompts.min_length(kind)
    rng = np.random.default_rng(0)
    for length in (least, least + 1, least + 2, least + 7, MAX_LENGTH):
        for stage in (None, Stage()):
            context, *turns = prompts.write(kind, rng, length, stage)
            ids = [*context.prompt]
            for turn in turns:
                ids += [*turn.prompt, *turn.answer]
            assert ids[0] == tokenizer.bos
            assert tokenizer.encode(tokenizer.decode(ids)).tolist() == ids[1:]
            assert len(ids) - len(turns[-1].answer) == length
            assert len(turns[0].answer) <= prompts.max_name * prompts.n_answers(kind)
            assert stage or len(turns) == 1
            for turn in turns:
                question = tokenizer.decode(turn.prompt).strip()
                answers = tokenizer.decode(turn.answer).split()
                assert len({*answers}) == len(answers) <= prompts.n_answers(kind)
                assert stage or len(answers) == prompts.n_answers(kind)
                assert set(answers) == set(solve(tokenizer.decode(context.prompt), question))


def test_rows_of_training_ask_for_more_where_there_is_room(tmp_path: Path) -> None:
    task = make(tmp_path, kinds=NEEDLES)
    longest = 0
    for step in range(20):
        targets = task.batch(None, 3, task.train.steps - 1 - step).targets
        assert len(targets) == 32
        asked = (targets != IGNORE).sum(1)
        assert 1 <= int(asked.min()) < int(asked.max()) <= 7  # six first tokens, a last answer
        longest = max(longest, int((targets != IGNORE).nonzero()[:, 1].max()) + 1)
    assert 71 <= longest <= task.train_length == 72 + 2


def test_no_word_of_the_language_is_a_nonsense_word() -> None:
    assert not {*nonsense_names()}.intersection(re.findall(r"\w+", " ".join(TEXTS)))


def test_answers_are_in_the_order_of_the_text() -> None:
    tokenizer = WordTokenizer([*TEXTS, *(f" {name}" for name in NAMES)])
    prompts = RulerPrompts(tokenizer, 200, NAMES, 8)
    rng = np.random.default_rng(0)
    for kind in ("niah-multivalue", "vt", "cwe"):
        context, turn = prompts.write(kind, rng, 190)
        text = tokenizer.decode(context.prompt)
        answers = tokenizer.decode(turn.answer).split()
        places = [text.index(f" {answer}") for answer in answers]
        assert places == sorted(places) and len(answers) == prompts.n_answers(kind)


def rows_of(items: Sequences) -> list[tuple[list[int], list[int]]]:
    """Return the prompt and the answer of each item."""
    rows = []
    for ids, scored in zip(items.ids, items.scored, strict=True):
        rows.append((ids[: scored.argmax()].tolist(), ids[scored].tolist()))
    return rows


def oracle(task: Ruler, change: Any, **options: Any) -> Oracle:
    """Return a model that writes the right answer changed by `change`."""
    known: dict[tuple[int, ...], list[int]] = {}
    for subset in task.subsets:
        for point in task.eval_points(subset):
            for prompt, answer in rows_of(task.items(subset, point)):
                known[tuple(prompt)] = [*prompt[1:], *change(answer), 0, 0, 0, 0, 0]

    def write(given: list[int]) -> list[int]:
        for size in range(len(given), 0, -1):
            if tuple(given[:size]) in known:
                return known[tuple(given[:size])]
        return []

    size = task.vocabulary.vocab_size
    return Oracle(write, vocab_size=size, prefix_consistent=False, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "recall", "exact"),
    [
        (lambda answer: answer, 100, 100),
        (lambda answer: answer[::-1], 100, 100),
        (lambda answer: [answer[0]] * 9, 50, 0),
        (lambda answer: [5, *answer], 50, 0),  # more than are looked at
        (lambda answer: [5] * 9, 0, 0),
    ],
)
def test_recall_asks_for_no_order(tmp_path: Path, change: Any, recall: float, exact: float) -> None:
    kinds = "niah-multivalue+niah-multiquery+vt+cwe"
    task = make(tmp_path, kinds=kinds, needles=4, samples=3, train={"length": 96})
    rows = measure(task, oracle(task, change), tmp_path)
    for metric, expected in (("string_match_all", recall), ("exact_match", exact)):
        assert {row.value for row in rows if row.metric == metric} == {expected}
    found = means(task, rows, "string_match_all")
    assert found[OOD].status == ("ranked" if recall == 100 else "not_learned")
    effective = {row.subset: row.value for row in task.summarize(rows) if "effec" in row.metric}
    assert effective[OOD] == effective["vt"] == (384 if recall == 100 else 0)


def test_recall_ignores_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make(tmp_path, kinds=NEEDLES, samples=3)
    items = task.items("niah-multivalue", EvalPoint(72))
    decode = task.tokenizer.decode

    def shout(model: Any, prompts: list[list[int]], **options: Any) -> list[list[int]]:
        monkeypatch.setattr(task.tokenizer, "decode", lambda ids: decode(ids).upper())
        return [answer for _, answer in rows_of(items)]

    monkeypatch.setattr("pe_bench.tasks.ruler.task.generate", shout)
    (scores,) = task.score(Oracle(lambda ids: ids), [items])
    assert np.all(scores.exact) and np.all(scores.leading == 2)


def test_a_model_that_never_saw_a_prompt_may_write_words_between(tmp_path: Path) -> None:
    context = TaskContext(train=TrainConfig(steps=0, length=96), cache=tmp_path, untrained=True)
    task = Ruler.make(context, kinds="vt", needles=4, samples=3)
    rows = measure(task, oracle(task, lambda answer: [answer[0], 44, answer[1]]), tmp_path)
    assert {row.value for row in rows if row.metric == "string_match_all"} == {100}
    assert task.max_eval_tokens == 384 + 4 and task.gate is None


@pytest.mark.slow
def test_cells(tmp_path: Path) -> None:
    task = make(tmp_path, kinds="all", needles=4, train={"length": 96})
    lengths = {kind: [point.length for point in task.eval_points(kind)] for kind in task.subsets}
    assert tuple(lengths) == KINDS
    for kind, found in lengths.items():
        assert found == [n for n in (48, 72, 96, 144, 192, 288, 384) if n >= task.min_length(kind)]
        assert {point.length for point in task.eval_points(kind) if point.split == ID} <= {
            48,
            72,
            96,
        }
        for point in task.eval_points(kind)[:2]:
            assert {len(prompt) for prompt, _ in rows_of(task.items(kind, point))} == {point.length}


@pytest.mark.slow
def test_no_item_is_a_row_of_training(tmp_path: Path) -> None:
    task = make(tmp_path, kinds="all", needles=4, train={"length": 96})
    seen = set()
    for step in range(100):
        for row in task.batch(None, 0, step).tokens.tolist():
            seen.add(tuple(row[:40]))
    items = [task.items(kind, task.eval_points(kind)[0]) for kind in KINDS]
    rows = [tuple(prompt[:40]) for each in items for prompt, _ in rows_of(each)]
    # Filler alone may begin a prompt with one needle; all others differ.
    shared = [row for row in rows if row in seen]
    assert len(shared) <= 0.05 * len(rows)


def test_guessing_in_context(tmp_path: Path) -> None:
    task = make(tmp_path, kinds="all", needles=4, samples=5, train={"length": 96})
    found = {}
    for kind in task.subsets:
        (point,) = [one for one in task.eval_points(kind) if one.length == 96]
        guess = task.own_baselines(kind, point)["guessing in context"]
        found[kind] = (np.mean(guess.leading / guess.counts), np.mean(guess.exact))
    kinds = {"niah-single": (1, 4), "niah-multikey": (1, 4), "vt": (2, 8)}
    kinds |= {"niah-multivalue": (2, 4), "niah-multiquery": (2, 4)}
    for kind, (asked, there) in kinds.items():
        assert found[kind] == pytest.approx((asked / there, 1 / comb(there, asked)))
    assert 0.05 < found["cwe"][0] < 0.2 < found["fwe"][0] < 0.7


@pytest.mark.slow
def test_words_that_ignore_the_question_are_far_from_the_answer(tmp_path: Path) -> None:
    task = make(tmp_path, kinds="+".join(NIAH), samples=20)
    rng = np.random.default_rng(0)
    for kind in task.subsets:
        for point in task.eval_points(kind):
            floor = task.own_baselines(kind, point)["guessing in context"]
            assert np.mean(floor.leading / floor.counts) < 0.34  # halfway is 0.5
            named = []
            for prompt, answer in rows_of(task.items(kind, point)):
                words = re.findall(r"\w+", task.tokenizer.decode(prompt))
                asked = words[-1]
                there = sorted({*task.names}.intersection(words) - {asked})
                assert len(there) >= 4 * len(answer)
                drawn = rng.permutation(there)[: len(answer)].tolist()
                right = task.tokenizer.decode(answer).split()
                named.append(len({*drawn}.intersection(right)) / len(right))
            assert np.mean(named) < 0.45  # expected: at most 0.25


def test_any_word_is_a_key_in_one_prompt_and_a_value_in_another(tmp_path: Path) -> None:
    task = make(tmp_path)
    keys: set[str] = set()
    values: set[str] = set()
    for seed in range(30):
        context = task.write(np.random.default_rng(seed), "niah-multikey", 72)[0]
        pairs = re.findall(r"^We call (\w+) (\w+)\.$", task.tokenizer.decode(context.prompt), re.M)
        assert len({*chain(*pairs)}) == 2 * len(pairs) == 2 * task.needles  # no word twice
        keys |= {key for key, _ in pairs}
        values |= {value for _, value in pairs}
    assert keys == values == {*task.names}


def test_a_single_needle_has_as_many_other_lines_beside_it(tmp_path: Path) -> None:
    task = make(tmp_path, kinds="niah-single")
    context, question = task.write(np.random.default_rng(0), "niah-single", 72)
    lines = re.findall(r"^We (\w+) \w+ \w+\.$", task.tokenizer.decode(context.prompt), re.M)
    assert Counter(lines) == {"call": 1, "saw": task.needles - 1}
    assert "We call" in task.tokenizer.decode(question.prompt)


def test_every_kind_of_question_has_a_column(tmp_path: Path) -> None:
    task = make(tmp_path, kinds=NEEDLES)
    columns = {view.subset for view in task.views if isinstance(view, Column)}
    assert {OOD, *(f"{kind}-{OOD}" for kind in task.subsets)} <= columns


@pytest.mark.slow
def test_preset_paper_asks_a_language_model(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "text" / split).mkdir(parents=True)
        (tmp_path / "text" / split / "a.txt").write_text(
            " ".join(f"{split}{i * i}" for i in range(9000))
        )
    options = RunOptions(
        preset="paper",
        data={"perplexity": tmp_path / "text"},
        tokenizer="bpe:300",
        train={"length": 1024, "batch_size": 2, "steps": 3},
        pretrain={"length": 64, "batch_size": 4, "steps": 5},
        model={"layers": 1, "width": 16, "heads": 2, "mlp_width": 16},
        cache=tmp_path / "cache",
    )
    made = resolve(options, "ruler:needles=4,samples=2")
    task = made.task
    assert isinstance(task, Ruler) and task.gate is None and task.baselines() == {}
    assert task.data_label.endswith("bpe:300-zero-shot")
    assert {point.split for kind in KINDS for point in task.eval_points(kind)} == {OOD}
    assert "We call" not in task.tokenizer.decode(task.batch(None, 0, 0).tokens[0])
    model = made.make_model(plugins.load("encoding", "nope"), 0).eval()
    rows = measure(task, model, tmp_path)
    assert {row.metric for row in rows} == {"string_match_all", "exact_match"}
