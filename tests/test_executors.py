"""Processes of workers and ranks, and a Ray cluster: what they are told, and how they end.

None is started: fakes stand for them.
"""

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_workers import DONE, FAILED, relay

from pe_bench.errors import InputError
from pe_bench.grid.executors import child as child_module
from pe_bench.grid.executors import cluster, processes, rank_processes, worker, worker_main
from pe_bench.grid.executors.child import Child
from pe_bench.grid.executors.cluster import Cluster
from pe_bench.grid.executors.rank_processes import RankProcesses
from pe_bench.grid.executors.work import FINISHED, Event, RankWork, RankWorkEnded, RunSpec, Work
from pe_bench.grid.spec import GridSpec
from pe_bench.runs.options import RunOptions
from pe_bench.system.stopping import LOST, SIGNALS
from pe_bench.train.process_group import TIMEOUT, ProcessGroup

SINCE = datetime(2026, 5, 4, tzinfo=UTC)

# A child process.


class Started:
    """A process that does not exist, with its own ends of the two pipes.

    Attributes:
        code: its exit code; None: it runs.
        waited: the timeouts with which it was waited for.
    """

    def __init__(self, command: list[str], **given: Any) -> None:
        self.command = command
        self.given = given
        self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        channel, self.life = map(os.dup, given["pass_fds"])
        self.channel: Connection[Any, Any] = Connection(channel)
        self.code: int | None = None
        self.waited: list[float | None] = []

    def wait(self, timeout: float | None = None) -> int:
        self.waited.append(timeout)
        if self.code is None:
            raise subprocess.TimeoutExpired("worker", 0)
        return self.code

    def kill(self) -> None:
        self.code = -signal.SIGKILL


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(subprocess, "Popen", Started)
    made: Any = Child(2.5)
    yield made
    with contextlib.suppress(OSError):
        made.stop()
    made.output.close()
    os.close(made.process.life)
    made.process.channel.close()


def test_a_child_gets_its_ends_and_the_import_path(
    child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = child.process
    *words, pipe, life, grace = process.command
    assert words == [sys.executable, "-P", "-m", worker_main.__name__] and grace == "2.5"
    assert process.given["pass_fds"] == (int(pipe), int(life))
    for number in process.given["pass_fds"]:
        with pytest.raises(OSError):  # this process has closed the child's ends
            os.fstat(number)
    streams = [process.given[name] for name in ("stdin", "stdout", "stderr")]
    assert streams == [subprocess.DEVNULL, child.output, child.output]
    assert process.blocked >= {*SIGNALS}
    assert not {*SIGNALS} & signal.pthread_sigmask(signal.SIG_BLOCK, ())
    monkeypatch.setattr(sys, "path", ["", "/a", "b"])
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    own = {"PYTHONPATH": ".:/a:b", "OMP_WAIT_POLICY": "PASSIVE"}
    assert child_module._environment() == {**os.environ, **own}


def test_messages_of_a_child(child: Any) -> None:
    process = child.process
    child.send(("work", 1))
    assert process.channel.recv() == ("work", 1)
    process.channel.send("answer")
    assert child.receive() == "answer"
    assert not select.select([process.life], [], [], 0)[0]
    process.channel.close()
    assert child.channel.poll(0) and child.receive() is None
    child.send("late")  # `receive` tells that the child has died
    child.stop()
    assert child.channel.closed and child.receive() is None
    assert select.select([process.life], [], [], 0)[0] and os.read(process.life, 1) == b""


@pytest.mark.parametrize(
    ("code", "printed", "says"),
    [
        (
            LOST,
            b"noise\nprocess 2 of 2 failed, KeyError: 1\n",
            "process 2 of 2 failed, KeyError: 1",
        ),
        (
            -signal.SIGKILL,
            b"noise\n",
            "rank was killed by SIGKILL, as the kernel does if memory ends: give fewer --jobs or "
            "--devices, or a smaller --train.micro_batch",
        ),
        (-signal.SIGSEGV, b"noise\n", "rank was ended by SIGSEGV"),
        (3, b"Traceback\nKeyError: \xff\n\n", "rank ended with exit code 3; KeyError: \ufffd"),
        (0, b"", "rank ended with exit code 0"),
    ],
)
def test_a_death_has_a_reason(child: Any, code: int, printed: bytes, says: str) -> None:
    child.process.code = code
    child.output.write(printed)
    assert child.died_of("rank") == says
    assert child.output.closed and child.channel.closed


def test_a_child_is_killed_at_the_deadline(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "time", SimpleNamespace(monotonic=lambda: 100.0))
    child.join(103.0)
    assert child.process.waited == [3.0, None] and child.process.code == -signal.SIGKILL
    child.process.waited.clear()
    child.process.code = 0
    child.join(90.0)
    assert child.process.waited == [0.0] and child.process.code == 0 and child.output.closed


def test_a_worker_does_what_comes_through_its_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    class Echo:
        def __init__(self, send: Any) -> None:
            self.send = send

        def print_line(self, text: str, error: bool) -> None:
            self.send((text, error))

        def handle(self, message: str) -> None:
            if message == "end":
                raise EOFError
            print(message, "\npart", end="")
            print(f"of {message}", file=sys.stderr)
            self.send(message)

    class Proc:
        def __init__(self, path: str) -> None:
            self.path = path

        def write_text(self, text: str, encoding: str) -> None:
            written[self.path] = text

    written: dict[str, str] = {}
    ends: queue.Queue[Any] = queue.Queue()
    monkeypatch.setattr(worker, "Worker", Echo)
    monkeypatch.setattr(worker_main, "Path", Proc)
    monkeypatch.setattr(worker_main, "_end_with", lambda *given: ends.put(given))
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    here, there = Pipe()
    for message in ("one", "two", "end"):
        here.send(message)
    worker_main.main(os.dup(there.fileno()), 7, 2.5)
    there.close()
    told = []
    while here.poll(0):
        told.append(here.recv())
    here.close()
    assert told == [
        *(("one ", False), ("of one", True), "one"),
        *(("parttwo ", False), ("of two", True), "two"),
    ]
    assert ends.get() == (7, 2.5)
    assert written == {"/proc/self/oom_score_adj": "500"}


def test_workers_get_all_runs_and_are_heard_when_they_speak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs: list[Any] = []
    for number in range(2):
        encoding = SimpleNamespace(given=f"./mine{number}.py")
        resolved = SimpleNamespace(given="mqar")
        folder = Path(f"runs/seed{number}-abc")
        run = SimpleNamespace(encoding=encoding, resolved=resolved, seed=number, folder=folder)
        runs.append(SimpleNamespace(run=run))
    spec: Any = object()
    specs = tuple(RunSpec(f"./mine{n}.py", "mqar", n, f"seed{n}-abc") for n in range(2))
    assert processes.make_work(runs, spec, 3, SINCE) == Work(spec, specs, 3, SINCE, tmp_path)
    pipes = [Pipe() for _ in range(3)]
    workers: list[Any] = [SimpleNamespace(channel=here) for here, _ in pipes]
    for number in (2, 1):
        pipes[number][1].send("ready")
    assert processes._readable(workers) == workers[1:]
    for here, there in pipes:
        here.close()
        there.close()


# Processes that train together.


class Rank:
    """A child that trains each of its parts at once."""

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self.sent: list[Any] = []
        self.answers: queue.Queue[Any] = queue.Queue()
        self.ended: list[str] = []
        end = self.ended.append
        self.process = SimpleNamespace(
            poll=lambda: None, kill=lambda: end("killed"), wait=lambda: end("waited")
        )

    def send(self, message: Any) -> None:
        self.sent.append(message)
        self.answers.put(RankWorkEnded())

    def receive(self) -> Any:
        return self.answers.get()

    def died_of(self, name: str) -> str:
        return f"{name} was killed"

    def stop(self) -> None:
        self.ended.append("stopped")


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace processes and their connections; return the fakes."""
    made = SimpleNamespace(children=[], stores=[], connected=[], destroyed=0)

    def start(grace: float) -> Rank:
        made.children.append(Rank(grace))
        child: Rank = made.children[-1]
        return child

    def store(host: str, port: int, **given: Any) -> Any:
        made.stores.append((host, port, given))
        return SimpleNamespace(port=port or 4000 + len(made.stores))

    def destroy() -> None:
        made.connected.clear()
        made.destroyed += 1

    dist = SimpleNamespace(
        is_initialized=lambda: bool(made.connected), destroy_process_group=destroy
    )
    monkeypatch.setattr(rank_processes, "Child", start)
    monkeypatch.setattr(rank_processes, "TCPStore", store)
    monkeypatch.setattr(rank_processes, "dist", dist)
    monkeypatch.setattr(rank_processes, "DETECTION_SECONDS", 0.0)
    monkeypatch.setattr(rank_processes, "connect", lambda *given: made.connected.append(given))
    return made


def ranks_of(count: int) -> tuple[Any, RankProcesses]:
    """Return the work of a grid, and processes that train its runs together."""
    spec = SimpleNamespace(device="cuda")
    work: Any = SimpleNamespace(spec=spec)
    return work, RankProcesses(count, "fsdp")


def test_every_rank_gets_every_phase(together: SimpleNamespace) -> None:
    work, ranks = ranks_of(3)
    phases: list[Any] = ["start", "task"]
    for index, phase in enumerate(phases, 4):
        ranks.prepare(work, index)
        with ranks.start(phase) as group:
            assert group == ProcessGroup(0, 3, "fsdp")
            ((first, device, store),) = together.connected
            assert (first, device, store.port) == (group, "cuda", 4001)
    assert together.stores == [("127.0.0.1", 0, {"is_master": True, "wait_for_workers": False})]
    assert len(together.children) == 2
    for rank, child in enumerate(together.children, 1):
        group = ProcessGroup(rank, 3, "fsdp")
        parts = [RankWork(work, index, phase, group, 4001) for index, phase in enumerate(phases, 4)]
        assert child.sent == parts
        assert (child.grace, child.ended) == (0, [])
    assert ranks.done.empty()


@pytest.mark.parametrize("error", [ZeroDivisionError, RuntimeError])
def test_other_ranks_are_replaced_after_a_failure(
    together: SimpleNamespace, error: type[Exception]
) -> None:
    work, ranks = ranks_of(2)
    phase: Any = "task"
    ranks.prepare(work, 0)
    with pytest.raises(error), ranks.start(phase):
        raise error
    (first,) = together.children
    assert first.ended == ["killed", "waited"] and together.destroyed == 1
    with ranks.start(phase):
        pass
    assert len(together.children) == len(together.stores) == 2
    assert together.children[1].sent == [RankWork(work, 0, phase, ProcessGroup(1, 2, "fsdp"), 4002)]


def test_without_a_connection_there_is_none_to_end(
    together: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no port is free")

    monkeypatch.setattr(rank_processes, "TCPStore", refuse)
    work, ranks = ranks_of(2)
    phase: Any = "task"
    ranks.prepare(work, 0)
    with pytest.raises(RuntimeError, match="no port is free"), ranks.start(phase):
        pass
    assert together.destroyed == 0 and not together.children


@pytest.mark.parametrize("replaced", [False, True])
def test_a_rank_that_ends_ends_this_process_unless_it_was_replaced(
    together: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    class Now:
        def __init__(self, seconds: float, call: Any, given: Any) -> None:
            delays.append(seconds)
            self.start = partial(call, *given)

    delays: list[float] = []
    said: list[Any] = []
    own = SimpleNamespace(write=lambda *given: said.append(given), _exit=said.append)
    monkeypatch.setattr(rank_processes, "os", own)
    monkeypatch.setattr(threading, "Timer", Now)
    _, ranks = ranks_of(3)
    child: Any = Rank(0)
    ranks.children = [] if replaced else [child]
    answers: list[Any] = ["a line", RankWorkEnded(), RankWorkEnded("KeyError: 1"), None]
    for answer in answers:
        child.answers.put(answer)
    ranks._watch(child, 2)
    assert ranks.done.get_nowait() == child and ranks.done.empty()
    assert child.ended == ["stopped"] and delays == [rank_processes.FAILURE_TIMEOUT]
    reasons = ["process 2 of 3 failed, KeyError: 1", "process 2 of 3 was killed"]
    lost: list[Any] = []
    for reason in [] if replaced else reasons:
        lost += [(2, f"{reason}\n".encode()), LOST]
    assert said == lost


def test_a_rank_connects_once(together: SimpleNamespace) -> None:
    group = ProcessGroup(2, 3)
    for _ in range(2):
        rank_processes.join(group, "cpu", 77)
    ((joined, device, store),) = together.connected
    assert (joined, device, store.port) == (group, "cpu", 77)
    assert together.stores == [("127.0.0.1", 77, {"timeout": TIMEOUT})]


# A Ray cluster.


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class Crashed(RayError):
    pass


class FakeRay:
    """The calls of Ray; a task is executed when it is waited for.

    Attributes:
        said: the calls with their arguments.
    """

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, running: bool = True) -> None:
        self.running = running
        self.said: list[Any] = []

    def remote(self, **options: Any) -> Any:
        self.said.append(("remote", options))
        return self._wrap

    def _wrap(self, thing: Any) -> Any:
        if isinstance(thing, type):
            return SimpleNamespace(remote=lambda: Actor(thing()))
        return SimpleNamespace(remote=lambda *given: partial(thing, *given))

    def put(self, thing: Any) -> Any:
        return thing

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        for reference in references:
            with contextlib.suppress(RayError):
                reference(died=False)
        return references, []

    def get(self, reference: Any) -> Any:
        return reference(died=True) if isinstance(reference, partial) else reference

    def cancel(self, reference: Any, *, force: bool) -> None:
        self.said.append(("cancel", reference, force))

    def is_initialized(self) -> bool:
        return self.running

    def init(self, address: str, **_: Any) -> None:
        self.said.append(("init", address))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if address == "nowhere":
            raise ConnectionError("cannot connect\nto it")

    def shutdown(self) -> None:
        self.said.append("shutdown")


class Actor:
    """An actor whose methods are called at once."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self.inner, name))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def test_a_cluster_executes_runs_and_names_deaths(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(work: Any, number: int, mailbox: Any, *, died: bool) -> None:
        """Execute the run; the later calls of a worker that died tell its death."""
        assert work == (4, "cuda", 2)
        if not died:
            mailbox.put.remote(number, Event(number, "begins"))
        if number == 1:
            raise Crashed
        if number == 2:
            raise RayTaskError("Traceback\nModuleNotFoundError: pe_bench\n")
        if not died:
            for answer in (Event(number, DONE), FINISHED):
                mailbox.put.remote(number, answer)

    def make_work(runs: Any, spec: Any, threads: int, since: datetime) -> Any:
        assert since == executor.started
        return len(runs), spec.device, threads

    monkeypatch.setattr(cluster, "_work", work)
    monkeypatch.setattr(cluster, "make_work", make_work)
    _, shown, runs = relay(4)
    display: Any = shown
    spec = GridSpec(options=RunOptions(), encodings=["nope"], tasks=["mqar"], device="cuda")
    with Cluster(spec, 2) as executor:
        assert executor.parallel_runs is None
        found = {planned.run.title: outcome for planned, outcome in executor.run(runs, display)}
        last: Any = "reference"
        executor.pending = {last}
    reasons = [
        "its worker on the Ray cluster has died 4 times (Crashed)",
        "the Ray cluster cannot run it: ModuleNotFoundError: pe_bench",
    ]
    assert found == {
        "run 0": DONE, "run 3": DONE, "run 1": (reasons[0], FAILED), "run 2": (reasons[1], FAILED),
    }  # fmt: skip
    assert sorted(shown.said) == [f"run {number} begins" for number in range(4)]
    assert ray.said == [
        ("remote", {"num_cpus": 0}),
        ("remote", {"num_cpus": 2, "num_gpus": 1, "max_retries": 3}),
        ("cancel", "reference", True),
    ]  # the user's own connection stays


def test_a_worker_of_a_cluster_answers_into_the_mailbox(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Echo:
        send: Any = None

        def handle(self, work: Any) -> None:
            self.send(f"{work} begins")
            self.send(f"{work} ends")

    monkeypatch.setattr(cluster, "_worker", Echo)
    mailbox = cluster._Mailbox()
    for number in (3, 5):
        work: Any = f"work {number}"
        cluster._work(work, number, Actor(mailbox))
    told = [(3, "work 3 begins"), (3, "work 3 ends"), (5, "work 5 begins"), (5, "work 5 ends")]
    assert mailbox.take() == told
    assert mailbox.take() == []


def test_a_cluster_is_joined(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster._join() == (ray, False) and ray.said == []
    ray.running = False
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert cluster._join() == (ray, True)
    spec = GridSpec(options=RunOptions(), encodings=["nope"], tasks=["mqar"])
    with Cluster(spec, 1):
        pass
    assert signal.getsignal(signal.SIGTERM) == before
    assert ray.said == [("init", "auto"), ("init", "auto"), "shutdown"]
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    with pytest.raises(InputError, match=r"no Ray cluster to send runs to \(cannot connect\): st"):
        cluster._join()
    signal.signal(signal.SIGTERM, before)
