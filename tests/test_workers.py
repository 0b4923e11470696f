"""What workers say about the runs of a grid, and what becomes of it: no processes are started."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pe_bench.errors import ChangedError, InputError, SavingError
from pe_bench.grid.execution import ExecutionOptions
from pe_bench.grid.executors import execute_run, processes, serial
from pe_bench.grid.executors import worker as worker_module
from pe_bench.grid.executors.relay import Relay
from pe_bench.grid.executors.work import (
    FINISHED,
    Answer,
    Event,
    Line,
    RankWork,
    RankWorkEnded,
    RunSpec,
    SavingFailed,
    Work,
)
from pe_bench.grid.executors.worker import Worker
from pe_bench.grid.spec import GridSpec
from pe_bench.runs.options import RunOptions
from pe_bench.runs.outcome import Busy, Outcome
from pe_bench.system import environment
from pe_bench.system.console import Bar, View, info
from pe_bench.train.process_group import ProcessGroup

DONE = Outcome("run", "done")
FAILED = Outcome("run", "failed", cause="its process was killed")


class Shown:
    """A display that keeps what it is to show."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def begin(self, run: Any) -> None:
        self.said.append(f"{run.title} begins")

    def view(self, run: Any) -> Any:
        def line(text: str, *, error: bool) -> None:
            self.said.append(f"{run.title}: {text}{' (error)' * error}")

        def moved(bar: Bar) -> None:
            self.said.append((run.title, "moved", bar.title, bar.done))

        def closed(bar: Bar) -> None:
            self.said.append((run.title, "closed", bar.title, bar.done))

        return SimpleNamespace(line=line, moved=moved, closed=closed)


def relay(count: int) -> tuple[Any, Shown, list[Any]]:
    """Return a relay with its display and its runs."""
    runs: list[Any] = []
    for number in range(count):
        run = SimpleNamespace(title=f"run {number}", record_death=lambda reason: (reason, FAILED))
        runs.append(SimpleNamespace(run=run))
    shown = Shown()
    return Relay(runs, shown), shown, runs  # type: ignore[arg-type]


def test_the_worker_of_a_run_speaks_about_it() -> None:
    heard, shown, runs = relay(2)
    bar = Bar("train", 9)
    assert heard.hear("a", Event(0, "begins")) == heard.hear("a", FINISHED) == []
    for done, closed in ((1, False), (2, False), (3, True)):
        moved = Bar("train", 9)  # each message has a copy
        moved.done, moved.closed = done, closed
        assert heard.hear("a", Event(0, moved)) == []
    assert heard.hear("b", Event(0, bar)) == heard.hear("b", Event(0, DONE)) == []
    assert heard.hear("a", Event(0, Line("saved", True))) == []
    assert shown.said == [
        "run 0 begins",
        ("run 0", "moved", "train", 1),
        ("run 0", "moved", "train", 2),
        ("run 0", "closed", "train", 3),
        "run 0: saved (error)",
    ]
    assert heard.hear("a", Event(0, DONE)) == [(runs[0], DONE)]
    assert heard.hear("a", Event(0, DONE)) == [] and heard.left == {1}
    with pytest.raises(SavingError, match="the disk is full"):
        heard.hear("a", SavingFailed("the disk is full"))


def test_a_bar_of_another_title_is_another_bar() -> None:
    """A bar stays open if its work fails."""
    heard, shown, _ = relay(1)
    heard.hear("a", Event(0, "begins"))
    for title in ("train", "evaluate"):
        heard.hear("a", Event(0, Bar(title, 9, initial=2)))
    assert shown.said[1:] == [("run 0", "moved", "train", 2), ("run 0", "moved", "evaluate", 2)]


def test_what_all_workers_found_is_shown_once() -> None:
    heard, shown, runs = relay(3)
    for worker in "ab":
        heard.hear(worker, Event(1, Line("was done", False)))
        heard.hear(worker, Event(1, DONE))
    heard.hear("a", Event(2, "begins"))
    assert heard.hear("a", Event(2, FAILED)) == [(runs[2], FAILED)]
    assert shown.said == ["run 2 begins"]
    assert heard.end() == [(runs[1], DONE), (runs[0], None)]  # no message about run 0
    assert shown.said == ["run 2 begins", "run 1: was done"]


def test_a_death_is_that_of_a_run() -> None:
    heard, _, runs = relay(3)
    heard.hear("a", Event(1, "begins"))
    assert heard.died("a", "killed") == [(runs[1], ("killed", FAILED))]
    assert heard.died("b", "killed") == [(runs[0], ("killed", FAILED))]  # the first that is free
    heard.hear("b", Event(2, "begins"))
    assert heard.died("c", "killed") == []
    assert heard.left == {2}


def test_a_death_is_not_that_of_a_run_that_another_command_has_done() -> None:
    heard, _, runs = relay(2)
    heard.hear("b", Event(0, DONE))
    assert heard.died("a", "killed") == [(runs[1], ("killed", FAILED))]
    assert heard.died("b", "killed") == []
    assert heard.end() == [(runs[0], DONE)]


def test_bars_are_told_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Answer] = []
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    view = worker_module._Sending(Worker(told.append))
    bar = Bar("train", 9)  # shown at 100 s
    for seconds, messages in ((0.1, 0), (0.35, 1), (0.6, 1), (0.7, 2)):
        now = 100 + seconds
        view.moved(bar)
        assert len(told) == messages
    view.closed(bar)
    assert told == [Event(0, bar)] * 3


def test_a_worker_tries_every_run(tmp_path: Path) -> None:
    told: list[Answer] = []

    class Tries(Worker):
        def _run(self, work: Work) -> Outcome:
            self.print_line("before", True)
            if self.index == 1:
                raise Busy
            if self.index == 3:
                raise SavingError("the disk is full")
            if self.index == 0:
                self._begin()
                self.print_line("while", False)
            return DONE

    specs = tuple(RunSpec("nope", "mqar", seed, "folder") for seed in range(4))
    spec: Any = None
    work = Work(spec, specs, 1, datetime.now(UTC), tmp_path)
    Tries(told.append).handle(work)
    first = [Event(0, "begins"), Event(0, Line("while", False)), Event(0, Line("before", True))]
    third = [Event(2, Line("before", True)), Event(2, DONE)]
    assert told == [*first, Event(0, DONE), *third, SavingFailed("the disk is full")]
    told.clear()
    Tries(told.append).handle(Work(spec, specs[:2], 1, work.since, tmp_path))
    assert told == [*first, Event(0, DONE), FINISHED]


@dataclass(frozen=True)
class Planned:
    """A run that a factory makes."""

    title: str
    folder: Path
    resolved: Any = None
    phases: Any = None
    device: str = "cpu"
    ranks: Any = None


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    """Return the work of two runs, and replace the factory; its second run has another name."""

    class Factory:
        def __init__(self, options: RunOptions, results: Path, device: str) -> None:
            self.made = f"{options.preset} in {results} on {device}"

        def make_from_specs(self, encoding: str, task: str, seed: int) -> Planned:
            info("text is read")
            return Planned(f"{self.made}: {encoding}, {task}, {seed}", Path(f"runs/{encoding}"))

    monkeypatch.setattr(worker_module, "RunFactory", Factory)
    monkeypatch.setattr(environment, "set_up", lambda device: None)
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    spec = GridSpec(
        options=RunOptions(preset="mid", cache=tmp_path / "cache"),
        encodings=["nope"],
        tasks=["mqar"],
        results=Path("there"),
        execution=ExecutionOptions(timeout=2.5),
    )
    (tmp_path / "cwd").mkdir()
    specs = (RunSpec("nope", "mqar", 3, "nope"), RunSpec("rope", "mqar", 4, "of other code"))
    return Work(spec, specs, 1, datetime.now(UTC), tmp_path / "cwd")


def test_a_worker_makes_runs_as_the_command_did(work: Work, tmp_path: Path) -> None:
    worker = Worker(lambda answer: None)
    assert worker.prepare(work, 0).title == "mid in there on cpu: nope, mqar, 3"
    assert Path.cwd() == work.cwd and os.environ["PE_BENCH_CACHE"] == str(tmp_path / "cache")
    with pytest.raises(ChangedError):
        worker.prepare(work, 1)
    assert len(worker.factories) == 1
    options = replace(work.spec.options, preset="small")
    for changed in ({"results": Path("elsewhere")}, {"device": "cuda"}, {"options": options}):
        spec: Any = replace(work.spec, **changed)
        worker.prepare(replace(work, spec=spec), 0)
    made = [factory.made for factory in vars(worker)["factories"].values()]
    places = ["mid in there on cpu", "mid in elsewhere on cpu", "mid in there on cuda"]
    assert made == [*places, "small in there on cpu"]
    with pytest.raises(InputError, match=f"there is no folder {tmp_path}/gone on this machine"):
        worker.prepare(replace(work, cwd=tmp_path / "gone"), 0)


@pytest.mark.parametrize("devices", [1, 3])
def test_a_worker_executes_a_run(work: Work, devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(run: Any, on_begin: Callable[[], None], since: datetime, timeout: float) -> Outcome:
        assert (since, timeout) == (work.since, 2.5)
        ranks = run.ranks and (
            run.ranks.devices,
            run.ranks.strategy,
            run.ranks.work,
            run.ranks.index,
        )
        assert ranks == (None if devices == 1 else (3, "fsdp", work, 0))
        info("early")
        on_begin()
        info("late")
        return replace(DONE, title=run.title)

    monkeypatch.setattr(worker_module, "execute_run", execute)
    if devices > 1:
        together = ExecutionOptions(timeout=2.5, devices=devices, strategy="fsdp")
        work = replace(work, spec=replace(work.spec, execution=together))
    told: list[Answer] = []
    Worker(told.append).handle(work)
    title = "mid in there on cpu: nope, mqar, 3"
    assert told[:4] == [
        Event(0, "begins"),
        Event(0, Line("late", False)),
        Event(0, Line("early", False)),
        Event(0, replace(DONE, title=title)),
    ]
    second: Any = told[-2]  # of other code
    assert (second.index, second.what.title) == (1, "rope · mqar · seed 4")
    assert second.what.status == "failed" and told[-1] == FINISHED


def test_what_a_worker_cannot_execute_has_an_outcome(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    title = "mid in there on cpu: nope, mqar, 3"
    refused = f"{title}: no data"
    for error, outcome in (
        (InputError("no data"), Outcome(title, "failed", (refused,))),
        (ZeroDivisionError("of a plugin"), Outcome(title, "failed", cause="ZeroDivisionError: of")),
        (Busy(), None),
        (SavingError("the disk is full"), None),
    ):

        def execute(*_: Any, error: Exception = error) -> Outcome:
            raise error

        monkeypatch.setattr(worker_module, "execute_run", execute)
        worker = Worker(lambda answer: None)
        if outcome is None:
            with pytest.raises(type(error)):
                worker._run(work)
            continue
        found = worker._run(work)
        cause = outcome.cause and (found.cause or "")[: len(outcome.cause)]
        assert replace(found, cause=cause) == outcome
        assert worker.early == [Line(f"pe-bench: {refused}", True)] * len(outcome.complaints)


def test_a_rank_trains_its_part(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    class Phases:
        def follow(self, resolved: Any, phase: Any, group: ProcessGroup) -> None:
            followed.append((resolved, phase, group))
            if phase == "broken":
                raise ZeroDivisionError("in a rank")

    followed: list[Any] = []
    told: list[Any] = []
    worker = Worker(told.append)
    run = Planned("run", Path("run"), "task", Phases(), "cuda")
    monkeypatch.setattr(worker, "prepare", lambda *given: run if given == (work, 1) else None)
    monkeypatch.setattr(worker_module, "join", lambda *given: followed.append(given))
    group = ProcessGroup(1, 2)
    phases: Any = ("whole", "broken")
    for phase in phases:
        worker.handle(RankWork(work, 1, phase, group, 77))
    joined = (group, "cuda", 77)
    assert followed == [joined, ("task", "whole", group), joined, ("task", "broken", group)]
    assert told[0] == RankWorkEnded() and told[1].reason.startswith(
        "ZeroDivisionError: in a rank ("
    )


class Ends:
    """A run that ends as it is told to."""

    title, resolved, results, folder = "run", "task", Path("results"), Path("run")

    def __init__(self, end: Outcome | Exception) -> None:
        self.end = end

    def execute(self, *, on_begin: Callable[[], None], since: datetime | None) -> Outcome:
        on_begin()
        if isinstance(self.end, Exception):
            raise self.end
        return replace(self.end, cause=f"since {since}")


@pytest.mark.parametrize("status", ["done", "failed", "skipped"])
def test_baselines_follow_a_run_that_is_done(
    status: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(execute_run, "write_baselines", lambda *given: written.append(given))
    _, shown, _ = relay(0)
    display: Any = shown
    executor = serial.Serial(1)
    ends: list[Outcome | Exception] = [Outcome("run", status), Busy(), InputError("no data")]
    planned: list[Any] = [SimpleNamespace(run=Ends(end)) for end in ends]
    display.view = lambda run: View()
    found = [outcome for _, outcome in executor.run(planned, display)]
    assert found[0] == Outcome("run", status, cause=f"since {executor.started}")
    assert found[1] is None and found[2] == Outcome("run", "failed", ("run: no data",))
    assert written == [("task", Path("results"))] * (status == "done")
    assert shown.said == ["run begins"] * 3


def test_a_worker_that_dies_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first worker has one run, the second dies in its run, the third has the rest."""
    scripts: list[list[Any]] = [
        [Event(0, "begins"), Event(0, DONE), FINISHED],
        [Event(1, "begins"), None],
        [Event(2, "begins"), Event(2, DONE), FINISHED],
    ]

    class Child:
        def __init__(self, grace: float) -> None:
            self.answers = scripts.pop(0)
            self.sent: list[Any] = []
            self.stopped = False

        def send(self, work: Any) -> None:
            self.sent.append(work)

        def receive(self) -> Any:
            return self.answers.pop(0)

        def died_of(self) -> str:
            return "killed"

        def stop(self) -> None:
            self.stopped = True

        def join(self, deadline: float) -> None:
            assert self.stopped

    monkeypatch.setattr(processes, "Child", Child)
    monkeypatch.setattr(processes, "_readable", lambda busy: busy[-1:])
    monkeypatch.setattr(processes, "make_work", lambda runs, *_: len(runs))
    _, shown, runs = relay(3)
    spec: Any = SimpleNamespace(execution=SimpleNamespace(jobs=2))
    display: Any = shown
    with processes.Processes(spec, 1) as executor:
        found = list(executor.run(runs, display))
        left: Any = executor.workers
    assert found == [(runs[1], ("killed", FAILED)), (runs[2], DONE), (runs[0], DONE)]
    assert shown.said == ["run 1 begins", "run 2 begins", "run 0 begins"]
    assert [child.sent for child in left] == [[3], [3]] and all(child.stopped for child in left)
