"""The processes that train a run together with this one."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterator

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from pe_bench.grid.executors.child import Child
from pe_bench.grid.executors.work import Part, PartEnded, Work
from pe_bench.system.stopping import LOST
from pe_bench.train.process_group import LONGEST_WAIT, Group, Phase, Strategy, meet

HOST = "127.0.0.1"
NOTICE = 1.0  # seconds until the death of another process shows
PATIENCE = 10.0  # seconds until a failure of another process, which may be this one's too, counts


class Companions:
    """Starts processes when a phase needs them, and keeps them for the phases that follow.

    This process is the first. Where another one dies there is nothing to go on with, and this one
    may wait for it in code that cannot be interrupted: it ends too, with the reason as its last
    line. After any other failure all of them are replaced.

    Args:
        devices: number of processes, this one included.
        strategy: see `Group`.
    """

    def __init__(self, devices: int, strategy: Strategy) -> None:
        self.devices = devices
        self.strategy: Strategy = strategy
        self.work: Work | None = None
        self.index = 0
        self.children: list[Child] = []
        self.store: TCPStore | None = None
        self.done: queue.Queue[Child] = queue.Queue()

    def of(self, work: Work, index: int) -> "Companions":
        """Return these for the phases of a run, given its index."""
        self.work = work
        self.index = index
        return self

    @contextlib.contextmanager
    def gather(self, phase: Phase) -> Iterator[Group]:
        """Let the others begin a phase, and wait until they have ended it with this process."""
        assert self.work is not None
        first = Group(0, self.devices, self.strategy)
        try:
            if self.store is None:
                self.store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
            while len(self.children) < self.devices - 1:
                self._start()
            for rank, child in enumerate(self.children, 1):
                place = Group(rank, self.devices, self.strategy)
                child.send(Part(self.work, self.index, phase, place, self.store.port))
            if not dist.is_initialized():
                meet(first, self.work.device, self.store)
            yield first
            for _ in self.children:
                self.done.get()
        except RuntimeError:  # such as a connection that is lost
            time.sleep(NOTICE)
            if any(child.process.poll() is not None for child in self.children):
                threading.Event().wait()  # the one that watches it ends this process
            self._end()
            raise
        except BaseException:
            self._end()
            raise

    def _start(self) -> None:
        child = Child(grace=0)
        self.children.append(child)
        number = len(self.children) + 1
        threading.Thread(target=self._watch, args=(child, number), daemon=True).start()

    def _watch(self, child: Child, number: int) -> None:
        """Hear a process until it ends; what it prints is passed over."""
        name = f"process {number} of {self.devices}"
        for answer in iter(child.receive, None):
            if not isinstance(answer, PartEnded):
                continue
            if not answer.reason:
                self.done.put(child)
                continue
            reason = f"{name} failed, {answer.reason}"
            threading.Timer(PATIENCE, self._give_up, (child, reason)).start()
        if child in self.children:
            self._give_up(child, child.died_of(name))
        child.stop()

    def _give_up(self, child: Child, reason: str) -> None:
        """End this process, unless the other one has been replaced meanwhile."""
        if child in self.children:
            os.write(2, f"{reason}\n".encode())
            os._exit(LOST)

    def _end(self) -> None:
        """End the others; they have nothing to save."""
        children, self.children = self.children, []
        for child in children:
            child.process.kill()
            child.process.wait()
        if dist.is_initialized():
            dist.destroy_process_group()
        self.store = None
        self.done = queue.Queue()


def join(group: Group, device: str, port: int) -> None:
    """Connect this process with the first one of a group, once."""
    if not dist.is_initialized():
        meet(group, device, TCPStore(HOST, port, timeout=LONGEST_WAIT))
