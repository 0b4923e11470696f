"""A process that runs cells for another one, which it takes from a pipe and answers through it.

`python -m pe_bench.running.executors.worker PIPE LIFE`: the numbers of two open files. The process
ends when the second one ends, with that of its parent at the latest.
"""

import _thread
import contextlib
import io
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from pe_bench.running.executors.job import Answer, Job, JobRunner, Line
from pe_bench.system.stopping import stopping_cleanly

GRACE = 3.0  # seconds that a process has to end by itself


def main(pipe: int, life: int) -> None:
    """Run the jobs that come through a pipe, until None comes."""
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    _be_first_without_memory()
    with stopping_cleanly(), contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        channel: Connection[Answer, Job | None] = Connection(pipe)
        sys.stdout = _Lines(channel, error=False)
        sys.stderr = _Lines(channel, error=True)
        runner = JobRunner(channel.send)
        while (job := channel.recv()) is not None:
            channel.send(runner.run(job))


def _end_with(life: int) -> None:
    """End this process when a file has ended, with a few seconds to do so in order."""
    os.read(life, 1)
    _thread.interrupt_main(signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(128 + signal.SIGTERM)  # all that is written is whole at any moment


def _be_first_without_memory() -> None:
    """Let Linux end this process rather than its parent where memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


class _Lines(io.TextIOBase):
    """Sends what is printed, such as by a plugin, line by line."""

    def __init__(self, channel: "Connection[Answer, Job | None]", *, error: bool) -> None:
        self.channel = channel
        self.error = error
        self.rest = ""

    def write(self, text: str) -> int:
        *lines, self.rest = f"{self.rest}{text}".split("\n")
        for line in lines:
            self.channel.send(Line(line, self.error))
        return len(text)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
