"""A process that works on a grid, together with others on the same results folder.

`python -m pe_bench.grid.executors.worker PIPE LIFE GRACE`: the numbers of two open files, and
seconds. The process ends when the second file ends, with that of its parent at the latest.
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
    from pe_bench.grid.executors.work import Answer, Part, Work

LOOK = 1.0  # seconds between two looks at the parent
NOTICE = 0.1  # seconds until the end of the parent shows


def main(pipe: int, life: int, grace: float) -> None:
    """Do the work that comes through a pipe, until it ends."""
    with stopping_cleanly(), contextlib.suppress(KeyboardInterrupt, EOFError, BrokenPipeError):
        threading.Thread(target=_end_with, args=(life, grace), daemon=True).start()
        _be_first_without_memory()
        from pe_bench.grid.executors.working import Worker  # takes seconds

        channel: Connection[Answer, Work | Part] = Connection(pipe)
        worker = Worker(channel.send)
        sys.stdout = _Lines(worker.say, error=False)
        sys.stderr = _Lines(worker.say, error=True)
        while True:
            worker.do(channel.recv())


def _end_with(life: int, grace: float) -> None:
    """End this process with its parent at once, or some seconds after the parent has asked for it.

    Args:
        life: a file that ends when the parent asks, or ends itself. A process that a plugin has
            forked may keep it open, so the parent is looked at as well.
        grace: seconds to end in order.
    """
    parent = os.getppid()
    while not select.select([life], [], [], LOOK)[0] and os.getppid() == parent:
        pass
    time.sleep(NOTICE)
    if os.getppid() == parent:
        _thread.interrupt_main(signal.SIGTERM)
        time.sleep(grace)
    os._exit(128 + signal.SIGTERM)  # all that is written is whole at any moment


def _be_first_without_memory() -> None:
    """Let Linux end this process rather than its parent where memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


class _Lines(io.TextIOBase):
    """Forwards printed lines, for instance of a plugin."""

    def __init__(self, say: Callable[[str, bool], None], *, error: bool) -> None:
        self.say = say
        self.error = error
        self.rest = ""

    def write(self, text: str) -> int:
        *lines, self.rest = f"{self.rest}{text}".split("\n")
        for line in lines:
            self.say(line, self.error)
        return len(text)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
