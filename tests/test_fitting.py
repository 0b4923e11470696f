"""Which encodings a task skips, and which are refused, before anything is trained."""

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pe_bench.checks.depth import Depths
from pe_bench.config import AdaptConfig, ModelConfig, TrainConfig
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.registry.plugins import Plugin
from pe_bench.runs import fitting, memory
from pe_bench.runs.fitting import describe_depths, reason_to_skip
from pe_bench.runs.initial_weights import Adapted, Pretrained
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import ResolvedTask, resolve

SOURCE = """
import torch
from pe_bench.api import Encoding, InputError

class Mine(Encoding):
    def __init__(self, model, layer=0, *, size: int = {default}):
        super().__init__(model, layer)
        sizes = torch.full((1,), size)
        if {size} > 8:
            raise InputError("there are eight sizes")
        if {size} == 0:
            raise ZeroDivisionError
"""
KNOWN = "size"
OF_TENSOR = "int(sizes)"  # which a tensor on the meta device does not have


@pytest.fixture(scope="module")
def task(cache_folder: Path) -> ResolvedTask:
    return resolve(RunOptions(cache=cache_folder), "mqar")


@pytest.mark.parametrize(
    ("size", "default", "options", "fits", "reason"),
    [
        (KNOWN, 8, "", True, None),
        (KNOWN, 8, "", False, None),
        (KNOWN, 9, "", True, "there are eight sizes"),
        (KNOWN, 9, "", False, "there are eight sizes"),
        (KNOWN, 0, "", True, None),  # the run records the crash
        (OF_TENSOR, 8, "", True, None),
        (OF_TENSOR, 9, "", True, "there are eight sizes"),
        (OF_TENSOR, 9, "", False, None),  # nothing is allocated
        (KNOWN, 9, ":size=10", True, "there are eight sizes"),  # so do the default options
        (KNOWN, 8, ":size=10", True, InputError),
        (KNOWN, 8, ":size=10", False, InputError),
        (OF_TENSOR, 8, ":size=10", True, InputError),
    ],
)
def test_a_reason_to_skip(
    size: str,
    default: int,
    options: str,
    fits: bool,
    reason: str | type[InputError] | None,
    task: ResolvedTask,
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE.format(size=size, default=default))
    encoding = plugins.load("encoding", f"{path}{options}")
    if isinstance(reason, str | None):
        assert reason_to_skip(encoding, task, fits) == reason
    else:
        with pytest.raises(reason, match="there are eight sizes"):
            reason_to_skip(encoding, task, fits)


SHAPE = ModelConfig(layers=5, width=12, heads=2, mlp_width=20, vocab_size=30, train_length=7)


def to_train(start: Any = None, **train: Any) -> Any:
    config = TrainConfig(**{"batch_size": 9, "steps": 3, **train})
    return SimpleNamespace(start=start, model=SHAPE, train=config)


@pytest.mark.parametrize(
    ("device", "precision", "train", "rows", "numbers"),
    [
        ("cpu", "fp32", {}, 9, 5 * 88),
        ("cpu", "fp32", {"micro_batch": 4}, 4, 5 * 88),
        ("cpu", "bf16", {"micro_batch": 99}, 9, 5 * 88 / 2),
        ("cuda", "bf16", {"recompute": True}, 1, (5 * 12 + 88) / 2),
    ],
)
def test_what_just_fits_into_memory_is_trained(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    precision: str,
    train: dict[str, Any],
    rows: int,
    numbers: float,
) -> None:
    """The expected bytes follow from 4 x 12 + 2 x 20 = 88 numbers per token and layer."""
    model = Decoder(SHAPE, Encoding)
    weights = 16 * sum(parameter.numel() for parameter in model.parameters())
    batch = 9 * 7 * 16 + rows * 7 * numbers * 4
    task = to_train(**train)
    assert memory.batch_bytes(task, device, precision) == batch
    for more, refused in ((0, ""), (-1, "a batch of 9 sequences of 7 tokens needs at least")):
        monkeypatch.setattr(memory, "memory_of", {device: weights + batch + more}.get)
        expected = pytest.raises(InputError, match=refused) if refused else nullcontext()
        for one in (task, to_train(start=task, steps=0)):
            with expected:
                memory.check_task_fits(one, device, precision)
    monkeypatch.setattr(memory, "memory_of", {device: weights - 1}.get)
    with pytest.raises(InputError, match="a model of 5 layers and width 12 needs"):
        memory.check_task_fits(task, device, precision)


def test_frozen_weights_need_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = memory.decoder_parameters(SHAPE)
    task = to_train()
    task.train = AdaptConfig(steps=0, method="lora")
    for precision, size in (("fp32", 4), ("bf16", 2)):
        monkeypatch.setattr(memory, "memory_of", {"cpu": size * numbers}.get)
        memory.check_task_fits(task, "cpu", precision)
        monkeypatch.setattr(memory, "memory_of", {"cpu": size * numbers - 1}.get)
        with pytest.raises(InputError, match=r"needs \d+ KiB for weights, but this machine has"):
            memory.check_task_fits(task, "cpu", precision)


@pytest.mark.parametrize(("shared", "layers"), [(False, 5), (True, 1)])
def test_weights_of_an_encoding_are_counted_for_each_layer(
    monkeypatch: pytest.MonkeyPatch, shared: bool, layers: int
) -> None:
    class Own(Encoding):
        def __init__(self) -> None:
            super().__init__(SHAPE, 0)
            self.weight = torch.nn.Parameter(torch.zeros(3, 4))
            self.register_buffer("table", torch.zeros(8))

    instance = Own()
    instance.shared = shared
    plugin: Any = SimpleNamespace(label="own")
    for more in (0, -1):
        monkeypatch.setattr(memory, "memory_of", {"cpu": 16 * 20 * layers + more}.get)
        with pytest.raises(InputError, match="own needs") if more else nullcontext():
            memory.check_encoding_fits(instance, plugin, to_train())


def test_memory_is_that_of_the_machine_or_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 10, "SC_PHYS_PAGES": 7}.get)
    limits = [tmp_path / name for name in ("new", "old", "absent")]
    monkeypatch.setattr(memory, "LIMITS", limits)
    for words, expected in ((("max", "99"), 70), (("60", "max"), 60), (("60\n", "50\n"), 50)):
        for path, word in zip(limits, words, strict=False):
            path.write_text(word)
        assert memory.memory_of("cpu") == expected
    sizes = [memory._size(size) for size in (1023, 1536, 3 * 2**20, 2**40, 2**51)]
    assert sizes == ["1,023 bytes", "2 KiB", "3 MiB", "1 TiB", "2 PiB"]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3, 8))
    assert memory.memory_of("cuda") == 8


def test_likely_mistakes_are_named_in_encodings_of_ones_own(
    tmp_path: Path, task: ResolvedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward pass, which may end the process, is only for encodings with parameters."""
    source = "from torch import nn, ones\nfrom pe_bench.api import Encoding\n"
    source += "class Mine(Encoding):\n    def __init__(self, model, layer=0):\n"
    encodings = [plugins.load("encoding", "fire")]
    bodies = {"plain": "pass", "own": "self.p = nn.Parameter(ones(1))", "broken": "1 / 0"}
    for name, body in bodies.items():
        path = tmp_path / f"{name}.py"
        path.write_text(f"{source}        super().__init__(model, layer)\n        {body}\n")
        encodings.append(plugins.load("encoding", str(path)))
    monkeypatch.setattr(fitting, "find_oversights", lambda one: [f"typo in {type(one).__name__}"])
    monkeypatch.setattr(fitting, "find_unused_parameters", lambda one: [f"unused in {one.label}"])
    assert fitting.describe_oversights(task, encodings) == [
        "plain.py: typo in Mine",
        "own.py: typo in Mine",
        "own.py: unused in own.py",
    ]


def test_a_crash_leaves_no_note(task: ResolvedTask) -> None:
    class Crashes(Depths):
        def describe_missing_layers(self, encoding: Plugin, config: ModelConfig) -> str | None:
            assert config == task.model
            if encoding.label == "nope":
                raise ZeroDivisionError
            return None if encoding.label == "alibi" else "it acts in layer 4"

    names = ("nope", "rope", "nope", "alibi")
    encodings = [plugins.load("encoding", name) for name in names]
    assert describe_depths(task, encodings, Crashes()) == ["rope on mqar: it acts in layer 4"]


def test_rotations_are_told_where_a_model_of_ours_is_the_origin(
    task: ResolvedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(encoding: Plugin, origin: Plugin, model: ModelConfig) -> list[str]:
        return [f"{encoding.label} after {origin.label}"]

    monkeypatch.setattr(fitting, "describe_rotation", describe)
    rope = plugins.load("encoding", "rope")
    tape = plugins.load("encoding", "tape")
    checkpoint: Any = None
    pretrained = Pretrained(**{**vars(rope), "label": "folder"}, checkpoint=checkpoint)
    encodings: list[Plugin] = [tape]
    for origin in (rope, pretrained):
        facts = {**vars(tape), "encoding": tape, "origin": origin}
        encodings.append(Adapted(**facts, config=AdaptConfig()))
    assert fitting.describe_rotations(task, encodings) == ["tape after rope"]
