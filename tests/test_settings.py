"""The settings of presets follow from the scores in the documentation."""

import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from pe_bench.registry import plugins

ROOT = Path(__file__).parents[1]


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    sys.modules.pop("settings", None)
    import settings  # type: ignore[import-not-found]

    return settings


def test_the_table_is_that_of_the_scores(settings: Any) -> None:
    table = settings.show(settings.read(ROOT / "benchmarks/settings.jsonl"))
    assert table in (ROOT / "docs/quick-settings.md").read_text()


@pytest.mark.slow
def test_the_floors_are_those_of_the_baselines(settings: Any) -> None:
    text = " ".join((ROOT / "docs/quick-settings.md").read_text().split())
    assert settings.describe_floors() in text


def test_the_rule_gives_the_presets(settings: Any) -> None:
    chosen = {}
    rows = settings.read(ROOT / "benchmarks/settings.jsonl")
    for task in settings.FIRST:
        means = {}
        for setting in settings.SETTINGS:
            own = [r for r in rows if (r["task"], r["setting"]) == (task, setting)]
            if {row["seed"] for row in own} == set(settings.SEEDS):
                assert len(own) == len(settings.ENCODINGS) * len(settings.SEEDS)
                means[setting] = mean(row["accuracy"] for row in own)
        assert len(means) == 2, task
        chosen[task] = max(means, key=means.__getitem__)
    presets = {task: plugins.load("task", task).cls.presets["quick"] for task in settings.FIRST}
    assert chosen == {
        "ruler": settings.NO_CURRICULUM,
        "chained-facts": "4 heads",
        "recall": settings.FIRST_VERSION,
    }
    assert presets["ruler"].options["curriculum"] is False
    assert presets["chained-facts"].model.heads == 4
    assert presets["recall"].model.heads == 4


def test_a_task_without_steps_has_no_curriculum(settings: Any) -> None:
    """`settings.py` takes the batches of its setting without a curriculum from such a task."""
    from pe_bench.runs.options import RunOptions
    from pe_bench.runs.resolve import resolve

    for spec in ("ruler:curriculum=true", "chained-facts", "recall"):
        task = resolve(RunOptions(train={"steps": 0}), spec).task
        with_lessons = resolve(RunOptions(), spec).task
        assert not task.batch(None, 1, 0).tokens.equal(with_lessons.batch(None, 1, 0).tokens)
