"""Workers on this machine, each a process with its own threads."""

import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path

from pe_bench.grid.display import Display
from pe_bench.grid.executors.child import Child
from pe_bench.grid.executors.executor import Ended, Executor
from pe_bench.grid.executors.relay import Relay
from pe_bench.grid.executors.work import PASSED, RunSpec, Work
from pe_bench.grid.planned_run import PlannedRun
from pe_bench.runs.options import RunOptions
from pe_bench.train.process_group import Strategy

GRACE = 2.0  # seconds that a worker has to end by itself


class Processes(Executor):
    """Starts workers, which share the runs of a grid by the locks of the results folder.

    A worker that dies has failed its run; another one takes its place.

    Args:
        count: number of workers.
        options: of the command.
        threads: of each worker.
        devices: processes that train each run together.
        strategy: of these processes, see `ProcessGroup`.
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
        self.lanes = count
        self.count = count
        self.options = options
        self.threads = threads
        self.devices = devices
        self.strategy: Strategy = strategy
        self.workers: list[Child] = []

    def run(self, runs: Sequence[PlannedRun], display: Display) -> Iterator[Ended]:
        relay = Relay(runs, display)
        work = make_work(runs, self.options, self.threads, self)
        for _ in range(min(self.count, len(runs)) - len(self.workers)):
            self.workers.append(Child(GRACE))
        busy = self.workers[: len(runs)]
        for worker in busy:
            worker.send(work)
        while busy:
            for worker in _readable(busy):
                answer = worker.receive()
                if answer == PASSED:
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


def make_work(
    runs: Sequence[PlannedRun], options: RunOptions, threads: int, executor: Executor
) -> Work:
    """Return the work of workers, for planned runs."""
    first = runs[0].run
    return Work(
        options,
        first.results,
        first.device,
        tuple(RunSpec.of(planned.run) for planned in runs),
        threads,
        executor.started,
        Path.cwd(),
        executor.devices,
        executor.strategy,
    )


def _readable(workers: Sequence[Child]) -> list[Child]:
    """Return the workers that have said something, or have died; wait for one."""
    by_channel = {worker.channel: worker for worker in workers}
    ready = wait(list(by_channel))
    return [worker for channel, worker in by_channel.items() if channel in ready]
