"""Workers on this machine, each a process with its own threads."""

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from multiprocessing.connection import wait
from pathlib import Path

from pe_bench.grid.display import Display
from pe_bench.grid.executors.child import Child
from pe_bench.grid.executors.executor import Executor, Tried
from pe_bench.grid.executors.relay import Relay
from pe_bench.grid.executors.work import FINISHED, RunSpec, Work
from pe_bench.grid.planned_run import PlannedRun
from pe_bench.grid.spec import GridSpec

GRACE = 2.0  # seconds that a worker has to end by itself


class Processes(Executor):
    """Executor with workers that distribute the runs of a grid by the locks of the results folder.

    If a worker dies, its run has failed, and a new worker replaces it.

    Args:
        spec: the grid, with the number of workers.
        threads: number of threads of each worker.
    """

    def __init__(self, spec: GridSpec, threads: int) -> None:
        super().__init__()
        self.count = spec.execution.jobs or 1
        self.parallel_runs = self.count
        self.spec = spec
        self.threads = threads
        self.workers: list[Child] = []

    def run(self, runs: Sequence[PlannedRun], display: Display) -> Iterator[Tried]:
        relay = Relay(runs, display)
        work = make_work(runs, self.spec, self.threads, self.started)
        for _ in range(min(self.count, len(runs)) - len(self.workers)):
            self.workers.append(Child(GRACE))
        busy = self.workers[: len(runs)]
        for worker in busy:
            worker.send(work)
        while busy:
            for worker in _readable(busy):
                answer = worker.receive()
                if answer == FINISHED:
                    busy.remove(worker)
                elif answer is not None:
                    yield from relay.hear(worker, answer)
                else:
                    self.workers.remove(worker)
                    busy.remove(worker)
                    yield from relay.died(worker, worker.died_of())
                    if relay.left:
                        busy.append(self._replace(work))
        yield from relay.end()

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.stop()
        deadline = time.monotonic() + GRACE + 1
        for worker in self.workers:
            worker.join(deadline)

    def _replace(self, work: Work) -> Child:
        worker = Child(GRACE)
        self.workers.append(worker)
        worker.send(work)
        return worker


def make_work(runs: Sequence[PlannedRun], spec: GridSpec, threads: int, since: datetime) -> Work:
    """Return the message to workers that contains planned runs."""
    specs = tuple(RunSpec.of(planned.run) for planned in runs)
    return Work(spec, specs, threads, since, Path.cwd())


def _readable(workers: Sequence[Child]) -> list[Child]:
    """Wait, and return the workers that have sent a message or have died."""
    by_channel = {worker.channel: worker for worker in workers}
    ready = wait(list(by_channel))
    return [worker for channel, worker in by_channel.items() if channel in ready]
