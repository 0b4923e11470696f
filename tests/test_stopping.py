"""Signals, closed pipes and `sys.exit` of a plugin: a message, and no finished work is lost."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from test_runner import TASK, Toy, record
from test_runner import toy as toy  # a fixture

import pe_bench
from pe_bench.cli import main
from pe_bench.system import locks
from pe_bench.system.console import info
from pe_bench.system.locks import locked

pytestmark = pytest.mark.slow

SIGNALS = {signal.SIGINT: "stopped; ", signal.SIGTERM: "stopped by SIGTERM; "}
SIGNALS[signal.SIGHUP] = "stopped by SIGHUP; "
SUM = "sum(r.value for r in rows)"
PATH = {"PYTHONPATH": str(Path(pe_bench.__file__).parents[1])}
EXITS = """
import sys
from pe_bench.api import Encoding

class Exits(Encoding):
    def embed(self, x, positions):
        sys.exit(3)
"""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Set the signal handlers of a terminal, and restore the previous ones."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, usual)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def sending(number: signal.Signals, method: str) -> str:
    """Return a task that sends its process a signal during training or evaluation."""
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
    assert SIGNALS[number] + "the same command continues from here" in capsys.readouterr().err
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
    foreground = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=foreground
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "cleaning\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (130, "")


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
        assert toy(encodings=("nope", "rope"))[0] == 0  # the work continues
    assert record(tmp_path, "rope")[0]["status"] == "done"


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


@pytest.mark.parametrize("error", ["BaseException('x')", "GeneratorExit", "SystemExit(3)"])
@pytest.mark.parametrize("method", ["__init__", "embed", "distance_bias"])
def test_no_exception_of_a_plugin_ends_a_grid(
    toy: Toy, tmp_path: Path, error: str, method: str
) -> None:
    source = EXITS.replace("sys.exit(3)", f"raise {error}").replace("embed", method)
    (tmp_path / "exits.py").write_text(source.replace("self, x, positions", "self, *args"))
    assert toy(encodings=("./exits.py", "nope"))[0] == 1
    assert error.partition("(")[0] in record(tmp_path, "exits.py")[0]["reason"]
    assert record(tmp_path)[0]["status"] == "done"


def test_a_renamed_results_folder_is_an_error(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    renames = "os.path.exists('moved') or os.rename('results', 'moved')"
    (tmp_path / "renames.py").write_text(
        EXITS.replace("sys.exit(3)", f"{renames}; return x").replace("sys", "os")
    )
    assert toy(encodings=("./renames.py", "nope"))[0] == 1
    err = capsys.readouterr().err
    assert "results was renamed or removed while results were written to it" in err
    assert "\\[" not in err


def test_a_run_whose_process_died_is_named_by_the_next_call(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dies.py").write_text(EXITS.replace("sys.exit(3)", "raise MemoryError"))
    toy(encodings=("./dies.py", "nope"))
    assert "ended without a message" not in capsys.readouterr().out
    (record(tmp_path, "dies.py")[1] / "executing").touch()  # as if it had been killed
    toy("--dry-run", encodings=("./dies.py", "nope"))
    says = "the process ended without a message when it last executed dies.py · toy.py · seed 0"
    assert says in capsys.readouterr().out
    toy(encodings=("./dies.py", "nope"))
    assert says in capsys.readouterr().out
    toy("--dry-run", encodings=("./dies.py", "nope"))
    assert says not in capsys.readouterr().out


def test_what_a_plugin_leaves_behind_does_not_keep_the_process(tmp_path: Path) -> None:
    (tmp_path / "left.py").write_text(
        EXITS.replace("sys.exit(3)", "return x")
        + "import atexit, threading, time\n"
        + "threading.Thread(target=time.sleep, args=(10_000,)).start()\n"
        + "atexit.register(time.sleep, 10_000)\n"
    )
    command = [sys.executable, "-m", "pe_bench", "list", "./left.py"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | PATH, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_is_said_once_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert main(["list"]) == 0
        info("more")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pe-bench: cannot write to standard output (No space left on device)")


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
    assert line.startswith("waiting for another process that works on the same model")


def test_a_cache_that_is_complete_may_be_read_only(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pe_bench.runs.run.drop_weights", lambda folder: None)  # keep weights
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
        os.kill(worker, signal.SIGINT)  # the parent handles this
        parent.kill()
        parent.communicate()  # the worker shares its output, which ends with both
