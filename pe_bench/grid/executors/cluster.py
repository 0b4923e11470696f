"""Workers on an existing Ray cluster; dead workers are restarted."""

import contextlib
import functools
import importlib
import logging
import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from pe_bench.errors import InputError
from pe_bench.grid.display import Display
from pe_bench.grid.executors.executor import Executor, Tried
from pe_bench.grid.executors.processes import make_work
from pe_bench.grid.executors.relay import Relay
from pe_bench.grid.executors.work import Answer, Work
from pe_bench.grid.executors.worker import Worker
from pe_bench.grid.planned_run import PlannedRun
from pe_bench.grid.spec import GridSpec
from pe_bench.system.stopping import SIGNALS

RETRIES = 3  # restarts of a dead worker; the new one resumes its run
POLL_SECONDS = 0.5  # seconds between two checks of the mailbox


class Cluster(Executor):
    """Executor with workers on a Ray cluster; all machines need the same code and file system.

    Args:
        spec: the grid; each worker gets one device.
        threads: number of threads of each worker.

    Raises:
        InputError: Ray is not installed, or there is no cluster.
    """

    parallel_runs = None

    def __init__(self, spec: GridSpec, threads: int) -> None:
        super().__init__()
        self.spec = spec
        self.threads = threads
        self.ray, self.joined = _join()
        self.pending: set[Any] = set()

    def run(self, runs: Sequence[PlannedRun], display: Display) -> Iterator[Tried]:
        ray = self.ray
        relay = Relay(runs, display)
        mailbox = ray.remote(num_cpus=0)(_Mailbox).remote()
        remote = ray.remote(
            num_cpus=self.threads,
            num_gpus=1 if self.spec.device == "cuda" else 0,
            max_retries=RETRIES,
        )(_work)
        work = ray.put(make_work(runs, self.spec, self.threads, self.started))
        # One worker per run: the cluster starts them as it has free devices.
        workers = {remote.remote(work, number, mailbox): number for number in range(len(runs))}
        self.pending = set(workers)
        while self.pending and relay.left:
            ready, _ = ray.wait(list(self.pending), timeout=POLL_SECONDS)
            with contextlib.suppress(ray.exceptions.RayError):  # messages may be lost
                for number, answer in ray.get(mailbox.take.remote()):
                    yield from relay.hear(number, answer)
            for reference in ready:
                self.pending.discard(reference)
                reason = self._find_death(reference)
                if reason:
                    yield from relay.died(workers[reference], reason)
        self._cancel()
        yield from relay.end()

    def __exit__(self, *_: object) -> None:
        self._cancel()
        if self.joined:
            self.ray.shutdown()

    def _cancel(self) -> None:
        for reference in self.pending:
            self.ray.cancel(reference, force=True)
        self.pending = set()

    def _find_death(self, reference: Any) -> str:
        """Return the reason for the death of a worker; empty if it ended normally."""
        errors = self.ray.exceptions
        try:
            self.ray.get(reference)
        except errors.RayTaskError as error:  # for example, a machine without this package
            last = str(error).strip().splitlines()[-1]
            return f"the Ray cluster cannot run it: {last}"
        except errors.RayError as error:
            return (
                f"its worker on the Ray cluster has died {RETRIES + 1} times "
                f"({type(error).__name__})"
            )
        return ""


class _Mailbox:
    """Storage for the answers of workers until they are requested; an actor of the cluster."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, Answer]] = []

    def put(self, number: int, answer: Answer) -> None:
        """Store the answer of a worker."""
        self.kept.append((number, answer))

    def take(self) -> list[tuple[int, Answer]]:
        """Return the answers since the last call."""
        kept, self.kept = self.kept, []
        return kept


def _work(work: Work, number: int, mailbox: Any) -> None:
    """Work on a grid, in a process of the cluster."""
    worker = _worker()
    last: list[Any] = []

    def send(answer: Answer) -> None:
        last[:] = [mailbox.put.remote(number, answer)]

    worker.send = send
    worker.handle(work)
    ray = importlib.import_module("ray")
    ray.get(last)  # when this function returns, all answers are in the mailbox


@functools.cache
def _worker() -> Worker:
    """Return the worker of this process; it is kept, together with the tasks that it has opened."""
    return Worker(lambda answer: None)


def _join() -> tuple[Any, bool]:
    """Return the module ray, and whether this call has connected to a cluster.

    Raises:
        InputError: Ray is not installed, or there is no cluster.
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
            f"there is no Ray cluster to send runs to ({first}): start one with "
            "`ray start --head`, or give the address of one as RAY_ADDRESS"
        ) from None
    for number, handler in before.items():  # Ray has replaced the signal handlers
        signal.signal(number, handler)
    return ray, True
