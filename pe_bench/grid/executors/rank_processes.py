"""The other ranks of a run under `--devices`: processes that train together with this process."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterator

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from pe_bench.grid.executors.child import Child
from pe_bench.grid.executors.work import RankWork, RankWorkEnded, Work
from pe_bench.runs.distributed import PhaseMessage
from pe_bench.system.stopping import LOST
from pe_bench.train.process_group import TIMEOUT, ProcessGroup, Strategy, connect

HOST = "127.0.0.1"
DETECTION_SECONDS = 1.0  # seconds until the death of another process can be detected
FAILURE_TIMEOUT = 10.0  # seconds to wait until another process's failure occurs in this one too


class RankProcesses:
    """Processes of the other ranks, started on demand and kept for the following phases.

    This process is the first rank. If another rank dies, this process cannot continue, and may be
    waiting in code that cannot be interrupted. So it exits too, with the reason as its last line.
    After any other failure, all other ranks are replaced.

    Args:
        devices: number of processes, this one included.
        strategy: see `ProcessGroup`.
    """

    def __init__(self, devices: int, strategy: Strategy) -> None:
        self.devices = devices
        self.strategy: Strategy = strategy
        self.work: Work | None = None
        self.index = 0
        self.children: list[Child] = []
        self.store: TCPStore | None = None
        self.done: queue.Queue[Child] = queue.Queue()

    def prepare(self, work: Work, index: int) -> None:
        """Let the next phases be those of a run in the work.

        Args:
            work: the work that contains the run.
            index: index of the run.
        """
        self.work = work
        self.index = index

    @contextlib.contextmanager
    def start(self, phase: PhaseMessage) -> Iterator[ProcessGroup]:
        """Let the other ranks start a phase, and wait at the end until they have finished it."""
        assert self.work is not None
        first = ProcessGroup(0, self.devices, self.strategy)
        try:
            if self.store is None:
                self.store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
            while len(self.children) < self.devices - 1:
                self._start_process()
            for rank, child in enumerate(self.children, 1):
                group = ProcessGroup(rank, self.devices, self.strategy)
                child.send(RankWork(self.work, self.index, phase, group, self.store.port))
            if not dist.is_initialized():
                connect(first, self.work.spec.device, self.store)
            yield first
            for _ in self.children:
                self.done.get()
        except RuntimeError:  # for example, a lost connection
            time.sleep(DETECTION_SECONDS)
            if any(child.process.poll() is not None for child in self.children):
                threading.Event().wait()  # the thread that watches the child ends this process
            self._end()
            raise
        except BaseException:
            self._end()
            raise

    def _start_process(self) -> None:
        child = Child(grace=0)
        self.children.append(child)
        number = len(self.children) + 1
        threading.Thread(target=self._watch, args=(child, number), daemon=True).start()

    def _watch(self, child: Child, number: int) -> None:
        """Receive messages of a process until it ends, and ignore its output."""
        name = f"process {number} of {self.devices}"
        for answer in iter(child.receive, None):
            if not isinstance(answer, RankWorkEnded):
                continue
            if not answer.reason:
                self.done.put(child)
                continue
            reason = f"{name} failed, {answer.reason}"
            threading.Timer(FAILURE_TIMEOUT, self._give_up, (child, reason)).start()
        if child in self.children:
            self._give_up(child, child.died_of(name))
        child.stop()

    def _give_up(self, child: Child, reason: str) -> None:
        """Exit this process, unless the child has been replaced meanwhile."""
        if child in self.children:
            os.write(2, f"{reason}\n".encode())
            os._exit(LOST)

    def _end(self) -> None:
        """Kill the other ranks; they have nothing to save."""
        children, self.children = self.children, []
        for child in children:
            child.process.kill()
            child.process.wait()
        if dist.is_initialized():
            dist.destroy_process_group()
        self.store = None
        self.done = queue.Queue()


def join(group: ProcessGroup, device: str, port: int) -> None:
    """Connect this process with the first rank of a group, once."""
    if not dist.is_initialized():
        connect(group, device, TCPStore(HOST, port, timeout=TIMEOUT))
