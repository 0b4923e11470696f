"""Cells side by side, each in a process of its own with one thread."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import wait

from pe_bench.errors import SavingError
from pe_bench.grid.display import Display
from pe_bench.grid.executors.child import Child
from pe_bench.grid.executors.executor import Ended, Executor
from pe_bench.grid.executors.hearing import Hearing
from pe_bench.grid.executors.job import Job, Passed, Unsaved
from pe_bench.grid.plan import PlannedRun
from pe_bench.runs.options import RunOptions
from pe_bench.runs.run import Outcome
from pe_bench.train.process_group import Strategy

GRACE = 2.0  # seconds that a worker has to end by itself


class Processes(Executor):
    """Runs cells in worker processes, each of which takes one cell after the other.

    A worker that dies has failed its cell; another one takes its place.

    Args:
        count: number of workers.
        options: of the command.
        threads: of each process.
        devices, strategy: see `Job`.
    """

    def __init__(
        self,
        count: int,
        options: RunOptions,
        threads: int,
        devices: int = 1,
        strategy: Strategy = "ddp",
    ) -> None:
        super().__init__()
        self.devices = devices
        self.strategy = strategy
        self.lanes = count
        self.options = options
        self.threads = threads
        self.workers: list[Child] = []

    def run(self, cells: Sequence[PlannedRun], display: Display) -> Iterator[Ended]:
        hearing = Hearing(display)
        waiting = deque(cells)
        working: dict[Child, PlannedRun] = {}
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
        deadline = time.monotonic() + GRACE + 1
        for worker in self.workers:
            worker.join(deadline)

    @property
    def count(self) -> int:
        """Number of workers."""
        assert self.lanes is not None
        return self.lanes

    def _idle(self, working: dict[Child, PlannedRun]) -> Child:
        for worker in self.workers:
            if worker not in working:
                return worker
        self.workers.append(Child(GRACE))
        return self.workers[-1]

    def _job(self, cell: PlannedRun) -> Job:
        job = Job.of(cell.run, self.options, self.threads, self.started)
        return replace(job, devices=self.devices, strategy=self.strategy)


def _readable(working: dict[Child, PlannedRun]) -> list[Child]:
    """Return the workers that have said something, or have died; wait for one."""
    by_channel = {worker.channel: worker for worker in working}
    ready = wait(list(by_channel))
    return [worker for channel, worker in by_channel.items() if channel in ready]
