"""Cells side by side, each in a process of its own with one thread."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from pe_bench.errors import SavingError
from pe_bench.running.display import Display
from pe_bench.running.executors.executor import Ended, Executor
from pe_bench.running.executors.hearing import Hearing
from pe_bench.running.executors.job import Answer, Job, Passed, Unsaved
from pe_bench.running.options import RunOptions
from pe_bench.running.plan import PlannedRun
from pe_bench.running.run import Outcome
from pe_bench.system.stopping import SIGNALS

GRACE = 3.0  # seconds that a process has to end, a little more than it takes for itself
MODULE = "pe_bench.running.executors.worker"


class Processes(Executor):
    """Runs cells in worker processes, each of which takes one cell after the other.

    A worker that dies has failed its cell; another one takes its place.

    Args:
        count: number of workers.
        options: of the command.
        threads: of each cell.
    """

    def __init__(self, count: int, options: RunOptions, threads: int) -> None:
        super().__init__()
        self.lanes = count
        self.options = options
        self.threads = threads
        self.workers: list[_Worker] = []

    def run(self, cells: Sequence[PlannedRun], display: Display) -> Iterator[Ended]:
        hearing = Hearing(display)
        waiting = deque(cells)
        working: dict[_Worker, PlannedRun] = {}
        while waiting or working:
            while waiting and len(working) < self.count:
                worker = self._idle(working)
                working[worker] = waiting.popleft()
                worker.send(self._job(working[worker]))
            for worker in _readable(working):
                cell = working[worker]
                answer = worker.receive()
                if answer is None:
                    self.workers.remove(worker)
                    outcome: Outcome | None = cell.run.record_death(worker.died_of())
                elif isinstance(answer, Unsaved):
                    raise SavingError(answer.sentence)
                elif isinstance(answer, Outcome | Passed):
                    outcome = answer if isinstance(answer, Outcome) else None
                else:
                    hearing.show(answer, cell.run)
                    continue
                del working[worker]
                yield cell, outcome

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.stop()
        deadline = time.monotonic() + GRACE
        for worker in self.workers:
            worker.join(deadline)

    @property
    def count(self) -> int:
        """Number of workers."""
        assert self.lanes is not None
        return self.lanes

    def _idle(self, working: dict["_Worker", PlannedRun]) -> "_Worker":
        for worker in self.workers:
            if worker not in working:
                return worker
        self.workers.append(_Worker())
        return self.workers[-1]

    def _job(self, cell: PlannedRun) -> Job:
        return Job.of(cell.run, self.options, self.threads, self.started)


class _Worker:
    """A process, the pipe to it, and a file that ends with this process and ends it."""

    def __init__(self) -> None:
        self.channel: Connection[Any, Answer]
        self.channel, other = Pipe()
        reading, self.life = os.pipe()
        self.output = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        command = [sys.executable, "-P", "-m", MODULE, str(other.fileno()), str(reading)]
        # Signals are for this process, which then ends its workers; Ctrl-C would reach all.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=self.output,
                pass_fds=(other.fileno(), reading),
                env=_environment(),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            other.close()
            os.close(reading)

    def send(self, job: Job) -> None:
        """Send a job; a process that has died meanwhile is found when it should answer."""
        with contextlib.suppress(BrokenPipeError):
            self.channel.send(job)

    def receive(self) -> Answer | None:
        """Return the next answer, None where the process has died."""
        try:
            return self.channel.recv()
        except (EOFError, ConnectionResetError):
            return None

    def died_of(self) -> str:
        """Return how the process has ended, in a few words."""
        code = self.process.wait()
        self.stop()
        self.output.seek(0)
        last = self.output.read().decode(errors="replace").strip().splitlines()[-1:]
        self.output.close()
        if code == -signal.SIGKILL:
            return (
                "its process was killed by SIGKILL, as the kernel does where memory runs out: "
                "fewer --jobs or a smaller --train.micro_batch need less"
            )
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return "; ".join([f"its process ended with exit code {code}", *last])

    def stop(self) -> None:
        """Ask the process to end."""
        os.close(self.life)
        self.channel.close()

    def join(self, deadline: float) -> None:
        """Wait until the process has ended, after a deadline by force."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.output.close()


def _readable(working: dict[_Worker, PlannedRun]) -> list[_Worker]:
    """Return the workers that have said something, or have died; wait for one."""
    by_channel = {worker.channel: worker for worker in working}
    ready = wait(list(by_channel))
    return [worker for channel, worker in by_channel.items() if channel in ready]


def _environment() -> dict[str, str]:
    """Return the environment of a worker, which imports what this process can import."""
    path = os.pathsep.join(entry or "." for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "PASSIVE"}
