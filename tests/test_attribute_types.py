"""A class attribute of a wrong type is refused when the plugin is loaded."""

import inspect
from pathlib import Path

import pytest

from pe_bench.config import ModelConfig
from pe_bench.encoding import Encoding, StatefulEncoding
from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.task import Task

DECLARED = [
    (base, name)
    for base in (Encoding, StatefulEncoding, Task)
    for name in inspect.get_annotations(base)
]


def write(folder: Path, base: type[object], line: str) -> str:
    file = folder / "mine.py"
    file.write_text(
        f"from pe_bench.api import {base.__name__}\n\nclass Mine({base.__name__}):\n    {line}\n"
    )
    return str(file)


@pytest.mark.parametrize(("base", "name"), DECLARED)
def test_a_wrong_type_is_refused_by_name(base: type[object], name: str, tmp_path: Path) -> None:
    spec = write(tmp_path, base, f"{name} = {{0}}")  # no attribute is a set
    with pytest.raises(InputError, match=rf"Mine\.{name} must be .*, not \{{0\}}"):
        plugins.load("task" if base is Task else "encoding", spec)


@pytest.mark.parametrize(
    ("base", "line", "message"),
    [
        (Encoding, "shared = 'no'", "must be True or False, not 'no'"),
        (Encoding, "max_position = True", "must be a whole number or None, not True"),
        (Encoding, "variants = ('base=5e5')", "must be a tuple, not 'base=5e5'"),
        (Task, "gate = '1'", "must be a number or None, not '1'"),
        (Task, "presets = []", "must be a mapping, not "),
        (Task, "headline = 'exact_match'", "must be a Headline, not 'exact_match'"),
    ],
)
def test_the_message_says_what_is_right(
    base: type[object], line: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        plugins.load("task" if base is Task else "encoding", write(tmp_path, base, line))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("base", "line"),
    [
        (Encoding, "max_position = 10"),
        (Encoding, "max_position = None"),
        (Encoding, "max_position = property(lambda self: 10)"),
        (Encoding, "max_position = __import__('numpy').int64(10)"),
        (Task, "gate = 1"),
    ],
)
def test_a_right_type_is_accepted(base: type[object], line: str, tmp_path: Path) -> None:
    plugins.load("task" if base is Task else "encoding", write(tmp_path, base, line))


@pytest.mark.parametrize("name", ["max_position", "eval_samples"])
@pytest.mark.parametrize("value", ["0", "-2", "2.5", "True"])
def test_a_constructor_cannot_set_a_number_that_counts_nothing(
    name: str, value: str, tmp_path: Path
) -> None:
    lines = f"""def __init__(self, model, layer=0):
        super().__init__(model, layer)
        self.{name} = {value}"""
    plugin = plugins.load("encoding", write(tmp_path, Encoding, lines))
    with pytest.raises(
        InputError, match=rf"Mine\.{name} must be a whole number of at least 1, not"
    ):
        plugin.make(ModelConfig(layers=1, heads=2, width=8), 0)


def test_a_name_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    spec = write(tmp_path, Encoding, "leads = ()")
    with pytest.raises(InputError, match=r"Mine\.leads is now called layer_kinds: rename it"):
        plugins.load("encoding", spec)


def test_a_name_with_a_control_character_is_refused(tmp_path: Path) -> None:
    spec = write(tmp_path, Encoding, r"name = 'a\x07b'")
    with pytest.raises(InputError, match="must have a letter or digit, and no colon"):
        plugins.load("encoding", spec)
