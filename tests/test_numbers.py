"""Numbers stay what they are, or a version says that they have changed.

`numbers.json` holds a digest of what each task evaluates, and losses of tiny models after three
steps. Where a change moves one on purpose, raise what CONTRIBUTING.md ("A rule for numbers") names,
and write the file again; that is refused as long as nothing was raised:

    python tests/test_numbers.py
"""

import hashlib
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from helpers import some_slow

from pe_bench import __version__
from pe_bench.registry import plugins
from pe_bench.running.options import RunOptions
from pe_bench.running.resolve import ResolvedTask, resolve
from pe_bench.running.training import train

FILE = Path(__file__).with_name("numbers.json")
TOLERANCE = 1e-4  # of a loss, relative: processors round differently
TINY = {"layers": 2, "heads": 2, "width": 16, "mlp_width": 16}
Record = dict[str, Any]


def write_corpus(folder: Path) -> Path:
    """Write a small corpus (the default one differs between Python versions); return its folder."""
    for part, lines in (("train", 3000), ("test", 300)):
        (folder / part).mkdir(parents=True)
        text = "".join(f"Line {i}: {i * i % 997} and {i % 13}.\n" for i in range(lines))
        (folder / part / "a.txt").write_text(text)
    return folder


def open_task(name: str, corpus: Path) -> ResolvedTask:
    options = RunOptions(
        cache=corpus / "cache",
        data={"perplexity": corpus},
        train={} if name == "properties" else {"steps": 3, "batch_size": 4, "lr": 1e-2},
        model=TINY,
    )
    return resolve(options, name)


def train_tiny(resolved: ResolvedTask, encoding: str) -> Record:
    """Return the loss of a model after three steps, and the digests of the code that made it."""
    plugin = plugins.load("encoding", encoding)
    task = resolved.task
    subset = task.subsets[0] if task.trains_each_subset else None
    with tempfile.TemporaryDirectory() as work:
        trained = train(
            resolved.make_model(plugin, seed=0),
            lambda step: task.batch(subset, 0, step),
            resolved.train,
            folder=Path(work),
            title=resolved.label,
            seed=0,
            device="cpu",
            precision="fp32",
        )
    sources = [resolved.settings["source"], plugin.source]
    return {"loss": round(trained.loss, 7), "made_by": [__version__, *sources]}


def task_record(name: str, corpus: Path) -> Record:
    """Return what a task evaluates, as a digest, and what it trains."""
    resolved = open_task(name, corpus)
    task = resolved.task
    provenance = {k: v for k, v in task.provenance().items() if k != "folder"}
    items = json.dumps(provenance, sort_keys=True, default=str)
    record = {
        "items": hashlib.sha256(items.encode()).hexdigest()[:16],
        "data": [task.data_label, task.fingerprint],
    }
    trains = resolved.train.steps > 0
    return record | (train_tiny(resolved, "rope") if trains else {})


def encoding_record(name: str, corpus: Path) -> Record:
    """Return what an encoding trains on text."""
    return train_tiny(open_task("perplexity", corpus), name)


TASKS = [f"task {name}" for name in plugins.names("task")]
ENCODINGS = [f"encoding {name}" for name in plugins.names("encoding")]


def current(name: str, corpus: Path) -> Record:
    kind, _, plugin = name.partition(" ")
    return task_record(plugin, corpus) if kind == "task" else encoding_record(plugin, corpus)


def moved(old: Record, new: Record) -> list[str]:
    """Return which numbers are not what they were."""
    found = [] if old.get("items") == new.get("items") else ["items"]
    same = math.isclose(old.get("loss", 0), new.get("loss", 0), rel_tol=TOLERANCE)
    return found if same else [*found, "loss"]


def unexplained(old: Record, new: Record) -> list[str]:
    """Return which numbers have moved although no version, label or plugin file has."""
    reasons = {"items": "data", "loss": "made_by"}
    return [what for what in moved(old, new) if old.get(reasons[what]) == new.get(reasons[what])]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("numbers") / "corpus")


@pytest.mark.parametrize("name", [*TASKS, *some_slow(ENCODINGS, everyday=())])
def test_numbers_are_what_they_were(name: str, corpus: Path) -> None:
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    assert name in stored, "new: python tests/test_numbers.py"
    new = current(name, corpus)
    assert not moved(stored[name], new), f"{stored[name]} -> {new}: see the top of this file"


def test_nothing_is_stored_that_is_gone() -> None:
    assert list(json.loads(FILE.read_text(encoding="utf-8"))) == [*TASKS, *ENCODINGS]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"loss": 2.00001}, []),
        ({"loss": 2.1}, ["loss"]),
        ({"loss": 2.1, "made_by": ["0.2.0", "abc"]}, []),
        ({"items": "beef"}, ["items"]),
        ({"items": "beef", "made_by": ["0.2.0", "abc"]}, ["items"]),
        ({"items": "beef", "data": ["addition-v2", "addition-v2"]}, []),
    ],
)
def test_what_is_refused(changes: Record, expected: list[str]) -> None:
    old = {"items": "cafe", "data": ["addition-v1"] * 2, "loss": 2.0, "made_by": ["0.1.0", "abc"]}
    assert unexplained(old, old | changes) == expected


def write() -> int:
    """Write the file again, unless a number has moved for no stated reason."""
    stored = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(Path(folder) / "corpus")
        new = {name: current(name, corpus) for name in [*TASKS, *ENCODINGS]}
    refused = False
    for name in stored.keys() & new.keys():
        for what in unexplained(stored[name], new[name]):
            print(f"{name}: {what} moved, {stored[name]} -> {new[name]}")
            refused = True
    if refused:
        print("Raise a version first: CONTRIBUTING.md, A rule for numbers.")
        return 1
    FILE.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(write())
