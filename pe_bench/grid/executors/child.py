"""A child process that answers messages through a pipe, and ends with this process."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, Pipe
from typing import Any

from pe_bench.system.stopping import LOST, SIGNALS

MODULE = "pe_bench.grid.executors.worker_main"


class Child:
    """A child process, the pipe to it, and a file whose end makes the child exit.

    The file ends with this process.

    Args:
        grace: seconds that the child has to end by itself; more than 0 if it writes files.
    """

    def __init__(self, grace: float) -> None:
        self.channel: Connection[Any, Any]
        self.channel, other = Pipe()
        reading, self.life = os.pipe()
        self.output = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the child lives
        numbers = map(str, (other.fileno(), reading, grace))
        command = [sys.executable, "-P", "-m", MODULE, *numbers]
        # Only this process handles signals, and then ends its workers. Ctrl-C would reach them too.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=self.output,
                pass_fds=(other.fileno(), reading),
                env=_environment(),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            other.close()
            os.close(reading)

    def send(self, message: Any) -> None:
        """Send a message. If the process has died, `receive` will show it."""
        with contextlib.suppress(BrokenPipeError):
            self.channel.send(message)

    def receive(self) -> Any:
        """Return the next answer; None: the process has died."""
        try:
            return self.channel.recv()
        except (EOFError, OSError):
            return None

    def died_of(self, name: str = "its process") -> str:
        """Return a short description of how the process ended, with the given name."""
        code = self.process.wait()
        self.stop()
        self.output.seek(0)
        last = self.output.read().decode(errors="replace").strip().splitlines()[-1:]
        self.output.close()
        if code == LOST:
            return "".join(last)
        if code == -signal.SIGKILL:
            return (
                f"{name} was killed by SIGKILL, as the kernel does if memory ends: give fewer "
                "--jobs or --devices, or a smaller --train.micro_batch"
            )
        if code < 0:
            return f"{name} was ended by {signal.Signals(-code).name}"
        return "; ".join([f"{name} ended with exit code {code}", *last])

    def stop(self) -> None:
        """Ask the process to end."""
        os.close(self.life)
        self.channel.close()

    def join(self, deadline: float) -> None:
        """Wait until the process has ended; kill it at a deadline."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.output.close()


def _environment() -> dict[str, str]:
    """Return the environment of a worker, with the import path of this process.

    Workers share the cores: threads that spin while they wait would make other workers ten times
    slower.
    """
    path = os.pathsep.join(entry or "." for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "PASSIVE"}
