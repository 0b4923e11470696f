"""Passkey: its training rows, evaluation points and means."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import Oracle, cells_by_mean, make_task, measure

from pe_bench.config import IGNORE
from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.results.measurement import Measurement
from pe_bench.results.splits import FAR, ID, OOD
from pe_bench.results.views import Column, Heatmap
from pe_bench.runs.options import RunOptions
from pe_bench.runs.phases import Phases
from pe_bench.runs.resolve import ResolvedTask, resolve
from pe_bench.tasks.passkey.task import Passkey

KINDS = ("passkey", "multikey", "keyvalue")


def make(
    tmp_path: Path,
    preset: str = "quick",
    protocol: str = "strict",
    **options: Any,
) -> Passkey:
    batch_size = min(Passkey.presets[preset].train.batch_size, 32)
    return make_task(
        Passkey,
        tmp_path,
        preset,
        protocol=protocol,
        train={"batch_size": batch_size},
        **options,
    )


@pytest.mark.parametrize(("kinds", "questions"), [("passkey", 1), ("all", 4)])
def test_training_prompts(tmp_path: Path, kinds: Any, questions: int) -> None:
    task = make(tmp_path, kinds=kinds)
    lengths = []
    asked = set()
    for step in range(60):
        tokens, targets = task.batch(None, 3, step)
        assert tokens.shape == targets.shape == (16, tokens.shape[1])
        for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
            scored = [i for i, token in enumerate(target) if token != IGNORE]
            assert all(target[i] == row[i + 1] for i in scored[:-1])
            lengths.append(scored[-5] + 1)  # five digits
            asked.add(len(scored) // 5)
    assert min(lengths) <= 70 and max(lengths) == 128 < task.train_length == 133
    assert asked == set(range(1, questions + 1))
    assert np.median(lengths) == pytest.approx(97 if kinds == "passkey" else 110, abs=6)


def test_kinds_share_a_batch_and_take_turns_with_what_is_left_over(tmp_path: Path) -> None:
    task = make(tmp_path, kinds="all")
    counts = []
    for step in range(3):
        rows = [task.tokenizer.decode(row) for row in task.batch(None, 0, step).tokens]
        keys = sum("Remember it" in row for row in rows)
        lists = sum("Once more" in row for row in rows)
        counts.append((keys, len(rows) - keys - lists, lists))
    assert counts == [(5, 5, 6), (5, 6, 5), (6, 5, 5)]


def test_cells_and_means(tmp_path: Path) -> None:
    task = make(tmp_path, kinds="all", samples=2)
    depths = [f"{i / 10:.1f}" for i in range(11)]
    for kind in KINDS:
        cells = cells_by_mean(task, kind)
        assert cells[ID] == [(n, depth) for n in (96, 128) for depth in depths]
        longer = (192, 256, 384, 512, 768, 1024)
        assert cells[OOD] == [(n, depth) for n in longer for depth in depths]
        far = [(n, depth) for n in (2048, 4096) for depth in depths[1::2]]
        assert cells.get(FAR, []) == ([] if kind == "keyvalue" else far)
        assert {cell.curve for cell in task.eval_points(kind)} == {f"{kind}-length"}


def test_lengths_and_depths_of_the_user(tmp_path: Path) -> None:
    task = make(tmp_path, lengths="256+128", depths="0.9+0.25", samples=2)
    points = [
        (point.length, point.second_axis, point.split) for point in task.eval_points("passkey")
    ]
    assert points == [
        (128, "0.25", ID),
        (128, "0.9", ID),
        (256, "0.25", OOD),
        (256, "0.9", OOD),
    ]
    assert task.max_eval_tokens == 256 + task.prompts.max_number
    for point in task.eval_points("passkey"):
        items = task.items("passkey", point)
        assert len(items) == 2
        before = items.lengths - items.scored.sum(1)
        assert before.tolist() == [point.length] * 2


def test_means_by_depth_are_of_lengths_beyond_training(tmp_path: Path) -> None:
    task = make(tmp_path)
    rows = []
    for cell in task.eval_points("passkey"):
        value = 100.0 * (cell.length <= 256)
        row = Measurement("passkey", "exact_match", value, 2, length=cell.length)
        rows.append(replace(row, second_axis=cell.second_axis))
    found = [row for row in task.summarize(rows) if row.subset == "passkey-depth"]
    assert [row.value for row in found] == [pytest.approx(100 * 2 / 6)] * 11


def test_means_over_several_draws_are_not_rounded_to_whole_items(tmp_path: Path) -> None:
    task = make(tmp_path, samples=1)
    points = [
        Measurement("passkey", "exact_match", 37.5, 2, length=128, second_axis="0.0"),
        Measurement("passkey", "exact_match", 0.0, 2, length=128, second_axis="0.1"),
    ]
    found = {row.subset: row.value for row in task.summarize(points)}
    assert found[f"passkey-{ID}"] == found["passkey-length"] == 18.75


@pytest.mark.parametrize(
    ("nominal", "expected"),
    [(100, [1000]), (499, [1000]), (500, [1000, 2000]), (10**6, [*range(1000, 8001, 1000)])],
)
def test_lengths_of_the_published_protocol_are_thousands(nominal: int, expected: list[int]) -> None:
    task: Any = SimpleNamespace(
        strict=False,
        length=77,
        factors=(1, 4),
        prompts=SimpleNamespace(nominal_length={77: nominal}.__getitem__),
        _make_items=lambda subset, length: SimpleNamespace(lengths=np.array([length - 9, 5])),
    )
    Passkey._plan_evaluation(task)
    assert task.lengths == expected and task.max_train_axis == nominal
    assert task.max_eval_tokens == expected[-1] - 9 and task.depth_names == [""]


@pytest.mark.slow
def test_lengths_of_the_published_protocol_follow_the_training_length(tmp_path: Path) -> None:
    words = make(tmp_path, "mid", "paper", vocabulary="words", kinds="all")
    assert words.subsets == ("passkey",) and words.max_train_axis == 1024
    assert words.lengths == [1000 * (i + 1) for i in range(8)]
    quick = make(tmp_path, protocol="paper")
    assert (quick.lengths, quick.max_train_axis) == ([1000], 128)
    in_bytes = make(tmp_path, "mid", "paper", vocabulary="tokenizer")
    assert (in_bytes.lengths, in_bytes.max_train_axis) == ([1000, 2000], 273)
    (longest,) = [in_bytes.items("passkey", c) for c in in_bytes.eval_points("passkey")[1:]]
    assert in_bytes.max_eval_tokens == longest.lengths.max() > 7168 and len(longest) == 20
    keys = (words.batch(None, 0, 0).targets != IGNORE).sum(1)
    assert keys.min() < keys.max() <= 5  # numbers below 10000 too


def test_the_published_protocol_says_what_nominal_lengths_are(tmp_path: Path) -> None:
    task = make(tmp_path, protocol="paper")
    never = Oracle(lambda ids: [0], vocab_size=task.vocabulary.vocab_size)
    rows = {row.metric: row for row in measure(task, never, tmp_path)}
    assert (rows["exact_match"].value, rows["exact_match"].n) == (0, 20)
    assert rows["prompt_tokens"].value == pytest.approx(891, abs=4)


def test_the_published_protocol_has_no_gate_where_nothing_is_trained(tmp_path: Path) -> None:
    task = make(tmp_path, protocol="paper")
    rows = [
        Measurement("passkey", "exact_match", 15.0, 20, length=1000),
        Measurement("passkey", "prompt_tokens", 888.0, 20, length=1000),
    ]
    found = {row.subset: row for row in task.summarize(rows)}
    assert found[OOD].value == pytest.approx(15) and found[OOD].status == "ranked"
    assert set(found) == {OOD, f"passkey-{OOD}"}


@pytest.fixture
def zero_shot(tmp_path: Path) -> Callable[..., ResolvedTask]:
    """Make the preset paper with tiny text."""
    for split in ("train", "test"):
        (tmp_path / "text" / split).mkdir(parents=True)
        words = " ".join(f"{split}{i * i}" for i in range(9000))
        (tmp_path / "text" / split / "a.txt").write_text(words)

    def resolved(spec: str = "passkey", **changes: Any) -> ResolvedTask:
        options = RunOptions(
            preset="paper",
            data={"perplexity": tmp_path / "text"},
            tokenizer="bpe:300",
            train={"length": 512, "batch_size": 2, "steps": 3},
            pretrain={"length": 64, "batch_size": 4, "steps": 5},
            model={"layers": 1, "width": 16, "heads": 2, "mlp_width": 16},
            cache=tmp_path / "cache",
        )
        return resolve(replace(options, **changes), spec)

    return resolved


@pytest.mark.slow
def test_preset_paper_trains_on_text_and_never_on_a_prompt(
    zero_shot: Callable[..., ResolvedTask],
) -> None:
    made = zero_shot()
    task = made.task
    assert isinstance(task, Passkey) and made.start is not None
    tokens, targets = task.batch(None, 0, 0)
    assert tokens.shape == (2, 512) and task.train_length == 512
    assert (targets != IGNORE).all() and (tokens[:, 0] == task.tokenizer.bos).all()
    for row in tokens:
        assert "train" in task.tokenizer.decode(row) and "key" not in task.tokenizer.decode(row)
    # After the five batches that the language model was trained on before.
    longer = made.start.task.with_training(made.train)
    assert tokens.equal(longer.batch(None, 0, 5).tokens)
    assert made.train.recompute and made.train.weight_decay == 0
    assert made.model == made.start.model and made.model.train_length == 64


@pytest.mark.slow
def test_preset_paper_says_that_it_is_zero_shot(zero_shot: Callable[..., ResolvedTask]) -> None:
    task = zero_shot().task
    assert isinstance(task, Passkey)
    assert task.data_label.endswith("bpe:300-zero-shot") and task.gate is None
    assert task.subsets == ("passkey",) and task.lengths[-1] == 1024
    assert {point.split for point in task.eval_points("passkey")} == {OOD}
    rows = []
    for point in task.eval_points("passkey"):
        row = Measurement("passkey", "exact_match", 5.0, 20, length=point.length)
        rows.append(replace(row, second_axis=point.second_axis))
    found = {row.subset: row for row in task.summarize(rows) if row.length is None}
    assert found[OOD].status == "ranked" and ID not in found
    assert task.baselines() == {}
    paper = zero_shot(protocol="paper").task
    assert isinstance(paper, Passkey) and paper.lengths == [1000]


@pytest.mark.slow
def test_what_a_language_model_has_is_not_given_again(
    zero_shot: Callable[..., ResolvedTask], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="starts from a language model here"):
        zero_shot("passkey:vocabulary=words")
    data = {"": tmp_path / "text", "perplexity": tmp_path / "text"}
    with pytest.raises(InputError, match="give text as --data perplexity=DIR"):
        zero_shot(data=data)


@pytest.mark.slow
def test_preset_paper_goes_on_from_the_language_model(
    zero_shot: Callable[..., ResolvedTask], tmp_path: Path
) -> None:
    made = zero_shot()
    phases = Phases(plugins.load("encoding", "rope"), tmp_path / "results", "cpu", "fp32")
    assert made.start is not None
    before, first = phases.train(made.start, None, 0)
    after, second = phases.train(made, None, 0)
    assert (first.steps, second.steps) == (5, 3) and second.tokens == 3 * 2 * 512
    change = (before.lm_head.weight - after.lm_head.weight).abs().max()
    assert 0 < change < 1e-3  # three small steps from its weights


def test_views(tmp_path: Path) -> None:
    one = make(tmp_path)
    assert [view.subset for view in one.views] == [ID, FAR, OOD, "passkey-length", "passkey"]
    several = make(tmp_path, kinds="all").views
    columns = [view.subset for view in several if isinstance(view, Column)]
    far = [FAR, f"passkey-{FAR}", f"multikey-{FAR}"]
    assert columns == [ID, *(f"{kind}-{OOD}" for kind in KINDS), *far, OOD]
    maps = {view.subset: view.trained for view in several if isinstance(view, Heatmap)}
    assert maps == dict.fromkeys(KINDS, (None, 128))
    assert not any(isinstance(view, Heatmap) for view in make(tmp_path, protocol="paper").views)


def test_facts_about_tokens(tmp_path: Path) -> None:
    task = make(tmp_path)
    assert (task.max_eval_tokens, task.max_far_tokens, task.train_length) == (1029, 4101, 133)
    far = [point for point in task.eval_points("passkey") if point.split == FAR]
    assert [len(task.items("passkey", point)) for point in far] == [5] * 10
    tokens = {int(task.items("passkey", point).lengths.max()) for point in far}
    assert tokens == {2053, 4101}
    assert make(tmp_path, protocol="paper").far_lengths == []
    assert len(task.vocabulary.digit_ids) == 20
    assert task.provenance()["tokenizer_fingerprint"] == task.tokenizer.fingerprint
