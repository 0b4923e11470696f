"""Signals, closed pipes and a plugin's `sys.exit`: a sentence, and nothing that is done is lost."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from test_runner import TASK, Toy, record
from test_runner import toy as toy  # a fixture

from pe_bench.system import locks
from pe_bench.system.console import progress
from pe_bench.system.locks import locked

pytestmark = pytest.mark.slow

SIGNALS = {signal.SIGINT: "stopped; ", signal.SIGTERM: "stopped by SIGTERM; "}
SIGNALS[signal.SIGHUP] = "stopped by SIGHUP; "
SUM = "sum(r.value for r in rows)"
EXITS = """
import sys
from pe_bench.api import Encoding

class Exits(Encoding):
    def embed(self, x, positions):
        sys.exit(3)
"""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Those of a terminal, whoever has started the tests; its own are put back."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, usual)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def sending(number: signal.Signals, method: str) -> str:
    """Return a task that sends its process a signal while it is trained or measured."""
    kill = f"os.kill(os.getpid(), {number}) if 'GO_ON' not in os.environ else None"
    head, body = TASK.split(f"    def {method}(", 1)
    signature, body = body.split("\n", 1)
    return f"{head}    def {method}({signature}\n        {kill}\n{body}"


@pytest.mark.parametrize(
    ("number", "method"),
    [
        (signal.SIGTERM, "batch"),
        (signal.SIGHUP, "evaluate"),
        (signal.SIGTERM, "evaluate"),
        (signal.SIGHUP, "batch"),
        (signal.SIGINT, "batch"),
        (signal.SIGINT, "evaluate"),
    ],
)
def test_a_signal_is_answered_with_a_sentence(
    toy: Toy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    method: str,
) -> None:
    (tmp_path / "toy.py").write_text(sending(number, method))
    assert toy()[0] == 128 + number
    assert SIGNALS[number] + "the same command goes on from here" in capsys.readouterr().err
    monkeypatch.setenv("GO_ON", "1")
    assert toy()[0] == 0


SLEEP = """
import os, signal, sys, time
from pe_bench.system.stopping import stopping_cleanly

with stopping_cleanly():
    try:
        print("ready", flush=True)
        time.sleep(3600)
    except KeyboardInterrupt:
        print("cleaning", flush=True)
        time.sleep(3600)
"""


def test_a_second_signal_ends_at_once_without_a_traceback() -> None:
    command = [sys.executable, "-c", SLEEP]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_foreground
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "cleaning\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (130, "")


def _foreground() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def closed_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def test_a_closed_pipe_demotes_no_result(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert toy()[0] == 0
    with os.fdopen(closed_pipe(), "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert toy() == (0, [])
        assert record(tmp_path)[0]["status"] == "done"
        assert toy(encodings=("nope", "rope"))[0] == 0  # the work goes on
    assert record(tmp_path, "rope")[0]["status"] == "done"


def test_a_bar_goes_on_without_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    with os.fdopen(closed_pipe(), "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        bar = progress("title", 3)
        bar.update(3)
        bar.close()


def test_a_plugin_that_exits_ends_its_own_run_only(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "exits.py").write_text(EXITS)
    code, log = toy(encodings=("./exits.py", "nope"))
    assert code == 1 and log[-1] == "b"
    cause = f"SystemExit: 3 ({tmp_path}/exits.py:7)"
    assert record(tmp_path, "exits.py")[0]["reason"] == cause
    assert f"failed, {cause}" in capsys.readouterr().err
    assert record(tmp_path)[0]["status"] == "done"
    (tmp_path / "toy.py").write_text(TASK.replace(SUM, "exit(4)"))
    assert toy()[0] == 1


def test_waiting_for_a_lock_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = FileLock(tmp_path / "lock")
    other.acquire()
    said = []

    def hear(line: str) -> None:
        said.append(line)
        other.release()

    monkeypatch.setattr(locks, "info", hear)
    with locked(tmp_path / "lock", "the same model"):
        assert not other.is_locked
    (line,) = said
    assert line.startswith("waiting for another process, which works on the same model")


def test_a_cache_that_is_complete_may_be_read_only(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pe_bench.runs.run.drop_weights", lambda folder: None)  # as of a start
    toy("--results", "one")
    opened, made = os.open, os.mkdir

    def refuse(path: Any, writing: bool) -> None:
        if str(path).startswith(str(tmp_path / "cache")) and writing:
            raise OSError(errno.EROFS, "Read-only file system")

    def open_if_reading(path: Any, flags: int, *more: Any, **named: Any) -> int:
        refuse(path, bool(flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)))
        return opened(path, flags, *more, **named)

    def make(path: Any, *more: Any, **named: Any) -> None:
        refuse(path, not Path(path).exists())
        made(path, *more, **named)

    monkeypatch.setattr(os, "open", open_if_reading)
    monkeypatch.setattr(os, "mkdir", make)
    assert toy("--results", "two") == (0, ["a", "b"])  # not trained again
    capsys.readouterr()
    assert toy("--seeds", "1")[0] == 1
    (*_, line) = capsys.readouterr().err.splitlines()
    assert "pe-bench: cannot save" in line and "Read-only file system" in line


def test_out_of_memory_has_a_remedy(toy: Toy, tmp_path: Path) -> None:
    source = EXITS.replace("sys.exit(3)", "raise MemoryError")
    (tmp_path / "large.py").write_text(source)
    toy(encodings=("./large.py",))
    reason = record(tmp_path, "large.py")[0]["reason"]
    assert reason.startswith("MemoryError") and "a smaller --train.micro_batch" in reason


WORKER = """
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from os import getpid
from pe_bench.system.stopping import follow_parent
if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, get_context("spawn"), follow_parent)
    print(pool.submit(getpid).result(), flush=True)
    time.sleep(3600)
"""


def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WORKER)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        os.kill(worker, signal.SIGINT)  # this is its parent's to answer
        parent.kill()
        parent.communicate()  # the worker shares its output, which ends with both
