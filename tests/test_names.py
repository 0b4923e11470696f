"""Misspelt names in the class of a task are reported before training."""

from pathlib import Path

import pytest
from test_runner import TASK, Toy
from test_runner import toy as toy  # a fixture

from pe_bench.api import LengthGeneralizationTask
from pe_bench.checks.names import find_misspelt
from pe_bench.registry import catalogue, plugins
from pe_bench.task import Task


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("summarise", lambda self, rows: rows, "summarize"),
        ("held_out_batches", lambda self, subset, step: None, "held_out_batch"),
        ("evalute", lambda self, *rest: None, "evaluate"),
        ("own_baseline", property(lambda self: ()), "own_baselines"),
        ("auto_regressive", False, "autoregressive"),
        ("all_subset", ("a",), "all_subsets"),
        ("vocabulry", None, "vocabulary"),
    ],
)
def test_a_misspelt_name_is_named(name: str, value: object, right: str) -> None:
    parent = type("Parent", (LengthGeneralizationTask,), {name: value})
    said = [f"Mine.{name} is never used: did you mean {right}?"]
    assert find_misspelt(type("Mine", (parent,), {})) == said


def test_helpers_with_similar_names_are_fine() -> None:
    names: dict[str, object] = {
        "sample": None,
        "samples": lambda self: None,
        "sample_row": lambda self: None,
    }
    names |= {"_evalute": lambda self: None, "letters": 3}
    assert find_misspelt(type("Mine", (LengthGeneralizationTask,), names)) == []


@pytest.mark.parametrize("name", catalogue.names("task"))
def test_shipped_tasks_have_no_misspelt_names(name: str) -> None:
    cls = plugins.load("task", name).cls
    general = LengthGeneralizationTask
    assert find_misspelt(cls, general if issubclass(cls, general) else Task) == []
    assert find_misspelt(cls) == []


def test_a_run_names_misspelt_names(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "toy.py").write_text(TASK.replace("def summarize", "def summarise"))
    toy()
    shown = capsys.readouterr()
    said = "toy.py: Toy.summarise is never used: did you mean summarize?"
    assert said in " ".join((shown.out + shown.err).split())
