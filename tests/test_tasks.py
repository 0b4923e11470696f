"""What holds for every task in the folder, written once against the interface."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pe_bench.decoder.model import IGNORE
from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.results.journal import Journal
from pe_bench.results.schema import Measurement
from pe_bench.results.statistics import mean
from pe_bench.running.options import RunOptions
from pe_bench.running.resolve import ResolvedTask, resolve
from pe_bench.sequences.length_generalization import GeneratedTask

TASKS = plugins.names("task")
GENERATED = [n for n in TASKS if issubclass(plugins.load("task", n).cls, GeneratedTask)]
TINY = {"layers": 1, "heads": 2, "width": 16, "mlp_width": 16}


def stage(name: str, tmp_path: Path, few: int = 2, **train: int) -> ResolvedTask:
    """A task with its quick preset, a tiny model and `few` items of a kind."""
    request = RunOptions(cache=tmp_path, train=train, model=TINY)
    options = [p.name for p in plugins.options_of(plugins.load("task", name).cls)]
    size = next((f":{option}={few}" for option in ("samples", "windows") if option in options), "")
    return resolve(request, f"{name}{size}")


def parts(task: ResolvedTask) -> list[str | None]:
    """What `batch` is called with."""
    return [*task.task.subsets[:2]] if task.task.trains_each_subset else [None]


@pytest.mark.parametrize("name", TASKS)
def test_batches_are_a_pure_function_of_seed_and_step(name: str, tmp_path: Path) -> None:
    made = stage(name, tmp_path)
    for subset in parts(made):
        first, again = made.task.batch(subset, 1, 7), made.task.batch(subset, 1, 7)
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


@pytest.mark.parametrize("name", [name for name in TASKS if name != "scrolls"])
def test_an_untrained_model_can_be_measured(name: str, tmp_path: Path) -> None:
    made = stage(name, tmp_path)
    model = made.make_model(plugins.load("encoding", "nope"), 0).eval()
    measured = []
    for subset in made.task.subsets:
        with torch.inference_mode():
            measured += made.task.evaluate(model, subset, 0, Journal(tmp_path / subset))
    rows = [*measured, *made.task.summarize(measured)]
    assert measured and all(row.n > 0 and row.value == row.value for row in rows)
    keys = [(row.subset, row.metric, row.length, row.aux) for row in rows]
    assert len(keys) == len(set(keys))  # each number once
    there = {(row.subset, row.metric) for row in rows}
    for subset, metric in made.task.shown.items():  # an untrained model has solved nothing
        assert {(subset, metric), (subset, f"unsolved_{metric}")} & there
    assert not made.task.curves or there & set(made.task.curves.items())
    headline = made.task.headline
    names = {metric for subset, metric in there if subset == headline.subset}
    assert names & {headline.metric, f"unsolved_{headline.metric}"}
    for figure in made.task.figures:
        assert (figure.subset, figure.metric) in there


@pytest.mark.parametrize("name", TASKS)
def test_what_a_task_declares(name: str, tmp_path: Path) -> None:
    made = stage(name, tmp_path)
    task = made.task
    assert {"quick", "small", "paper"} <= set(type(task).presets)
    assert set(task.axes) == {"length", "aux"} and "strict" in task.protocols
    assert task.longest >= task.train_length >= 1 and task.trained_to > 0
    assert task.provenance()["label"] == task.data_label
    doc = plugins.describe("task", name)
    assert 20 < len(doc) <= 100 and doc.endswith(".")


@pytest.mark.parametrize("name", GENERATED)
def test_a_task_that_makes_its_own_data_refuses_what_has_no_effect(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"{name}:samples must be from 1 to 100000, not 0"):
        stage(name, tmp_path, few=0)
    plugin = plugins.load("task", name)
    made = stage(name, tmp_path).task
    for gate in (-1.0, 100.5):
        with pytest.raises(InputError, match=f"{name}:gate is a percentage, not {gate}"):
            plugin.cls(made.setup, None, **plugin.cls.presets["quick"].options | {"gate": gate})
    with_data = replace(made.setup, data=tmp_path)
    with pytest.raises(InputError, match=f"{name} makes its own [a-z]+: leave out --data"):
        plugin.cls(with_data, None, **plugin.cls.presets["quick"].options)
    if made.train_length == made.setup.train.length:  # its options say how long sequences are
        with pytest.raises(InputError, match=rf"--train\.length has no effect.* write {name}:"):
            stage(name, tmp_path, length=999)


@pytest.mark.parametrize("name", GENERATED)
def test_options_of_a_spec_go_before_those_of_the_preset(name: str, tmp_path: Path) -> None:
    """Also where they are what the constructor would take: the preset may say otherwise."""
    cls = plugins.load("task", name).cls
    for option in plugins.options_of(cls):
        for preset, content in cls.presets.items():
            if option.name not in content.options:
                continue
            request = RunOptions(preset=preset, cache=tmp_path)
            for value in (option.default, content.options[option.name]):
                try:
                    made = resolve(request, f"{name}:{option.name}={value}")
                except InputError:  # the default does not go with the preset's other options
                    assert value != content.options[option.name]
                    continue
                assert made.settings["options"][option.name] == value
                other = value != content.options[option.name]
                assert (option.name in made.label) == other


@pytest.mark.parametrize("name", GENERATED)
def test_the_digest_stands_for_the_items(name: str, tmp_path: Path) -> None:
    digests = [stage(name, tmp_path, few=n).task.provenance()["items_sha256"] for n in (2, 2, 3)]
    assert digests[0] == digests[1] != digests[2]


def test_a_mean_over_cells() -> None:
    rows = [Measurement("a", "accuracy", v, n, e) for v, n, e in [(50.0, 10, 3.0), (80.0, 30, 4.0)]]
    assert mean("b", rows) == Measurement("b", "accuracy", 65.0, 40, 2.5)
    assert mean("b", rows, solved=False).metric == "unsolved_accuracy"
