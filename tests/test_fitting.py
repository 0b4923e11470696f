"""Which encodings a task skips, and which are refused, before anything is trained."""

from pathlib import Path
from typing import Any

import pytest

from pe_bench.checks.depth import Depths
from pe_bench.config import AdaptConfig, ModelConfig
from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.registry.plugins import Plugin
from pe_bench.runs import fitting
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
