"""Plan, shards, worker processes and display of a grid."""

import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from filelock import FileLock
from test_runner import TASK, Toy, record
from test_runner import toy as toy  # a fixture

from pe_bench.errors import DataError, InputError
from pe_bench.grid import grid, plan
from pe_bench.grid.cost import CostCounter, RunCost, TrainingShape, describe_training_cost
from pe_bench.grid.display import Display
from pe_bench.grid.estimate import Estimates, Parts, RunTimes
from pe_bench.grid.execution import ExecutionOptions
from pe_bench.grid.executors import worker_main as worker_process
from pe_bench.grid.executors.executor import Executor, Tried
from pe_bench.grid.executors.processes import Processes, make_work
from pe_bench.grid.executors.serial import Serial
from pe_bench.grid.executors.worker import Worker
from pe_bench.grid.outdated import describe_changed_code
from pe_bench.grid.overview import Overview
from pe_bench.grid.plan import make_plan
from pe_bench.grid.planned_run import PlannedRun
from pe_bench.grid.shard import Shard
from pe_bench.grid.spec import GridSpec
from pe_bench.registry import catalogue
from pe_bench.registry.importing import Kind
from pe_bench.registry.plugins import Plugin, load
from pe_bench.results.record import RunRecord
from pe_bench.results.store import key_of
from pe_bench.runs.factory import RunFactory
from pe_bench.runs.options import RunOptions
from pe_bench.runs.outcome import Busy, Outcome
from pe_bench.runs.phases import Start
from pe_bench.runs.resolve import ResolvedTask, resolve
from pe_bench.runs.run import Run
from pe_bench.system import console
from pe_bench.system.console import Bar, View, show_clock, show_duration, showing
from pe_bench.system.environment import name_of
from pe_bench.train.threads import threads_of_run

DIES = """
import os
from pe_bench.api import Encoding

class Dies(Encoding):
    def embed(self, x, positions):
        if "GO_ON" not in os.environ:
            os.kill(os.getpid(), 9)
        return x
"""


def rows(folder: Path) -> dict[str, bytes]:
    """Return the rows of all runs of a results folder, by run."""
    found = folder.glob("runs/*/*/*/rows.csv")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


# The plan.


@pytest.mark.slow
def test_a_dry_run_shows_the_plan_and_does_nothing(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert toy("--dry-run", encodings=("nope", "rope")) == (0, [])
    out = capsys.readouterr().out
    assert "2 runs: 0 done, 2 to do\ntime: unknown" in out
    assert "to do    rope · toy.py · seed 0 (time unknown)" in out
    assert not (tmp_path / "results").exists()
    toy(fail="b")
    toy("--seeds", "1")
    capsys.readouterr()
    assert toy("--dry-run", "--seeds", "0-2", encodings=("nope", "all"))[0] == 0
    out = capsys.readouterr().out
    assert "done     nope · toy.py · seed 1\n" in out
    assert re.search(
        r"^to do    nope · toy\.py · seed 0 \(begun, about \d+ s\)$", out, re.MULTILINE
    )
    assert "from 1 earlier run on such a device" in out
    assert "skipped: abacus · toy.py: abacus needs tokens for single digit" in out
    assert "(3 seeds)" in out


@pytest.mark.slow
def test_a_plan_says_why_finished_runs_are_to_do(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy("--seeds", "0-1")
    toy("--dry-run", "--seeds", "0-1", "--train.steps", "3")  # another experiment
    assert "code has changed" not in capsys.readouterr().out
    (tmp_path / "toy.py").write_text(TASK.replace("0.1, 8", "0.2, 8"))
    assert toy("--dry-run", "--seeds", "0-2") == (0, [])
    out = capsys.readouterr().out
    assert "3 runs: 0 done, 3 to do" in out
    assert re.search(
        r"^to repeat, because code has changed: 2 runs with version \S+ of toy\.py, now \S+$",
        out,
        re.MULTILINE,
    )


def test_every_version_of_code_that_has_changed_is_named() -> None:
    settings = {
        "task": "mqar", "train": {"steps": 1}, "model": {}, "start": None,
        "versions": {"task": 2, "decoder": 3, "training": 1, "new": 1},
    }  # fmt: skip
    encoding = SimpleNamespace(label="rope", version="5")
    runs: list[Any] = []
    for seed in range(2):
        resolved = SimpleNamespace(label="mqar", settings=settings)
        runs.append(
            SimpleNamespace(run=SimpleNamespace(resolved=resolved, encoding=encoding, seed=seed))
        )

    def record(order: int, **changed: Any) -> RunRecord:
        before = {"task": 2, "decoder": 3, "training": 1}  # the first record has no version "new"
        values: dict[str, Any] = {
            "status": "done", "task": "mqar", "encoding": "rope", "seed": 0, "order": order,
            "settings_digest": "0", "settings": {**settings, "versions": before},
            "encoding_version": "5",
        }  # fmt: skip
        return RunRecord(**(values | changed))

    def lines(*records: RunRecord) -> list[str]:
        found = describe_changed_code(runs, records)
        return [line.removeprefix("to repeat, because code has changed: ") for line in found]

    old = {**settings, "versions": {"task": 1, "decoder": 2, "training": 1}}
    changed = ["1 run with version 4 of rope, now 5", "1 run with version 1 of mqar, now 2",
               "1 run with version 2 of the decoder, now 3"]  # fmt: skip
    assert lines() == lines(record(1)) == []
    assert lines(record(1, settings=old, encoding_version="4")) == changed
    assert lines(record(2, settings=old, encoding_version="4"), record(1)) == changed  # the last
    assert lines(record(1, settings=old), record(2)) == []
    two = lines(record(1, encoding_version="4"), record(1, encoding_version="4", seed=1))
    assert two == ["2 runs with version 4 of rope, now 5"]
    other = {**old, "train": {"steps": 2}}
    others: list[dict[str, Any]] = [
        {"status": "failed"},
        {"seed": 2},
        {"settings": other},
        {"settings": {}},
    ]
    for another in others:
        assert lines(record(1, **{"settings": old, **another})) == []


def earlier(encoding: str, task: str, training: float, evaluation: float, **more: Any) -> RunRecord:
    """Return the record of a run that has trained 100 rows."""
    settings = {
        "task": task, "preset": "quick", "protocol": "strict", "start": None, "model": {},
        "train": {"steps": 10, "batch_size": 10},
    }  # fmt: skip
    values: dict[str, Any] = {
        "settings": settings,
        "data": {"label": "builtin"},
        "seconds": training + evaluation,
        "costs": {"all": {"training": {"seconds": training}}},
        "environment": {"device": name_of("cpu")},
    }
    record = RunRecord(status="done", task=task, encoding=encoding, seed=0, settings_digest="0")
    return replace(record, **(values | more))


def planned(record: RunRecord, encoding: str, steps: int = 10, parts: int = 0) -> Any:
    """Return a run with the settings of a record, optionally trained for each of some parts."""
    settings = {**record.settings, "train": {"steps": steps, "batch_size": 10}}
    task = SimpleNamespace(provenance=lambda: record.data)
    resolved = SimpleNamespace(
        settings=settings, task=task, start=None, tuning=None, model_subsets=["a"] * parts or [None]
    )
    phases = SimpleNamespace(find_choice=lambda task, subset: "a rate")
    named = SimpleNamespace(label=encoding)
    return SimpleNamespace(resolved=resolved, encoding=named, phases=phases)


def test_seconds_follow_from_rows_and_from_how_slow_an_encoding_is() -> None:
    first = [earlier("nope", "one", 4, 1), earlier("rope", "one", 16, 4)]
    second = earlier("nope", "two", 2, 1)
    elsewhere = earlier("nope", "one", 400, 1, environment={"device": "another"})
    failed = earlier("nope", "one", 400, 1, status="failed")
    estimates = Estimates([*first, second, elsewhere, failed], "cpu")
    runs = [planned(first[0], "nope"), planned(first[0], "nope", steps=20)]
    runs.append(planned(first[0], "nope", parts=3))
    for _ in range(2):
        times = estimates.of_runs(runs)
        assert times.seconds == pytest.approx([5, 9, 13]) and times.used == 1
    ratio = estimates.slowness["rope"] / estimates.slowness["nope"]
    assert ratio > 1.5
    of_others = planned(second, "rope")
    assert estimates.of_runs([of_others]).seconds == pytest.approx([3 * ratio])
    assert estimates.of_runs([of_others]).used == 1
    assert estimates.of_runs([*runs, of_others]).used == 2
    unknown = planned(earlier("nope", "three", 1, 1), "nope")
    assert estimates.of_runs([unknown]) == RunTimes([None], 0)
    assert estimates.of_runs([]) == RunTimes([], 0)


def test_work_that_runs_share_counts_once(tmp_path: Path) -> None:
    """A phase before and a search count for the first run, unless they are finished."""
    record = earlier("nope", "one", 4, 1, pretraining={"seconds": 7.0})
    estimates = Estimates([record], "cpu")

    def make_run(search: str, start: str, chosen: str = "", before: str = "x") -> Any:
        run = planned(record, "nope")
        run.resolved.start = SimpleNamespace(digest=lambda: start)
        run.resolved.tuning, run.seed = object(), 5
        run.resolved.digest = lambda: search

        def checkpoint(*given: Any) -> Path:
            assert before and given == (run.resolved.start, "part", 5, before)
            return tmp_path / start

        earlier_phases: Any = SimpleNamespace(
            encoding=run.encoding,
            checkpoint=checkpoint,
            find_choice=lambda task, subset: before or None,
        )
        run.phases = SimpleNamespace(
            find_choice=lambda task, subset: chosen or None,
            start_phases=earlier_phases,
            find_start=lambda task, subset: Start(earlier_phases, task.start, "part"),
        )
        return run

    (tmp_path / "there").mkdir()
    search = 6 * 4.0
    expected = [
        (make_run("a", "one"), 5 + 7 + search),
        (make_run("a", "one"), 5),
        (make_run("a", "two"), 5 + 7),
        (make_run("b", "two"), 5 + search),
        (make_run("c", "there", "a rate"), 5),
        (make_run("c", "three", "a rate", before=""), 5 + 7 + 6 * 7),  # and a search there
        (make_run("c", "three", "a rate", before=""), 5),
        (make_run("three", "there"), 5),  # the same search, for its own task
    ]
    runs, seconds = zip(*expected, strict=True)
    for _ in range(2):
        assert estimates.of_runs(runs).seconds == pytest.approx([*seconds])


def test_a_training_that_subsets_share_counts_once() -> None:
    costs = {name: {"training": {"seconds": 4.0}} for name in "ab"}
    record = earlier("nope", "one", 0, 0, costs=costs, seconds=15.0)
    models: list[dict[str, str]] = [{}, {"": "m"}, {"a": "m", "b": "n"}]
    for known, seconds in zip(models, (4.0, 4.0, 8.0), strict=True):
        of_any_device = replace(record, models=known, environment={"device": "another"})
        parts = Estimates([of_any_device], None).parts(planned(record, "nope", parts=3))
        assert parts == Parts(3 * 100 * 4 / 100 + 15 - seconds, 0.0, 0.0)
    incomplete: list[dict[str, Any]] = [{"costs": {}}, {"seconds": None}, {"settings": {}}]
    for lacking in incomplete:
        assert not Estimates([replace(record, **lacking)], None).durations


def test_an_overview_has_words_for_everything() -> None:
    def run(label: str, seed: int = 0, skip: str | None = None) -> Any:
        own = SimpleNamespace(
            title=f"{label} · a · seed {seed}",
            encoding=SimpleNamespace(label=label),
            resolved=SimpleNamespace(label="a"),
        )
        return SimpleNamespace(run=own, skip=skip)

    to_do = [run("rope"), run("tape"), run("fire")]
    titles = [one.run.title for one in to_do]
    skipped = [run(f"x{n}", skip="no digits") for n in range(11)]
    skipped.append(run("x0", seed=1, skip="no digits"))
    seconds = {titles[0]: 600.0, titles[1]: None, titles[2]: 1800.0}
    view = Overview(
        [run("nope")], to_do, frozenset(titles[1:2]), titles[:2], skipped, seconds, used=1
    )
    count = "16 runs: 1 done, 3 to do (1 begun), 12 skipped"
    died = (
        f"the process ended without a message when it last executed {titles[0]}; {titles[1]} (with "
        "--jobs N, only that run would fail, and the others would continue)"
    )
    reasons = [f"skipped: x{n} · a: no digits" for n in range(1, 10)]
    reasons = ["skipped: x0 · a: no digits (2 seeds)", *reasons, "... and 1 more"]
    since = "from 1 earlier run on such a device; and 1 runs without an estimate"
    times = {1: f"about 40 min, {since}", 2: f"about 30 min, 2 at once, {since}",
             None: f"about 40 min one after the other, {since}"}  # fmt: skip
    for parallel_runs, words in times.items():
        assert view.lines(parallel_runs) == [count, f"time: {words}", died, *reasons]
    assert view.unknown == [to_do[1].run]
    assert view.runs() == [
        "done     nope · a · seed 0",
        "to do    rope · a · seed 0 (about 10 min)",
        "to do    tape · a · seed 0 (begun, time unknown)",
        "to do    fire · a · seed 0 (about 30 min)",
        *(f"skipped  {planned.run.title}" for planned in skipped),
    ]
    known = {title: 60.0 for title in titles}
    few = replace(
        view, skipped=[], died=[], begun=frozenset(), estimates=known, used=4, finished=[]
    )
    assert few.lines(3) == [
        "3 runs: 0 done, 3 to do",
        "time: about 60 s, 3 at once, from 4 earlier runs on such a device",
    ]
    none = replace(few, to_do=to_do[:1], estimates={titles[0]: None})
    unknown = "time: unknown, because no run of such a task has finished on such a device yet"
    assert none.lines(1) == ["1 run: 0 done, 1 to do", unknown]
    assert none.seconds(1) == 0.0
    assert replace(few, finished=to_do[:1], to_do=[], estimates={}).lines(1) == [
        "1 run: 1 done, 0 to do"
    ]


def test_an_overview_asks_the_folders_of_runs() -> None:
    class Asked(Estimates):
        def __init__(self) -> None:
            pass

        def of_runs(self, runs: Iterable[Any]) -> RunTimes:
            return RunTimes([float(len(run.title)) for run in runs], 7)

    def run(title: str, skip: str | None = None, missing: Sequence[str] = ()) -> Any:
        files = SimpleNamespace(
            looks_finished=lambda subsets: "done" in title and subsets == ["a"],
            has_begun=lambda: "begun" in title,
            has_died=lambda: "died" in title,
        )
        resolved = SimpleNamespace(label="mqar", task=SimpleNamespace(subsets=["a"]))
        own = SimpleNamespace(
            title=title, resolved=resolved, files=files, folder=Path("runs") / title,
            encoding=SimpleNamespace(label="rope"), missing_models=lambda: missing,
        )  # fmt: skip
        return SimpleNamespace(run=own, skip=skip)

    kept, done = run("done without model", missing=["a"]), run("done")
    new, died, skipped = run("new"), run("begun, died"), run("skipped", skip="no digits")
    elsewhere, earlier = run("elsewhere"), run("done here", skip="no kernel on this machine")
    runs = [kept, done, new, died, skipped, elsewhere, earlier]
    found = Overview.of(runs, Asked(), {("mqar", "rope", "elsewhere"), ("mqar", "tape", "new")})
    titles = {"done without model": 18.0, "new": 3.0, "begun, died": 11.0}
    assert found == Overview(
        [done, elsewhere, earlier], [kept, new, died], frozenset({"begun, died"}), ["begun, died"],
        [skipped], titles, 7,
    )  # fmt: skip


def test_a_plan_has_every_run_once(tmp_path: Path) -> None:
    options = RunOptions(cache=tmp_path)
    encodings = ["nope", "rope", "rope:base=10000"]
    spec = GridSpec(
        options=options, encodings=encodings, tasks=["mqar"], seeds=[0, 1, 0], results=tmp_path
    )
    plan = make_plan(spec)
    found = [(cell.run.encoding.label, cell.run.seed) for cell in plan.runs]
    assert found == [("nope", 0), ("rope", 0), ("nope", 1), ("rope", 1)]
    assert all(cell.named and cell.skip is None for cell in plan.runs)


@pytest.mark.parametrize(
    ("tasks", "asked"),
    [(["all"], False), (["all", "mqar"], True), (["copying", "mqar:length=32"], True)],
)
def test_missing_data_are_a_complaint_where_the_task_is_named(
    tasks: list[str], asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_task = RunFactory.task

    def task(self: RunFactory, spec: str) -> ResolvedTask:
        if spec.startswith("mqar"):
            raise DataError("there is no folder pg19")
        return open_task(self, spec)

    def expand(specs: Sequence[str], kind: Kind) -> list[str]:
        return ["copying", "mqar"] if "all" in specs else [*specs]

    monkeypatch.setattr(RunFactory, "task", task)
    monkeypatch.setattr(catalogue, "expand", expand)
    options = RunOptions(cache=tmp_path)
    plan = make_plan(
        GridSpec(options=options, encodings=["nope"], tasks=tasks, seeds=[0], results=tmp_path)
    )
    assert [one.run.resolved.label for one in plan.runs] == ["copying"]
    (outcome,) = plan.outcomes
    assert (outcome.title, outcome.status) == ("mqar", "skipped")
    assert outcome.complaints == ("mqar: there is no folder pg19",) * asked


@pytest.mark.parametrize("asked", [False, True])
def test_missing_parts_are_a_complaint_where_they_are_named(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_task = RunFactory.task

    def task(self: RunFactory, spec: str) -> ResolvedTask:
        resolved = open_task(self, spec)
        monkeypatch.setattr(resolved.task, "unavailable", {"reverse": "give it a file"})
        return resolved

    monkeypatch.setattr(RunFactory, "task", task)
    options = RunOptions(cache=tmp_path, subsets=("copy", "reverse") if asked else ("copy",))
    spec = GridSpec(options=options, encodings=["nope"], tasks=["copying"], results=tmp_path)
    title = "copying · reverse"
    sentence = f"{title}: give it a file"
    assert make_plan(spec).outcomes == [Outcome(title, "skipped", (sentence,) * asked)]


def test_the_operations_of_a_plan_are_those_of_all_runs_and_phases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def cost(self: CostCounter, encoding: Plugin, phases: Sequence[TrainingShape]) -> RunCost:
        seen.append([phase.times for phase in phases])
        return RunCost(1, 1, 1e15, 2e9)

    monkeypatch.setattr(CostCounter, "of_run", cost)
    task = resolve(RunOptions(cache=tmp_path), "copying")
    runs = []
    for seed in range(3):
        runs.append(Run(task, load("encoding", "nope"), seed, tmp_path, "cpu", "fp32"))
    assert "about 3 PFLOP, up to 2 GB" in describe_training_cost(runs)
    assert seen == [[2]]  # a model for each of two subsets; one run is counted


def test_weights_that_are_single_numbers_cannot_be_sharded(tmp_path: Path) -> None:
    source = """
        from torch import nn, ones
        from pe_bench.api import Encoding

        class Scaled(Encoding):
            def __init__(self, model, layer=0):
                super().__init__(model, layer)
                self.scale = nn.Parameter(ones(SHAPE))
    """
    task = resolve(RunOptions(cache=tmp_path), "mqar")
    for name, shape in (("vector", "1"), ("number", "()")):
        (tmp_path / f"{name}.py").write_text(dedent(source).replace("SHAPE", shape))
    for name in ("vector", "number"):
        run = Run(task, load("encoding", f"{tmp_path}/{name}.py"), 0, tmp_path, "cpu", "fp32")
        refused = pytest.raises(InputError, match="single numbers")
        with refused if name == "number" else nullcontext():
            grid._check_fsdp_weights([PlannedRun(run, None, True)])


def test_durations_are_words() -> None:
    shown = [show_duration(s) for s in (0, 40, 600, 3600 * 3 + 1200, 3600 * 52)]
    assert shown == ["0 s", "40 s", "10 min", "3 h 20 min", "2 d 4 h"]
    assert [show_clock(s) for s in (9, 750, 3723)] == ["0:09", "12:30", "1:02:03"]


# Side by side.


@pytest.mark.slow
def test_numbers_do_not_depend_on_how_many_cells_run_at_once(
    toy: Toy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Threads are not set here, because a serial run must use one thread, as workers do."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(2)
    assert toy("--results", "one", encodings=("nope", "rope"))[0] == 0
    assert torch.get_num_threads() == 2
    (tmp_path / "dies.py").write_text(DIES)
    capsys.readouterr()
    code, log = toy("--results", "two", "--jobs", "2", encodings=("./dies.py", "nope", "rope"))
    assert (code, log.count("a")) == (1, 2)
    out, err = capsys.readouterr()
    serial, parallel = rows(tmp_path / "one"), rows(tmp_path / "two")
    assert serial == parallel and len(serial) == 2
    for path in tmp_path.glob("*/runs/*/*ope/*/run.json"):
        assert json.loads(path.read_text())["environment"]["threads"] == 1
    (path,) = (tmp_path / "two").glob("runs/*/dies.py/*/run.json")
    failed = json.loads(path.read_text())
    assert failed["status"] == "failed"
    assert "its process was killed by SIGKILL" in failed["reason"]
    assert err.count("failed, ProcessDied: its process was killed by SIGKILL") == 1
    assert re.search(r"^nope · toy\.py · seed 0: done in \d+:\d\d$", out, re.MULTILINE)
    assert "nope · toy.py · seed 0 | toy.py" not in out and "\r" not in out + err
    monkeypatch.setenv("GO_ON", "1")
    assert toy("--results", "two", encodings=("./dies.py",))[0] == 0  # the next call repairs


def test_threads_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert threads_of_run("quick", "cpu", alone=False) == 8  # the user's choice
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads_of_run("quick", "cpu", alone=True) == 1
    assert threads_of_run("small", "cpu", alone=False) == 1
    assert threads_of_run("small", "cpu", alone=True) == 8
    assert threads_of_run("quick", "cuda", alone=True) == 8


@pytest.mark.slow
def test_a_worker_makes_the_runs_that_the_command_has_planned(toy: Toy, tmp_path: Path) -> None:
    origins: list[dict[str, Any]] = [{}, {"origin": "rope", "adapt": {"steps": 2}}]
    for more in origins:
        options = RunOptions(keep=True, train={"steps": 3}, cache=tmp_path / "cache", **more)
        spec = GridSpec(
            options=options,
            encodings=["nope"],
            tasks=["./toy.py"],
            seeds=[4],
            results=tmp_path / "results",
        )
        plan = make_plan(spec)
        run = plan.runs[0].run
        work = pickle.loads(pickle.dumps(make_work(plan.runs, spec, 1, Executor().started)))
        same = Worker(lambda answer: None).prepare(work, 0)
        for field in fields(run):
            if field.name != "resolved":
                assert getattr(same, field.name) == getattr(run, field.name)
        assert same.resolved.settings == run.resolved.settings and same.folder == run.folder
        assert same.resolved.first_step == run.resolved.first_step


EDITS = """
import os
from pathlib import Path
from pe_bench.api import Encoding

class Edits(Encoding):
    '''Edits its own file when it is built, as a user might during a run.'''
    bias_of_mine = 1

    def __init__(self, model, layer=0):
        super().__init__(model, layer)
        path = Path(__file__)
        path.write_text(path.read_text().replace("of_mine = 1", "of_mine = 2"))
"""


@pytest.mark.slow
def test_code_that_changes_under_a_grid_is_found(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "edits.py").write_text(EDITS)
    assert toy("--jobs", "1", encodings=("./edits.py",)) == (2, [])
    assert "code or data have changed since the command was started" in capsys.readouterr().err


def test_an_orphan_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process keeps the file open, and there is no time for an orderly end."""
    parents = iter([7, 7, 1, 1])
    ended: list[int] = []
    monkeypatch.setattr(worker_process, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "_exit", ended.append)
    life, forked = os.pipe()
    worker_process._end_with(life, grace=10_000)
    assert ended == [143]
    os.close(life)
    os.close(forked)


@pytest.mark.slow
def test_a_full_disk_in_a_worker_stops_everything(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = DIES.replace("os.kill(os.getpid(), 9)", "raise SavingError('cannot save x (full)')")
    (tmp_path / "full.py").write_text(
        full.replace("import Encoding", "import Encoding\nfrom pe_bench.errors import SavingError")
    )
    assert toy("--jobs", "1", encodings=("./full.py", "nope")) == (1, [*["batch"]])
    assert "pe-bench: cannot save x (full)" in capsys.readouterr().err


LONG = TASK.replace("steps=2", "steps=1000000")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jobs", "number"),
    [
        (("--jobs", "2"), signal.SIGKILL),
        (("--devices", "2"), signal.SIGINT),
    ],
)
def test_a_grid_that_is_stopped_leaves_no_worker(
    toy: Toy, tmp_path: Path, jobs: tuple[str, ...], number: signal.Signals
) -> None:
    (tmp_path / "toy.py").write_text(LONG)
    command = [sys.executable, "-m", "pe_bench", "run", "--encoding", "nope", "rope"]
    environment = os.environ | {"PYTHONPATH": str(Path(grid.__file__).parents[2])}
    with (
        (tmp_path / "out").open("w") as out,
        subprocess.Popen(
            [*command, "--task", "./toy.py", *jobs],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as process,
    ):
        while not any(tmp_path.glob("results/runs/*/*/*/executing")):
            time.sleep(0.05)
        log = tmp_path / "log"
        before = log.read_text()  # of the test before the runs
        while log.read_text() == before:
            time.sleep(0.05)
        if number == signal.SIGKILL:
            process.kill()
        else:
            os.killpg(process.pid, number)  # as a terminal does
        code = process.wait()
    with pytest.raises(ProcessLookupError):  # soon its session has no process
        for _ in range(6000):
            os.killpg(process.pid, 0)
            time.sleep(0.1)
    if number == signal.SIGKILL:
        return
    assert code == 130
    said = (tmp_path / "out").read_text()
    assert "0 of 2 runs ended" in said
    assert "pe-bench: stopped; the same command continues from here" in said
    assert "Traceback" not in said and "failed" not in said


# Two commands.


@pytest.mark.slow
def test_a_cell_of_another_process_is_passed_over_and_its_failure_counts(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toy(fail="b")
    _, folder = record(tmp_path)
    other = FileLock(folder / "lock")
    other.acquire()
    naps = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:  # then the other process fails
            plan = make_plan(GridSpec(options=RunOptions(), encodings=["nope"], tasks=["./toy.py"]))
            other.release()
            plan.runs[0].run.record_death("broken elsewhere")

    monkeypatch.setattr("pe_bench.grid.grid.sleep", sleep)
    capsys.readouterr()
    assert toy(encodings=("nope", "rope")) == (1, ["batch", "batch", "a", "b"])  # of rope
    out, err = capsys.readouterr()
    assert out.count("nope · toy.py · seed 0: another process is working on it, passed over") == 1
    assert out.count("waiting for another process: nope · toy.py · seed 0\n") == 1
    assert "nope · toy.py · seed 0 failed, ProcessDied: broken elsewhere" in err
    assert toy() == (0, ["b"])  # a later command tries again


# The execution of a plan.


class Scripted(Executor):
    """An executor whose runs end as a script says; a run that is not in it ends as done."""

    def __init__(self, script: list[dict[str, Outcome | None]]) -> None:
        super().__init__()
        self.parallel_runs = 2
        self.script = script
        self.given: list[list[str]] = []

    def run(self, runs: Sequence[PlannedRun], display: Display) -> Iterator[Tried]:
        titles = [planned.run.title for planned in runs]
        self.given.append(titles)
        ends = self.script.pop(0) if self.script else {}
        for planned, title in zip(runs, titles, strict=True):
            if title == "interrupted":
                raise KeyboardInterrupt
            yield planned, ends.get(title, Outcome(title, "done"))


def prepared(
    folder: Path, executor: Executor, names: Sequence[str], **changed: Any
) -> grid.PreparedGrid:
    """Return a grid with runs of these titles, whose first words say what they are."""
    groups: dict[str, list[Any]] = {"done": [], "to do": [], "timed": [], "skipped": []}
    for title in names:
        task = SimpleNamespace(measures_time=title.startswith("timed"))
        run = SimpleNamespace(
            title=title,
            folder=folder / "absent",
            resolved=SimpleNamespace(task=task),
            skip=lambda reason, complain, title=title: Outcome(
                title, "skipped", (reason,) * complain
            ),
        )
        skip = "it has no digits" if title.startswith("skipped") else None
        kind = next((kind for kind in groups if title.startswith(kind)), "to do")
        groups[kind].append(SimpleNamespace(run=run, skip=skip, named=title.endswith("named")))
    every = [planned for own in groups.values() for planned in own]
    runs = sorted(every, key=lambda planned: names.index(planned.run.title))
    to_do = [*groups["timed"], *groups["to do"]]
    overview = Overview(
        groups["done"], to_do, frozenset(), [], groups["skipped"], {"to do 1": 60.0}, 0
    )
    options = RunOptions(preset="mid")
    spec = GridSpec(options=options, encodings=[], tasks=[], results=folder, **changed)
    first = Outcome("task without data", "skipped")
    return grid.PreparedGrid(spec, executor, runs, overview, [first])


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the executor of timed runs; return its arguments, and its runs."""
    made: list[Any] = []

    def serial(threads: int, timeout: float | None) -> Executor:
        made.extend((threads, timeout))
        executor = Scripted([])
        made.append(executor.given)
        return executor

    def execute(run: Any) -> Outcome:
        if run.title.endswith("busy"):
            raise Busy
        return Outcome(run.title, "done", cause="recalled")

    monkeypatch.setattr(grid, "Serial", serial)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    monkeypatch.setattr(grid, "execute_run", execute)
    return made


def test_runs_are_executed_in_their_order(
    tmp_path: Path,
    alone: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Finished runs are first and timed ones last; runs of other processes are tried again."""
    naps: list[float] = []
    monkeypatch.setattr(grid, "sleep", naps.append)
    failed = Outcome("to do 2", "failed", cause="broken")
    script: list[dict[str, Outcome | None]] = [
        {"done busy": None, "to do 2": failed}, {"done busy": None}, {}
    ]  # fmt: skip
    executor = Scripted(script)
    names = ["timed 1", "to do 2", "skipped", "done 3", "done busy", "skipped named", "to do 1"]
    execution = ExecutionOptions(timeout=2.5)
    found = prepared(tmp_path, executor, names, execution=execution).run()
    assert executor.given == [["done busy", "to do 2", "to do 1"], ["done busy"], ["done busy"]]
    assert alone == [5, 2.5, [["timed 1"]]] and naps == [grid.RETRY_SECONDS]
    assert found == [
        Outcome("task without data", "skipped"),
        Outcome("timed 1", "done"),
        failed,
        Outcome("skipped", "skipped"),
        Outcome("done 3", "done", cause="recalled"),
        Outcome("done busy", "done"),
        Outcome("skipped named", "skipped", ("it has no digits",)),
        Outcome("to do 1", "done"),
    ]
    out = capsys.readouterr().out
    assert out.count("done busy: another process is working on it, passed over") == 1
    assert out.count("waiting for another process: done busy\n") == 1


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_prepared_grid_has_shown_its_plan(
    dry_run: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Times of a shard are relative, so the records of committed results count too."""
    records = {name: earlier("nope", name, 4, 1) for name in ("here", "like", "committed")}
    records["failed"] = replace(records["like"], status="failed", name="failed")

    class Shown(Overview):
        @classmethod
        def of(cls, runs: Any, estimates: Any, copied: Any = ()) -> Overview:
            asked.append((runs, estimates, copied))
            planned: list[Any] = ["to do"]
            return cls(["done"], planned, frozenset(), [], [], {}, 0)  # type: ignore[list-item]

        def lines(self, parallel_runs: int | None) -> list[str]:
            return [f"the plan for {parallel_runs}"]

        def runs(self) -> list[str]:
            return ["every run"]

        @property
        def unknown(self) -> Any:
            return ["unknown"]

    def find(*folders: Path) -> list[RunRecord]:
        own = [records[folder.name] for folder in folders]
        return [*own, records["failed"]] if Path("like") in folders else own

    def divide(runs: Any, count: int, estimates: Any, results: Path, *, store: bool) -> Any:
        asked.append((runs, count, estimates, results.name, store))
        describe = lambda shard, runs: f"shard {shard.number} of {len(runs)} runs"  # noqa: E731
        return SimpleNamespace(describe=describe, runs_of=lambda shard, runs: runs[1:])

    def estimate(records: Any, device: str | None) -> str:
        return f"from {[record.task for record in records]} on {device}"

    asked: list[Any] = []
    plan = SimpleNamespace(runs=["first", "second"], outcomes=["left out"])
    monkeypatch.setattr(grid, "make_plan", lambda spec: plan)
    monkeypatch.setattr(grid, "find_records", find)
    monkeypatch.setattr(grid, "Overview", Shown)
    monkeypatch.setattr(grid, "Estimates", estimate)
    monkeypatch.setattr(grid, "find_division", divide)
    monkeypatch.setattr(grid, "describe_changed_code", lambda runs, records: [f"changed: {runs}"])
    monkeypatch.setattr(grid, "_describe_work", lambda *given: asked.append(given[2]))
    spec = GridSpec(
        options=RunOptions(), encodings=[], tasks=[], results=tmp_path / "here",
        earlier_results=[Path("like")], committed=[Path("committed")], copies_earlier=True,
        execution=ExecutionOptions(dry_run=dry_run, shard=Shard(2, 3)),
    )  # fmt: skip
    found: Any = grid.prepare_grid(spec, lambda runs, records: [f"{runs} of {len(records)}"])
    every = "['here', 'like', 'committed', 'like']"
    copied = {key_of(records["like"])} if dry_run else set()
    assert asked == [
        (["first", "second"], 3, f"from {every} on None", "here", not dry_run),
        (["second"], f"from {every} on cpu", copied),
        ["unknown"],
    ]
    lines = ["shard 2 of 2 runs", *["every run"] * dry_run, "the plan for 1"]
    lines += ["changed: ['to do']", "['done', 'to do'] of 4"]
    assert capsys.readouterr().out.splitlines() == lines
    assert (found.runs, found.outcomes, found.spec) == (["second"], ["left out"], spec)
    asked.clear()
    whole = replace(spec, execution=ExecutionOptions(dry_run=dry_run), copies_earlier=False)
    grid.prepare_grid(whole)
    assert asked[0] == (["first", "second"], "from ['here', 'like', 'like'] on cpu", set())
    assert "of 4" not in capsys.readouterr().out


def test_a_grid_that_is_interrupted_counts_its_runs(
    tmp_path: Path, alone: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["done 1", "to do 1", "interrupted", "to do 2", "timed 1", "skipped 1"]
    with pytest.raises(KeyboardInterrupt):
        prepared(tmp_path, Scripted([]), names).run()
    assert capsys.readouterr().out.endswith("2 of 5 runs ended\n") and not alone[2]


@pytest.mark.parametrize(
    ("options", "made", "parallel_runs"),
    [
        ({"timeout": 2.5}, (Serial, True, 2.5), 1),
        ({"jobs": 1}, (Processes, False, None), 1),
        ({"jobs": 3}, (Processes, False, None), 3),
        ({"devices": 2, "timeout": 2.5}, (Processes, False, None), 1),
    ],
)
def test_the_options_of_execution_choose_an_executor(
    options: dict[str, Any],
    made: tuple[type[Executor], bool, float | None],
    parallel_runs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def threads(preset: str, device: str, *, alone: bool) -> Any:
        return preset, device, alone

    monkeypatch.setattr(grid, "threads_of_run", threads)
    execution = ExecutionOptions(**options)
    spec = GridSpec(options=RunOptions(preset="mid"), encodings=[], tasks=[], execution=execution)
    executor: Any = grid._make_executor(spec)
    found = (type(executor), executor.threads, getattr(executor, "timeout", None))
    cls, is_alone, timeout = made
    assert found == (cls, ("mid", "cpu", is_alone), timeout)
    assert executor.parallel_runs == parallel_runs


@pytest.mark.parametrize(
    ("term", "is_terminal", "live"),
    [("xterm", True, True), ("dumb", True, False), ("xterm", False, False)],
)
def test_a_live_display_is_for_terminals(
    term: str, is_terminal: bool, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pe_bench.grid.live import LiveDisplay

    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", term)
    view = console._view
    for parallel_runs, expected in ((None, 2), (5, 5)):
        with grid._display({"a": 60.0, "b": None}, parallel_runs) as display:
            assert isinstance(display, LiveDisplay) == live and isinstance(display, Display)
            assert (display.parallel_runs, display.total) == (expected, 2)
        assert console._view is view
        shown = stream.getvalue()
        assert live == (shown.count("\x1b[?25h") > 0)  # the cursor is back
        assert shown.count("\x1b[?25h") == shown.count("\x1b[?25l")


# The display.


@pytest.fixture
def display(toy: Toy, tmp_path: Path) -> Any:
    """Return a live display of 80 columns with a run of long names, and this run."""
    from pe_bench.grid.live import LiveDisplay

    options = RunOptions(cache=tmp_path / "cache")
    encodings = ["rope:base=500000,scaling=yarn,factor=8", "nope"]
    plan = make_plan(GridSpec(options=options, encodings=encodings, tasks=["./toy.py"]))
    runs = [cell.run for cell in plan.runs]
    stream = io.StringIO()
    live = LiveDisplay({run.title: None for run in runs}, 2, stream)
    live.console.width = 80
    return live, runs, stream


def test_the_display_keeps_encoding_and_loss_at_80_columns(display: Any) -> None:
    live, (run, other), stream = display
    live.begin(run)
    live.begin(other)
    bar = Bar("rope · a very long name of a part · train", 1000, 0)
    with showing(live.view(run)):
        bar.note = "loss 2.345"
        bar.update(400)
    live.console.print(live._live.get_renderable())
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    overall, first, second = (line for line in lines if line.strip())
    assert overall.startswith("0/2 runs") and "0 failed" in overall and "unknown" in overall
    assert first.startswith("rope:base=5") and "400/1000 steps loss 2.345 0:0" in first
    assert second.startswith("nope") and "begins" in second


def test_the_display_has_room_for_twelve_runs_and_says_who_waits(display: Any) -> None:
    live, (run, other), stream = display
    for number in range(14):
        one = replace(run, seed=100 + number)
        live.begin(one)
        live.view(one).moved(Bar("train", 9, number))
    live.wait([run, other])
    live.console.print(live.render())
    lines = [line.strip() for line in stream.getvalue().splitlines() if line.strip()]
    assert len(lines) == 1 + 12 + 2 and lines[13] == "and 2 more"
    assert [line.split("seed ")[1].split()[:2] for line in lines[1:13]] == [
        [str(100 + number), f"{number}/9"] for number in range(12)
    ]
    assert lines[14].startswith("waiting for another process: rope:base=500000")
    live.begin(run)
    assert live.waits == ""


def test_the_display_counts_and_says_what_has_failed(display: Any) -> None:
    live, (run, other), stream = display
    live.begin(run)
    live.end(run, Outcome(run.title, "failed", cause="x"))
    live.begin(other)
    live.console.print(live.render())
    shown = stream.getvalue()
    assert "1/2 runs" in shown and "1 failed" in shown and "left" in shown
    assert f"failed: {run.title}: x" in " ".join(shown.split())
    live.end(other, Outcome(other.title, "done"))
    assert (live.ended, live.seconds_left) == (2, 0)
    for number in range(40):
        live.end(run, Outcome(run.title, "failed", cause=f"number {number}"))
    live.console.print(live.render())
    last = re.findall(r": number\s+(\d+)", stream.getvalue())
    assert last == [str(number) for number in range(28, 40)]


@pytest.mark.slow
def test_a_terminal_has_the_display_and_is_left_as_it_was(toy: Toy, tmp_path: Path) -> None:
    import pty

    path = str(Path(grid.__file__).parents[2])
    seen = tmp_path / "seen"
    training = "step == 1 and Path('results').exists()"  # after the test of the task
    until_seen = f"while {training} and not Path({str(seen)!r}).exists(): time.sleep(0.01)"
    wait = f"import time\n        {until_seen}"
    (tmp_path / "toy.py").write_text(TASK.replace('self.log("batch")', wait))
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"PYTHONPATH": path, "TERM": "xterm", "COLUMNS": "80"}
        run = ["-m", "pe_bench", "run", "--encoding", "nope", "--task", "./toy.py"]
        os.execv(sys.executable, [sys.executable, *run])
    shown = b""
    while True:
        try:
            more = os.read(terminal, 65536)
        except OSError:  # error of Linux at the end
            break
        if not more:
            break
        shown += more
        if b"1/2 steps" in shown:
            seen.touch()  # the second step continues
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    text = shown.decode()
    assert "0/1 runs" in text and "1/2 steps" in text and "nope · toy.py · seed 0: done in" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back


def test_lines_have_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    runs: list[Any] = [SimpleNamespace(title=f"cell {i}") for i in range(3)]
    display = Display({run.title: 60.0 for run in runs}, parallel_runs=2)
    display.begin(runs[0])
    display.begin(runs[1])
    display.end(runs[0], Outcome("", "done"))
    display.begin(runs[2])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[1/3] cell 0, about 90 min left".replace("90 min", "2 min")
    assert lines[-2:] == ["cell 0: done in 0:00", "[3/3] cell 2, about 60 s left"]


@pytest.mark.parametrize(
    ("parallel_runs", "seconds"),
    [(1, 5 + 20 + 13), (2, 20), (4, 20)],  # the last run counts as the mean of the ended one
)
def test_a_run_that_takes_longer_than_expected_leaves_the_others_their_time(
    parallel_runs: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    runs: list[Any] = [SimpleNamespace(title=title) for title in "abcde"]
    display = Display(
        dict(zip("abcde", (10.0, 10.0, 30.0, 20.0, None), strict=True)), parallel_runs
    )
    assert display.seconds_left is None
    for run in runs[:3]:
        display.begin(run)
    now += 13
    display.end(runs[0], Outcome("", "done"))
    now += 12  # b should have ended 15 seconds ago; c takes 5 more
    assert display.seconds_left == seconds


def test_bars_are_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with showing(View("cell | ")), Bar("train", 14, initial=10) as bar:
        bar.update()
        now += 12
        bar.note = "loss 1.5"
        bar.update()
        copy = pickle.loads(pickle.dumps(bar))
    assert (copy.done, copy.seconds_left) == (12, 12)
    assert capsys.readouterr().err.splitlines() == [
        "cell | train: 12/14 steps, loss 1.5, 0:12 left",
        "cell | train: 12/14 steps, loss 1.5, in 0:12",
    ]


def test_no_folder_with_data_is_written_to(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        problems = plan._Problems()
        data = dict(zip("ab", folders, strict=True))
        options = RunOptions(cache=tmp_path / "cache", data=data)
        plan._check_folders(folder / "new", options, problems)
        sentence = f"{folder / 'new'} is inside the folder with data {folder}: give another folder"
        assert problems.sentences() == [f"{sentence} with --results"]
