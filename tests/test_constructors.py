"""A constructor that the engine cannot call is refused when its plugin is loaded."""

from pathlib import Path

import pytest

from pe_bench.errors import InputError
from pe_bench.registry import plugins

ENCODING = """
from pe_bench.api import *


class Mine(Encoding):
    def __init__(SIGNATURE):
        pass
"""
TASK = """
from pe_bench.api import *


class _Parent(Task):
    def __init__(self, context, *, digits: int):
        pass


class Mine(CLASS):
    headline = Headline("accuracy", "a")
    vocabulary = Vocabulary(9)
    presets = {
        "quick": Preset(TrainConfig(steps=1), TINY),
        "paper": Preset(TrainConfig(steps=1), TINY, {"digits": 9}),
    }

    def __init__(SIGNATURE):
        pass
"""
TAKES_MODEL = (
    r"Mine.__init__ must take model and layer, and options by keyword: "
    r"def __init__\(self, model, layer, \*, \.\.\.\)"
)
TAKES_CONTEXT = (
    r"must take context, and options by keyword: def __init__\(self, context, \*, \.\.\.\)"
)
NOT_KEYWORD_ONLY = r"base is not an option, .* write \* before it in Mine.__init__"


@pytest.mark.parametrize(
    ("signature", "sentence"),
    [
        ("self", TAKES_MODEL),
        ("self, model", TAKES_MODEL),
        ("self, *, model, layer, base: int = 3", TAKES_MODEL),
        ("self, model, layer, base", NOT_KEYWORD_ONLY),
        (
            "self, model, layer=0, *, base: int",
            r"needs a value of its option 'base': write .*:base=",
        ),
    ],
)
def test_a_constructor_of_an_encoding_that_cannot_be_called(
    signature: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(ENCODING.replace("SIGNATURE", signature))
    with pytest.raises(InputError, match=sentence):
        plugins.load("encoding", str(path))


@pytest.mark.parametrize(
    ("signature", "sentence"),
    [
        ("self", TAKES_CONTEXT),
        ("self, *, context, digits: int = 3", TAKES_CONTEXT),
        ("self, context, base", NOT_KEYWORD_ONLY),
        ("self, context, *, digits: int", r"needs a value of its option 'digits'"),
    ],
)
def test_a_constructor_of_a_task_that_cannot_be_called(
    signature: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(TASK.replace("SIGNATURE", signature).replace("CLASS", "Task"))
    with pytest.raises(InputError, match=sentence):
        plugins.load("task", str(path), "quick")


@pytest.mark.parametrize(
    ("parent", "signature", "options", "preset"),
    [
        ("Task", "self, *given, **options", "", "quick"),
        ("Task", "self, context, base=3", "", "quick"),
        ("Task", "self, context, *, digits: int", ":digits=5", "quick"),
        ("Task", "self, context, *, digits: int", "", "paper"),  # the preset has the option
        ("Task", "self, context, *, digits: int", "", ""),  # of an unknown preset
        ("_Parent", "self, context, **options", "", "quick"),  # may give its parent the option
    ],
)
def test_a_constructor_that_can_be_called(
    parent: str, signature: str, options: str, preset: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    code = TASK if "digits" in signature or parent == "_Parent" else TASK.replace('"digits": 9', "")
    path.write_text(code.replace("SIGNATURE", signature).replace("CLASS", parent))
    assert plugins.load("task", f"{path}{options}", preset).version
