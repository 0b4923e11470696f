"""A process that works on a grid, together with others on the same results folder.

`python -m pe_bench.grid.executors.worker_main PIPE LIFE GRACE`: PIPE and LIFE are the numbers of
two open files, GRACE is a time in seconds. The process ends when the file LIFE ends, at the latest
when its parent ends.
"""

import _thread
import contextlib
import io
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.system.stopping import stopping_cleanly

if TYPE_CHECKING:
    from pe_bench.grid.executors.work import Answer, RankWork, Work

POLL_SECONDS = 1.0  # seconds between two checks of the parent
DETECTION_SECONDS = 0.1  # seconds until the end of the parent can be detected


def main(pipe: int, life: int, grace: float) -> None:
    """Do the work that comes through a pipe, until the pipe ends."""
    with stopping_cleanly(), contextlib.suppress(KeyboardInterrupt, EOFError, BrokenPipeError):
        threading.Thread(target=_end_with, args=(life, grace), daemon=True).start()
        _prefer_for_oom_kill()
        from pe_bench.grid.executors.worker import Worker  # takes seconds

        channel: Connection[Answer, Work | RankWork] = Connection(pipe)
        worker = Worker(channel.send)
        sys.stdout = _Lines(worker.print_line, error=False)
        sys.stderr = _Lines(worker.print_line, error=True)
        while True:
            worker.handle(channel.recv())


def _end_with(life: int, grace: float) -> None:
    """End this process together with its parent, or a few seconds after the parent asks for it.

    Args:
        life: a file that ends when the parent asks, or when the parent ends. A process forked by a
            plugin may keep it open, so the parent is checked too.
        grace: seconds that this process has to end by itself after the parent has asked.
    """
    parent = os.getppid()
    while not select.select([life], [], [], POLL_SECONDS)[0] and os.getppid() == parent:
        pass
    time.sleep(DETECTION_SECONDS)
    if os.getppid() == parent:
        _thread.interrupt_main(signal.SIGTERM)
        time.sleep(grace)
    os._exit(128 + signal.SIGTERM)  # safe: files are complete at any moment


def _prefer_for_oom_kill() -> None:
    """Let Linux kill this process before its parent if memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


class _Lines(io.TextIOBase):
    """Stream that forwards printed lines, for example of a plugin."""

    def __init__(self, print_line: Callable[[str, bool], None], *, error: bool) -> None:
        self.print_line = print_line
        self.error = error
        self.rest = ""

    def write(self, text: str) -> int:
        *lines, self.rest = f"{self.rest}{text}".split("\n")
        for line in lines:
            self.print_line(line, self.error)
        return len(text)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
