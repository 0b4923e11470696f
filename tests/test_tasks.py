"""What holds for every task in the folder, written once against the interface."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import check_items, make_task, some_slow

from pe_bench.config import IGNORE
from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.results.items import Items
from pe_bench.results.journal import Journal
from pe_bench.results.metrics import METRICS
from pe_bench.results.views import Column, Curve
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import ResolvedTask, resolve
from pe_bench.sequences.eval_points import FAR, ID, OOD
from pe_bench.sequences.length_generalization import LengthGeneralizationTask
from pe_bench.task import Task, Vocabulary

TASKS = plugins.names("task")
CLASSES: dict[str, type[Task]] = {name: plugins.load("task", name).cls for name in TASKS}
SYNTHETIC = [n for n, cls in CLASSES.items() if issubclass(cls, LengthGeneralizationTask)]
MEASURED = [name for name in TASKS if name != "scrolls"]
TINY = {"layers": 1, "heads": 2, "width": 16, "mlp_width": 16}


SMALL = {"efficiency": ":shortest=16,longest=32"}


def stage(name: str, tmp_path: Path, few: int = 2, **train: int) -> ResolvedTask:
    """Return a task with its quick preset, a tiny model and `few` items of a kind."""
    options = RunOptions(cache=tmp_path, train=train, model=TINY)
    known = [option.name for option in plugins.options_of(CLASSES[name])]
    size = next((f":{option}={few}" for option in ("samples", "windows") if option in known), "")
    size = size or SMALL.get(name, "")
    return resolve(options, f"{name}{size}")


def synthetic(name: str, tmp_path: Path, **options: Any) -> LengthGeneralizationTask:
    made = make_task(CLASSES[name], tmp_path, **options)
    assert isinstance(made, LengthGeneralizationTask)
    return made


def parts(task: ResolvedTask) -> list[str | None]:
    """Return what `batch` is called with."""
    return [*task.task.subsets[:2]] if task.task.trains_each_subset else [None]


@pytest.mark.parametrize("name", TASKS)
def test_batches_are_a_pure_function_of_seed_and_step(name: str, cache_folder: Path) -> None:
    made = stage(name, cache_folder)
    for subset in parts(made):
        first = made.task.batch(subset, 1, 7)
        again = stage(name, cache_folder).task.batch(subset, 1, 7)
        assert torch.equal(first.tokens, again.tokens)
        assert torch.equal(first.targets, again.targets)
        assert first.tokens.shape == first.targets.shape and first.tokens.dtype == torch.long
        assert first.tokens.shape[1] <= made.task.train_length
        scored = first.targets[first.targets != IGNORE]
        for ids in (first.tokens, scored):
            assert ids.numel() and int(ids.min()) >= 0 and int(ids.max()) < made.model.vocab_size
        assert (first.targets != IGNORE).any(1).all()  # every row has something to learn
        others = [made.task.batch(subset, 1, 8), made.task.batch(subset, 2, 7)]
        if made.train.steps:
            assert not any(torch.equal(first.tokens, other.tokens) for other in others)


@pytest.mark.parametrize(
    "name", some_slow(MEASURED, everyday={*TASKS} - {"efficiency", "perplexity", "properties"})
)
def test_an_untrained_model_can_be_measured(name: str, tmp_path: Path) -> None:
    few = 8 if name == "perplexity" else 2  # of its tokens one in 17 is a key token
    made = stage(name, tmp_path, few)
    model = made.make_model(plugins.load("encoding", "nope"), 0).eval()
    measured = []
    items: list[Items] = []
    for subset in made.task.subsets:
        journal = tmp_path / "journals" / subset
        with torch.inference_mode():
            found = made.task.evaluate(model, subset, 0, Journal(journal))
            assert made.task.evaluate(model, subset, 0, Journal(journal)) == found  # resumed
        measured += found.rows
        items += found.items
    rows = [*measured, *made.task.summarize(measured)]
    assert measured and all(row.n > 0 and row.value == row.value for row in rows)
    assert not any(row.ci_low > row.value or row.ci_high < row.value for row in rows)
    if name not in ("efficiency", "properties"):  # which measure no items
        check_items(rows, items, tmp_path)
    keys = [(row.subset, row.metric, row.length, row.second_axis) for row in rows]
    assert len(keys) == len(set(keys))  # each number once
    there = {(row.subset, row.metric) for row in rows}
    assert (made.task.headline.subset, made.task.headline.metric) in there
    left_out = set(made.task.all_subsets) - set(made.task.subsets)
    of_these = {f"{name}{end}" for name in left_out for end in ("", f"-{ID}", f"-{OOD}")}
    for view in made.task.views:
        if made.task.measures_time and isinstance(view, Curve):
            continue  # a backend may not run on this machine
        assert (view.subset, view.metric) in there or view.subset in of_these
    assert made.task.summarize([]) == []


@pytest.mark.parametrize("name", TASKS)
def test_what_a_task_declares(name: str, cache_folder: Path) -> None:
    made = stage(name, cache_folder)
    task = made.task
    assert {"quick", "small", "mid", "paper"} <= set(type(task).presets)
    assert set(task.axes) == {"length", "second"} and "strict" in task.protocols
    assert task.max_eval_tokens >= task.train_length >= 1 and task.max_train_axis > 0
    assert task.provenance()["label"] == task.data_label
    metric = task.metrics.get(task.headline.metric) or METRICS[task.headline.metric]
    assert metric.higher_is_better is not None
    assert any(isinstance(view, Column) for view in task.views)
    doc = plugins.describe("task", name)
    assert 20 < len(doc) <= 100 and doc.endswith(".")


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_synthetic_task_refuses_what_has_no_effect(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name}:samples must be from 1 to 100000, not 0"):
        stage(name, tmp_path, few=0)
    for gate in (-1.0, 100.5):
        with pytest.raises(InputError, match=f"gate is a percentage, not {gate}"):
            synthetic(name, tmp_path, gate=gate)
    with pytest.raises(InputError, match=r"makes its own [a-z]+: leave out --data"):
        synthetic(name, tmp_path, data=tmp_path)
    if CLASSES[name].presets["quick"].train.length is None:
        with pytest.raises(InputError, match=r"--train\.length has no effect: .*samples"):
            stage(name, tmp_path, length=999)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_the_lengths_of_a_synthetic_task_are_those_of_its_rows(name: str, tmp_path: Path) -> None:
    task = synthetic(name, tmp_path, samples=2)
    points = [(subset, point) for subset in task.subsets for point in task.eval_points(subset)]
    tokens = {key: int(task.items(*key).lengths.max()) for key in points}
    near = [count for (_, point), count in tokens.items() if point.split != FAR]
    assert max(near) <= task.max_eval_tokens
    assert max(tokens.values()) <= task.max_far_tokens
    trained = [key for key in points if key[1].split == ID]
    assert trained and max(tokens[key] for key in trained) <= task.train_length
    assert max(point.length for _, point in trained) == task.max_train_axis
    assert any(point.split == OOD for _, point in points)
    assert isinstance(task.vocabulary, Vocabulary) or task.vocabulary.vocab_size > 256


@pytest.mark.parametrize("name", SYNTHETIC)
def test_items_are_the_same_in_every_run(name: str, tmp_path: Path) -> None:
    digests = [stage(name, tmp_path, few=n).task.provenance()["items_sha256"] for n in (2, 2, 3)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("name", [name for name in TASKS if len(CLASSES[name].all_subsets) > 1])
def test_subsets_that_do_not_exist(name: str, tmp_path: Path) -> None:
    known = resolve(RunOptions(cache=tmp_path), name).task.all_subsets[0]
    with pytest.raises(InputError, match=rf"no subset '{known}x' \(did you mean '{known}'\?\)"):
        resolve(RunOptions(cache=tmp_path, subsets=(f"{known}x",)), name)


@pytest.mark.parametrize("name", some_slow(SYNTHETIC, everyday=("addition", "selective-copy")))
def test_options_of_a_spec_go_before_those_of_the_preset(name: str, tmp_path: Path) -> None:
    """Also where they are what the constructor would take: the preset may say otherwise."""
    cls = CLASSES[name]
    for option in plugins.options_of(cls):
        for preset, content in cls.presets.items():
            if option.name not in content.options or content.starts_from:  # may need a download
                continue
            for value in (option.default, content.options[option.name]):
                try:
                    spec = f"{name}:{option.name}={value}"
                    made = resolve(RunOptions(preset=preset, cache=tmp_path), spec)
                except InputError:  # the default does not go with the preset's other options
                    assert value != content.options[option.name]
                    continue
                assert made.settings["options"][option.name] == value
                other = value != content.options[option.name]
                assert (option.name in made.label) == other


def test_a_task_of_one_line() -> None:
    task = CLASSES["copying"].make(samples=3)
    assert task.subsets == ("copy", "reverse") and task.train == task.presets["quick"].train
    changed = replace(task.context, subsets=("cmc", "rdc"))
    assert CLASSES["copying"].make(changed).subsets == ("copy", "replace")  # as published
