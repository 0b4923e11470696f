"""Every check of tasks detects its defect, and no other check fails because of it."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import some_slow

from pe_bench.checks import encodings, table, task_subject
from pe_bench.checks.findings import run_check
from pe_bench.checks.task_subject import TaskSubject, observe
from pe_bench.checks.tasks import CHECKS, examine
from pe_bench.cli import main
from pe_bench.registry import plugins
from pe_bench.task import Evaluation, Vocabulary

SORTING = """
import itertools
import numpy as np
from dataclasses import replace
from pe_bench.api import *

ASK = FIRST + 10
calls = itertools.count()


class Sorting(LengthGeneralizationTask):
    headline = Headline("exact_match", OOD)
    axes = {"length": "digits", "second": ""}
    vocabulary = Vocabulary(FIRST + 11)
    presets = {"quick": Preset(TrainConfig(steps=10, batch_size=64), TINY)}

    def eval_points(self, subset):
        return [EvalPoint(n, split=ID if n <= 8 else OOD) for n in (4, 8, 16)]

    def items(self, subset, point):
        rng = np.random.default_rng([99, point.length])
        return self.draw(rng, [point.length] * self.samples)

    def batch(self, subset, seed, step):
        rng = np.random.default_rng([seed, step])
        return self.draw(rng, rng.integers(4, 9, self.train.batch_size)).batch()

    def draw(self, rng, sizes):
        samples = []
        for size in sizes:
            digits = rng.integers(FIRST, FIRST + 10, size)
            samples.append([Turn([*digits, ASK], [*sorted(digits), END])])
        return collate(samples)
"""

# A part of the task above and its replacement; the check that fails, and its message.
BROKEN = {
    "draws batches from no seed": (
        "default_rng([seed, step])",
        "default_rng()",
        {"batch": "step 5 of seed 0 gives another batch in a second call"},
    ),
    "counts its batches": (
        "default_rng([seed, step])",
        "default_rng([seed, step, next(calls)])",
        {"batch": "step 5 of seed 0 gives another batch in"},
    ),
    "remembers its first batch": (
        "        rng = np.random.default_rng([seed, step])",
        "        self.first = getattr(self, 'first', step)\n"
        "        rng = np.random.default_rng([seed, step, self.first])",
        {"batch": "step 5 of seed 0 gives another batch in a new instance of the task"},
    ),
    "trains on one batch": (
        "default_rng([seed, step])",
        "default_rng([seed])",
        {"steps": "steps 0 and 1 of seed 0 give the same batch"},
    ),
    "draws items from no seed": (
        "default_rng([99, point.length])",
        "default_rng()",
        {"items": "cells gives another model, of another seed, other items"},
    ),
    "draws the same item again and again": (
        "            digits = rng.integers(FIRST, FIRST + 10, size)",
        "            if size == sizes[0]:\n"
        "                rng = np.random.default_rng(len(sizes))\n"
        "            digits = rng.integers(FIRST, FIRST + 10, size)",
        {"items": "rows that cells is evaluated on differ, although all count as independent"},
    ),
    "draws items from the global state": (
        "rng = np.random.default_rng([99, point.length])",
        "rng = np.random.default_rng(np.random.randint(99))",
        {"items": "cells gives another model, of another seed, other items"},
    ),
    "is evaluated on what it trains on": (
        "        return self.draw(rng, [point.length] * self.samples)",
        "        rng = np.random.default_rng([0, {4: 2, 8: 3, 16: 4}[point.length]])\n"
        "        return self.draw(rng, rng.integers(4, 9, self.train.batch_size))",
        {"apart": "rows that cells is evaluated on are in the first 10 training batches"},
    ),
    "has a mean that is none": (
        "    def draw(self",
        "    def mean(self, name, rows, status='ranked'):\n"
        "        return replace(super().mean(name, rows, status), value=7.0)\n\n"
        "    def draw(self",
        {
            "scores": "is 7 and its items give 0",
            "baselines": "'guessing': the row of 'in-distribution', 'exact_match' has 7, outside",
        },
    ),
    "keeps items of a row that is none": (
        "    def draw(self",
        "    def measure(self, subset, point, scores):\n"
        "        found = super().measure(subset, point, scores)\n"
        "        return [replace(each, groups=(RowKey('far'),)) for each in found]\n\n"
        "    def draw(self",
        {"scores": "items name exact_match of far, which is not among the rows"},
    ),
    "has a headline that is never measured": (
        'Headline("exact_match", OOD)',
        'Headline("exact_match", "far")',
        {"headline": "the headline, exact_match of far, is not among the rows"},
    ),
    "has a headline without a direction": (
        'Headline("exact_match", OOD)',
        'Headline("speed", OOD)',
        {"headline": "the metric speed has no direction: add it to `metrics`"},
    ),
    "has longer items than declared": (
        "    def draw(",
        "    max_eval_tokens = 20\n\n    def draw(",
        {"lengths": "cells is evaluated on 33 tokens, max_eval_tokens is 20"},
    ),
    "has longer batches than declared": (
        "rng.integers(4, 9,",
        "rng.integers(4, 12,",
        {"lengths": "a batch has 23 tokens, train_length is 18"},
    ),
    "scores nothing": (
        "return self.draw(rng, rng.integers(4, 9, self.train.batch_size)).batch()",
        "tokens = self.draw(rng, rng.integers(4, 9, self.train.batch_size)).batch().tokens\n"
        "        return Batch(tokens, tokens * 0 + IGNORE)",
        {
            "ids": "the batch of step 0 has no target that counts",
            "baselines": "no target counts in the training batches of the baselines",
            "shortcuts": "no target counts in the training batches of the baselines",
        },
    ),
    "has targets of another shape": (
        "self.train.batch_size)).batch()",
        "self.train.batch_size)).batch()._replace(targets=torch.zeros(64, 2).long())",
        {"ids": "the batch of step 0 has tokens (64, 17) and targets (64, 2), not (B, T) of both"},
    ),
    "summarizes a missing subset": (
        "    def draw(",
        "    def summarize(self, measured):\n        rows = super().summarize(measured)\n"
        "        return [rows[0], *rows[1:]]\n\n    def draw(",
        {"summary": "Sorting.summarize: IndexError: list index out of range ("},
    ),
    "forgets its journal": (
        "    def draw(",
        "    def evaluate(self, model, subset, seed, journal):\n"
        "        rows = super().evaluate(model, subset, seed, journal).rows\n"
        "        return Evaluation([replace(row, n=next(calls)) for row in rows])\n\n"
        "    def draw(",
        {"resume": "cells gives other rows when it resumes from its journal"},
    ),
}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write a plugin file of a task and return its path."""

    def write(old: str = "", new: str = "") -> str:
        assert old in SORTING
        path = tmp_path / "sorting.py"
        path.write_text("import torch\n" + SORTING.replace(old, new, 1))
        return str(path)

    return write


def findings(spec: str, cache: Path) -> dict[str, str]:
    """Return the name of each failed check, and the reason."""
    found = examine(TaskSubject.of(plugins.load("task", spec, "quick"), cache))
    assert list(found) == list(CHECKS)
    return {name: finding.reason for name, finding in found.items() if finding.bad}


def test_an_honest_task(write: Any, tmp_path: Path) -> None:
    found = examine(TaskSubject.of(plugins.load("task", write(), "quick"), tmp_path))
    assert {finding.status for finding in found.values()} == {"ok"}  # rows could be compared


EVERYDAY = ("is evaluated on what it trains on",)


@pytest.mark.parametrize("what", some_slow(BROKEN, EVERYDAY))
def test_broken_tasks(what: str, write: Any, tmp_path: Path) -> None:
    old, new, expected = BROKEN[what]
    found = findings(write(old, new), tmp_path)
    assert set(found) == set(expected), found
    for check, reason in expected.items():
        assert reason in found[check]


@pytest.mark.parametrize("what", [what for what in BROKEN if what not in EVERYDAY])
def test_a_check_alone(what: str, write: Any, tmp_path: Path) -> None:
    old, new, expected = BROKEN[what]
    plugin = plugins.load("task", write(old, new) + ":samples=4", "quick")
    for check, reason in expected.items():
        if check != "shortcuts":
            finding = run_check(CHECKS[check], TaskSubject.of(plugin, tmp_path))
            assert finding.bad and reason in finding.reason


@pytest.mark.slow
def test_rows_of_the_phase_of_a_subset_are_compared(write: Any, tmp_path: Path) -> None:
    """Each subset has batches with other digits; the second one is evaluated on its batches."""
    path = Path(write("default_rng([seed, step])", "default_rng([seed, step, subset == 'two'])"))
    source = path.read_text().replace("[99, point.length]", "[0, 3, 1]")
    source = source.replace("[point.length] * self.samples", "rng.integers(4, 9, 64)")
    subsets = "    all_subsets = ('one', 'two')\n    trains_each_subset = True\n\n    def items("
    path.write_text(source.replace("    def items(", subsets))
    subject = TaskSubject.of(plugins.load("task", f"{path}:samples=4", "quick"), tmp_path)
    finding = run_check(CHECKS["apart"], subject)
    assert "rows that two is evaluated on are in the first 10 training" in finding.reason


@pytest.mark.parametrize(("value", "wrong"), [("5e-7", False), ("2e-6", True)])
def test_a_mean_may_differ_by_rounding(value: str, wrong: bool, write: Any, tmp_path: Path) -> None:
    old, new, _ = BROKEN["has a mean that is none"]
    spec = write(old, new.replace("7.0", value)) + ":samples=4"
    subject = TaskSubject.of(plugins.load("task", spec, "quick"), tmp_path)
    assert run_check(CHECKS["scores"], subject).bad is wrong


@pytest.mark.parametrize("spec", ["copying", "copying:samples=7"])
def test_an_evaluation_is_small_and_a_search_is_not(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_subject, "search", lambda task: task)
    plugin = plugins.load("task", spec, "quick")
    subject = TaskSubject.of(plugin, tmp_path)
    found: Any = (subject.task, subject.shortcut_scores)
    small = plugin.cls.check_options["samples"]
    if plugin.options:
        assert [task.samples for task in found] == [7, 7]
    else:
        assert found[0].samples == small < found[1].samples


def test_the_same_seed_gives_the_same_model_and_draws() -> None:
    """Tasks that use a global generator have other items with another seed."""
    draws: list[tuple[float, ...]] = []

    def evaluate(model: Any, *_: Any) -> Evaluation:
        weight = float(model.lm_head.weight[0, 0])
        drawn = (weight, random.random(), np.random.random(), float(torch.rand(())))
        draws.append(drawn)
        return Evaluation([])

    task: Any = SimpleNamespace(vocabulary=Vocabulary(9), train_length=8, evaluate=evaluate)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    unused = (random.random(), np.random.random(), float(torch.rand(())))
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    for seed in (0, 0, 1):
        observe(task, "cells", seed)
    first, second, same, _, *others = draws  # each evaluation is done twice
    assert (random.random(), np.random.random(), float(torch.rand(()))) == unused
    assert first == same and not set(first[1:]) & set(second)
    assert not set(first) & set(others[0]) and len(draws) == 6


def test_a_vocabulary_that_is_too_small(write: Any, tmp_path: Path) -> None:
    found = findings(write("Vocabulary(FIRST + 11)", "Vocabulary(FIRST + 8)"), tmp_path)
    assert found["ids"] == (
        "the batch of step 0 has tokens from 0 to 12, but the vocabulary has the ids 0 to 9"
    )
    assert found["headline"] == "tokens have ids from 2 to 12, but must be 0 to 9"


SHORTCUT = """

    def sample(self, rng, subset, point):
        digits = rng.integers(FIRST, FIRST + 10, point.length)
        return [Turn([*digits, ASK], [int(digits[-1]), END])]

    def draw(self, rng, sizes):
        return collate([self.sample(rng, "cells", EvalPoint(size)) for size in sizes])
"""


@pytest.mark.slow
def test_a_shortcut_fails_until_the_docstring_explains_it(write: Any, tmp_path: Path) -> None:
    path = Path(write())
    easy = path.read_text().replace("class Sorting", "class Echo") + SHORTCUT
    path.write_text(easy)
    found = findings(str(path), tmp_path)
    assert set(found) == {"shortcuts"}
    assert "n-gram table (100 % in distribution, 100 % out of it)" in found["shortcuts"]
    head, _, rest = easy.partition("LengthGeneralizationTask):\n")
    said = '    """Echoes.\n\n    Shortcuts:\n        n-gram table: it is about these.\n    """\n\n'
    path.write_text(f"{head}LengthGeneralizationTask):\n{said}{rest}")
    assert findings(str(path), tmp_path) == {}


@pytest.mark.slow
def test_rows_that_recur_by_chance_are_not_compared(tmp_path: Path) -> None:
    """There are few lists of one symbol, so training and evaluation share some."""
    subject = TaskSubject.of(plugins.load("task", "copying:samples=50", "quick"), tmp_path)
    assert examine(subject)["apart"].status == "ok"


@pytest.mark.slow
def test_the_command_tells_kinds_apart(
    write: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(encodings, "CHECKS", {"causal": encodings.CHECKS["causal"]})
    monkeypatch.chdir(tmp_path)
    write()
    assert main(["check", "nope", "./sorting.py:samples=4", "probes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    numbers = [line.split()[-4:] for line in lines if line.startswith("probes index ")]
    assert [words[1::2] for words in numbers] == [["%", "%"]]
    start = next(i for i, line in enumerate(lines) if line.startswith("sorting.py"))
    assert lines[1].startswith("nope ")
    counts = [str(len(CHECKS) + 1), "0", "0"]
    assert [line.split()[1:] for line in lines[start : start + 2]] == [counts, counts]
    write("default_rng([seed, step])", "default_rng([seed, step, next(calls)])")
    assert main(["check", "./sorting.py"]) == 1
    last = capsys.readouterr().out.splitlines()[-2]
    assert last == "sorting.py: batch: step 5 of seed 0 gives another batch in a second call"
    assert main(["check", "./sorting.py:sampels=4"]) == 2
    assert "no option 'sampels' (did you mean 'samples'?)" in capsys.readouterr().err


@pytest.mark.parametrize("good", [(True, True), (True, False), (False, True)])
def test_the_exit_code_is_of_encodings_and_tasks(
    good: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "check_encodings", lambda *_, **__: good[0])
    monkeypatch.setattr(table, "check_tasks", lambda *_, **__: good[1])
    assert main(["check", "nope", "passkey"]) == (0 if all(good) else 1)
