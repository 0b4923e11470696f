"""Cells on an existing Ray cluster, which repeats those whose worker has died."""

import contextlib
import functools
import logging
import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from pe_bench.errors import InputError, SavingError
from pe_bench.grid.display import Display
from pe_bench.grid.executors.executor import Ended, Executor
from pe_bench.grid.executors.hearing import Hearing
from pe_bench.grid.executors.job import Answer, Job, Passed, Unsaved
from pe_bench.grid.executors.runner import JobRunner
from pe_bench.grid.plan import PlannedRun
from pe_bench.runs.options import RunOptions
from pe_bench.runs.run import Outcome
from pe_bench.system.stopping import SIGNALS

RETRIES = 3  # of a cell whose worker has died; each goes on where the one before was
LOOK = 0.5  # seconds between two looks at what workers say


class Cluster(Executor):
    """Sends all cells to a Ray cluster; its workers need the same code and file system.

    Args:
        options: of the command.
        device: "cpu" or "cuda", of which each cell gets one.
        threads: of each cell.

    Raises:
        InputError: Ray is not installed, or there is no cluster.
    """

    lanes = None

    def __init__(self, options: RunOptions, device: str, threads: int) -> None:
        super().__init__()
        self.options = options
        self.device = device
        self.threads = threads
        self.ray, self.joined = _join()
        self.pending: dict[Any, PlannedRun] = {}

    def run(self, cells: Sequence[PlannedRun], display: Display) -> Iterator[Ended]:
        ray = self.ray
        hearing = Hearing(display)
        mailbox = ray.remote(num_cpus=0)(_Mailbox).remote()
        remote = ray.remote(
            num_cpus=self.threads,
            num_gpus=1 if self.device == "cuda" else 0,
            max_retries=RETRIES,
        )(_run_job)
        for number, cell in enumerate(cells):
            job = Job.of(cell.run, self.options, self.threads, self.started)
            self.pending[remote.remote(job, number, mailbox)] = cell
        while self.pending:
            ready, _ = ray.wait(list(self.pending), timeout=LOOK)
            with contextlib.suppress(ray.exceptions.RayError):  # what they say may be lost
                for number, answer in ray.get(mailbox.take.remote()):
                    hearing.show(answer, cells[number].run)
            for reference in ready:
                cell = self.pending.pop(reference)
                yield cell, self._outcome(reference, cell)

    def __exit__(self, *_: object) -> None:
        for reference in self.pending:
            self.ray.cancel(reference, force=True)
        if self.joined:
            self.ray.shutdown()

    def _outcome(self, reference: Any, cell: PlannedRun) -> Outcome | None:
        errors = self.ray.exceptions
        try:
            answer: Answer = self.ray.get(reference)
        except errors.RayTaskError as error:  # such as of a machine without this package
            last = str(error).strip().splitlines()[-1]
            return cell.run.record_death(f"the Ray cluster cannot run it: {last}")
        except errors.RayError as error:
            return cell.run.record_death(
                f"its worker on the Ray cluster has died {RETRIES + 1} times "
                f"({type(error).__name__})"
            )
        if isinstance(answer, Unsaved):
            raise SavingError(answer.sentence)
        return answer if isinstance(answer, Outcome) else None


class _Mailbox:
    """Keeps what workers say of their cells until it is asked for; an actor of the cluster."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, Answer]] = []

    def put(self, number: int, answer: Answer) -> None:
        """Keep what is said of a cell."""
        self.kept.append((number, answer))

    def take(self) -> list[tuple[int, Answer]]:
        """Return what has been said since the last time."""
        kept, self.kept = self.kept, []
        return kept


def _run_job(job: Job, number: int, mailbox: Any) -> Outcome | Passed | Unsaved:
    """Run a cell in a worker of the cluster."""
    runner = _runner()
    runner.tell = lambda answer: mailbox.put.remote(number, answer)
    return runner.run(job)


@functools.cache
def _runner() -> JobRunner:
    """Return what runs all jobs of this worker."""
    return JobRunner(lambda answer: None)


def _join() -> tuple[Any, bool]:
    """Return the module ray, and whether this call has connected it with a cluster.

    Raises:
        InputError: it is not installed, or there is no cluster.
    """
    try:
        import ray
    except ImportError:
        raise InputError(
            "--executor ray needs Ray: run pip install 'pe-bench[ray]', here and on the cluster"
        ) from None
    if ray.is_initialized():
        return ray, False
    address = os.environ.get("RAY_ADDRESS") or "auto"
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        first = str(error).strip().partition("\n")[0]
        raise InputError(
            f"there is no Ray cluster to send cells to ({first}): start one with "
            "`ray start --head`, or give the address of one as RAY_ADDRESS"
        ) from None
    for number, handler in before.items():  # Ray has set its own
        signal.signal(number, handler)
    return ray, True
