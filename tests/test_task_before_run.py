"""A user's task is tested before anything is trained, and refused in one sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pe_bench.checks import task_before_run
from pe_bench.checks.other_process import digest_data
from pe_bench.checks.task_subject import TaskSubject
from pe_bench.cli import main
from pe_bench.registry import catalogue, plugins

BITS = '''
from dataclasses import replace
import numpy as np
from pe_bench.api import *


class Bits(LengthGeneralizationTask):
    """Bits and their parity."""

    headline = Headline("exact_match", OOD)
    vocabulary = Vocabulary(FIRST + 3)
    presets = {"quick": Preset(TrainConfig(steps=1), TINY)}

    def eval_points(self, subset):
        return [EvalPoint(n, split=ID if n <= 8 else OOD) for n in (8, 16)]

    def sample(self, rng, subset, point):
        bits = rng.integers(0, 2, point.length)
        return [Turn([*(FIRST + bits).tolist(), FIRST + 2], [FIRST + int(bits.sum() % 2)])]
'''
BATCH = """
    def batch(self, subset, seed, step):
        batch = super().batch(subset, seed, step)
        return CHANGED
"""
MEASURE = """
    def measure(self, subset, point, scores):
        found = super().measure(subset, point, scores)
        found[0].values[:] = VALUE
        return found
"""
ITEMS = """
    def items(self, subset, point):
        rng = np.random.default_rng([1, point.length])
        row = self.sample(np.random.default_rng(1), subset, point)
        return collate(ROWS)
"""
EVALUATE = """
    def evaluate(self, model, subset, seed, journal):
        return RESULT
"""
BASELINES = """
    def baselines(self):
        return ROWS
"""
DRAWN = "rng.integers(0, 2"
HEADLINE = 'Headline("exact_match", OOD)'
JOURNAL = """
    def evaluate(self, model, subset, seed, journal):
        found = super().evaluate(model, subset, seed, journal)
        seen = len(journal.items) > 2
        journal.add({"seen": 1})
        return found._replace(rows=found.rows[1:]) if seen else found
"""

# A part of the task and its replacement, or lines after it; the sentence that refuses it.
FAULTS = {
    "global generator": (
        DRAWN, "np.random.randint(0, 2",
        "step 5 of seed 0 gives another batch in a second call",
    ),
    "unseeded generator": (
        DRAWN, "np.random.default_rng().integers(0, 2",
        "step 5 of seed 0 gives another batch in a second call",
    ),
    "unseeded items": (
        "", ITEMS.replace("ROWS", "[self.sample(np.random, subset, point)] * 2 + [row]").replace(
            "np.random, ", "np.random.default_rng(), "),
        "cells gives another model, of another seed, other items",
    ),
    "one item": (
        "", ITEMS.replace("ROWS", "[row] * 9"),
        "only 2 of 18 rows that cells is evaluated on differ",
    ),
    "hash of a string": (
        "bits = ", 'rng = np.random.default_rng(abs(hash(f"{rng.integers(99)}")))\n        bits = ',
        "training batches and items of cells differ in another process: they must not depend on",
    ),
    "number of the process": (
        "bits = ", "rng = np.random.default_rng([__import__('os').getpid(), rng.integers(99)])\n"
        "        bits = ",
        "training batches and items of cells differ in another process",
    ),
    "batch of floats": (
        "", BATCH.replace("CHANGED", "Batch(batch.tokens.float(), batch.targets)"),
        "the batch of step 0 has tokens of torch.float32, not torch.int64",
    ),
    "batch of small integers": (
        "", BATCH.replace("CHANGED", "Batch(batch.tokens, batch.targets.int())"),
        "the batch of step 0 has targets of torch.int32, not torch.int64",
    ),
    "batch of arrays": (
        "", BATCH.replace("CHANGED", "Batch(batch.tokens.numpy(), batch.targets.numpy())"),
        "the batch of step 0 has tokens of the type ndarray, not a tensor",
    ),
    "no batch": (
        "", BATCH.replace("CHANGED", "None"),
        "the batch of step 0 is of the type NoneType, not a Batch of tokens and targets",
    ),
    "negative targets": (
        "", BATCH.replace("CHANGED", "Batch(batch.tokens, batch.targets * 0 - 1)"),
        "the batch of step 0 has targets from -1 to -1, but the vocabulary has the ids 0 to 4",
    ),
    "longer batches": (
        "", BATCH.replace("CHANGED", "Batch(*(each.repeat(1, 2) for each in batch))"),
        "a batch has 18 tokens, train_length is 10",
    ),
    "ids outside the vocabulary": (
        "bits.sum() % 2)", "bits.sum() % 2) + 9 * (point.length == 16)",
        "an item of cells at length 16 has the ids 2 to 12, but the vocabulary has 0 to 4",
    ),
    "headline without a measurement": (
        HEADLINE, 'Headline("accuracy", OOD)',
        "the headline, accuracy of out-of-distribution, is not among the rows",
    ),
    "score above 100 %": (
        "", MEASURE.replace("VALUE", "101"), "has 101 %, but a score is 0 to 100 %",
    ),
    "mean of other items": (
        "", "\n    def mean(self, name, rows, status='ranked'):\n"
        "        found = super().mean(name, rows, status)\n"
        "        return replace(found, value=7.0, ci_low=0.0, ci_high=9.0)\n",
        "is 7 and its items give",
    ),
    "no evaluation": (
        "", EVALUATE.replace("RESULT", "{'exact_match': 50.0}"),
        "evaluate must return an Evaluation, not {'exact_match': 50.0}",
    ),
    "other rows after a restart": (
        "", JOURNAL, "cells gives other rows when it resumes from its journal",
    ),
    "baselines without names": (
        "", BASELINES.replace("ROWS", "[5.0]"),
        "baselines must return a dict of rows by name, not [5.0]",
    ),
    "baseline of a number": (
        "", BASELINES.replace("ROWS", "{'zeros': 5.0}"),
        "the baseline 'zeros' must be a list of rows, not 5.0",
    ),
    "baseline without the headline": (
        "", BASELINES.replace("ROWS", "{'zeros': [Measurement('cells', 'exact_match', 5.0, 9)]}"),
        "the baseline 'zeros' lacks the headline, exact_match of out-of-distribution",
    ),
    "summary that needs every subset": (
        "", "\n    def summarize(self, measured):\n        return [None]\n",
        "a row must be a Measurement, not None",
    ),
    "misspelt method": (
        "def sample", "def samples", "Bits does not define sample, but samples: rename it",
    ),
    "missing method": (
        "def sample", "def draw", "Bits does not define sample, which its runs need",
    ),
    "missing points": (
        "def eval_points", "def points", "Bits does not define eval_points",
    ),
    "axes without the second": (
        "    vocabulary", '    axes = {"length": "bits"}\n    vocabulary',
        "must give a title to 'length' and 'second', as in {'length': 'tokens', 'second': ''}",
    ),
    "no list of turns": (
        "return [Turn([*(FIRST + bits).tolist(), FIRST + 2], [FIRST + int(bits.sum() % 2)])]",
        "return Turn([FIRST], [FIRST])", "a sample must be a list of Turns, not Turn(prompt=[2]",
    ),
    "answer without a list": (
        "[FIRST + int(bits.sum() % 2)]", "FIRST + int(bits.sum() % 2)",
        "the answer of a Turn must be a list of ids, not ",
    ),
    "no points": (
        "return [EvalPoint", "[EvalPoint", "eval_points must return a list of EvalPoints, not None",
    ),
    "points of numbers": (
        "return [EvalPoint(n, split=ID if n <= 8 else OOD) for n", "return [n for n",
        "eval_points must return a list of EvalPoints, not of 8",
    ),
    "length of a float": (
        "EvalPoint(n,", "EvalPoint(n + 0.5,",
        "point of cells has the length 8.5, which must be a whole number of at least 0",
    ),
    "misspelt attribute": (
        "headline =", "headlines =", "Bits does not define headline, but headlines: rename it",
    ),
    "missing attribute": (
        "vocabulary =", "ids =", "Bits does not define vocabulary, which its runs need",
    ),
    "constructor without its parent": (
        "    def eval", "    def __init__(self, context):\n        pass\n\n    def eval",
        "Bits.__init__ must first call super().__init__, which sets name",
    ),
    "metric of a text": (
        "    vocabulary", '    metrics = {"exact_match": "%"}\n    vocabulary',
        "Bits.metrics['exact_match'] must be a Metric, not '%'",
    ),
    "no metric": (
        "    vocabulary", "    point_metrics = ()\n    vocabulary",
        "bits has no point_metrics: name one, such as exact_match",
    ),
    "misspelt option of a preset": (
        "TINY)", 'TINY, {"sampels": 8})',
        "presets['quick'] sets the option 'sampels', which does not exist (did you mean 'samples'",
    ),
    "default of another type": (
        "    def eval",
        "    def __init__(self, context, *, most: int = '8', **options):\n"
        "        super().__init__(context, **options)\n\n    def eval",
        "the option 'most' of Bits has the default '8', which is not one of its values: a whole",
    ),
    "vocabulary of a float": (
        "FIRST + 3)", "5.0)", "a Vocabulary needs a whole number of ids of at least 1, not 5.0",
    ),
}  # fmt: skip


PLAIN = """
import torch
from pe_bench.api import *


class Bits(Task):
    headline = Headline("accuracy", "b")
    all_subsets = ("a", "b")
    max_eval_tokens = 12
    vocabulary = Vocabulary(9)
    presets = {"quick": Preset(TrainConfig(steps=1, batch_size=2, length=8), TINY)}

    def batch(self, subset, seed, step):
        tokens = torch.randint(9, (2, 9), generator=torch.Generator().manual_seed(seed + step))
        return Batch(tokens[:, :-1], tokens[:, 1:])

    def evaluate(self, model, subset, seed, journal):
        tokens = self.batch(None, 99, 0).tokens
        value = 50.0
        model(tokens)
        return Evaluation([Measurement(subset, "accuracy", value, 2)])
"""
VALUE = "        value = 50.0\n"

# A valid task: a part of one of the tasks above and its replacement, and more words of the command.
VALID = {
    "bits": (BITS, "", "", ()),
    "plain": (PLAIN, "", "", ()),
    "a subset without the headline": (PLAIN, "", "", ("--subsets", "a")),
    "a number of NumPy in the journal": (
        PLAIN, VALUE,
        "        import numpy as np\n        if 'x' not in journal.items:\n"
        "            journal.add({'x': np.mean([50.0])})\n        value = journal.items['x']\n", (),
    ),
    "another time in each evaluation": (
        PLAIN.replace("    headline", "    measures_time = True\n    headline"),
        VALUE, "        import time\n        value = time.monotonic() % 1\n", (),
    ),
    "no value for an untrained model": (
        PLAIN, VALUE,
        "        largest = model(tokens).softmax(-1).max()\n"
        "        value = float('nan') if model.config.width == 16 else 50.0\n", (),
    ),
    "the same items for several metrics": (
        PLAIN, "        model(tokens)\n", "        [model(tokens) for _ in range(5)]\n", (),
    ),
    "a decoding loop": (
        PLAIN, "        model(tokens)\n",
        "        for _ in range(4):\n            next_ids = model(tokens)[:, -1:].argmax(-1)\n"
        "            tokens = torch.cat([tokens, next_ids], 1)\n",
        (),
    ),
    "baselines that fail": (
        BITS, "    def eval", "    def baselines(self):\n        return {}[0]\n\n    def eval", (),
    ),
    "axes as a property": (
        PLAIN, "    def batch",
        "    @property\n    def axes(self):\n"
        "        return {'length': 'words', 'second': ''}\n\n    def batch", (),
    ),
    "check_options that the task refuses": (
        BITS, "    def eval",
        "    def __init__(self, context, **more):\n        super().__init__(context, **more)\n"
        "        self.check_range(samples=(self.samples, 10, 100))\n\n    def eval", (),
    ),
    "int32 tokens": (
        PLAIN, "Batch(tokens[:, :-1],", "Batch(tokens[:, :-1].int(),", (),
    ),
    "a tuple of turns": (
        BITS, "[Turn([*(FIRST + bits).tolist(), FIRST + 2], [FIRST + int(bits.sum() % 2)])]",
        "(Turn([*(FIRST + bits).tolist(), FIRST + 2], [FIRST + int(bits.sum() % 2)]),)", (),
    ),
    "points in another collection": (
        BITS, "return [EvalPoint(n, split=ID if n <= 8 else OOD) for n in (8, 16)]",
        "return {n: EvalPoint(n, split=ID if n <= 8 else OOD) for n in (8, 16)}.values()", (),
    ),
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the command that runs `bits.py` of the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path / "cache"))
    return ["run", "--encoding", "nope", "--no-report", "--task", "./bits.py"]


@pytest.mark.slow
@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_refused_before_anything_is_trained(
    what: str, run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, sentence = FAULTS[what]
    assert old in BITS
    code = BITS.replace(old, new, 1) if old else BITS + new
    (tmp_path / "bits.py").write_text(code)
    assert main(run) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert sentence in said
    assert not (tmp_path / "results/runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("what", VALID)
def test_a_valid_task_is_not_refused(what: str, run: list[str], tmp_path: Path) -> None:
    code, old, new, words = VALID[what]
    assert old in code
    (tmp_path / "bits.py").write_text(code.replace(old, new, 1) if old else code)
    assert main([*run, *words, "--dry-run"]) == 0


def test_options_that_the_constructor_lacks_do_not_end_the_test(
    run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    constructor = """
    def __init__(self, context, *, most: int = 3):
        super().__init__(context, samples=20)
"""
    (tmp_path / "bits.py").write_text(BITS.replace(DRAWN, "np.random.randint(0, 2") + constructor)
    assert main(run) == 2
    assert "gives another batch in a second call" in capsys.readouterr().err


def test_a_good_task_runs_and_finished_runs_are_not_tested_again(
    run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bits.py").write_text(BITS)
    tested: list[str] = []

    def check(subject: TaskSubject) -> None:
        tested.append(subject.plugin.label)

    monkeypatch.setattr(task_before_run, "CHECKS", (*task_before_run.CHECKS, check))
    assert main([*run, "--seeds", "0"]) == 0
    assert tested == ["bits.py"]
    assert main([*run, "--seeds", "0"]) == 0
    assert tested == ["bits.py"]
    assert main([*run, "--seeds", "0", "1", "--dry-run"]) == 0
    assert tested == ["bits.py", "bits.py"]


@pytest.mark.slow
def test_the_other_process_has_the_settings_of_the_run(run: list[str], tmp_path: Path) -> None:
    code = BITS.replace("TINY)}", 'TINY), "small": Preset(TrainConfig(steps=1), TINY)}')
    constructor = """
    def __init__(self, context, **options):
        super().__init__(context, **options)
        if (context.preset, context.train.lr) != ("small", 0.5):
            raise InputError("other settings")
"""
    (tmp_path / "bits.py").write_text(code + constructor)
    assert main([*run, "--preset", "small", "--train.lr", "0.5"]) == 0
    assert main([*run, "--preset", "small", "--train.lr", "0.25"]) == 2


CRASH = EVALUATE.replace("return RESULT", "raise ERROR")


@pytest.mark.parametrize(
    ("error", "code"), [("ZeroDivisionError('mine')", 1), ("DataError('mine')", 2)]
)
def test_a_run_reports_a_crash_and_missing_data(
    error: str, code: int, run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bits.py").write_text(BITS + CRASH.replace("ERROR", error))
    assert main(run) == code
    (file,) = tmp_path.glob("results/runs/*/*/*/run.json")
    assert "mine" in json.loads(file.read_text())["reason"]


def test_shipped_tasks_are_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_before_run, "TaskSubject", None)
    plugin = plugins.load("task", "mqar", "quick")
    assert task_before_run.find_task_fault(plugin, plugin.cls.make().context) is None


DIGESTS = """
import json, sys
from pathlib import Path
from test_task_before_run import digests
print("digests:", json.dumps(digests(Path(sys.argv[1]))))
"""


def digests(cache: Path) -> dict[str, dict[str, str]]:
    """Return the digests of batches and items of each shipped task that does not measure time."""
    found = {}
    for name in catalogue.names("task"):
        plugin = plugins.load("task", name, "quick")
        if not plugin.cls.measures_time:
            found[name] = digest_data(TaskSubject.of(plugin, cache))
    return found


@pytest.mark.slow
def test_shipped_tasks_are_the_same_in_another_process(cache_folder: Path) -> None:
    """As `processes` of each task, with one other process for all of them."""
    paths = [str(Path(__file__).parent), *sys.path]
    other = subprocess.Popen(
        [sys.executable, "-c", DIGESTS, str(cache_folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    own = digests(cache_folder)  # at the same time
    out, _ = other.communicate()
    line = next(line for line in out.splitlines() if line.startswith("digests: "))
    assert json.loads(line.removeprefix("digests: ")) == own
