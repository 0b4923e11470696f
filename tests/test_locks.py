"""Locks on file systems that support locks, and on those that do not."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import Timeout

from pe_bench.errors import SavingError
from pe_bench.system import locks
from pe_bench.system.console import show_age
from pe_bench.system.locks import hold, locked

fcntl = pytest.importorskip("fcntl")
Refuse = Callable[[int], None]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Make the file system refuse locks with an error."""

    def refuse(number: int) -> None:
        def no_lock(*_: Any) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", no_lock)
        monkeypatch.setattr(fcntl, "lockf", no_lock)

    return refuse


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
@pytest.mark.parametrize("kind", ["hold", "locked"])
def test_a_file_system_that_refuses_locks(
    tmp_path: Path, refuse: Refuse, number: int, kind: str
) -> None:
    refuse(number)
    path = tmp_path / "lock"
    with pytest.raises(SavingError, match=rf"cannot lock {path} .* --results and PE_BENCH_CACHE"):
        (hold(path) if kind == "hold" else locked(path, "it")).__enter__()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_other_errors_are_not_blamed_on_locks(tmp_path: Path, refuse: Refuse, number: int) -> None:
    refuse(number)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        hold(tmp_path / "lock").__enter__()
    assert caught.value.errno == number


def test_a_file_system_without_locks(tmp_path: Path, refuse: Refuse) -> None:
    refuse(errno.ENOSYS)
    path = tmp_path / "lock"
    with hold(path), pytest.raises(Timeout):
        hold(path, timeout=0).__enter__()
    with hold(path, timeout=0):
        pass


def test_the_process_that_holds_a_lock_is_named(
    tmp_path: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the process has died on another machine, the user has to remove its file."""
    refuse(errno.ENOSYS)
    path = tmp_path / "lock"
    path.write_text("5624\nnode42\n549411\n")
    day = time.time() - 3 * 86400 - 60
    os.utime(path, (day, day))
    said = []

    def hear(line: str) -> None:
        said.append(line)
        path.unlink()

    monkeypatch.setattr(locks, "warn", hear)
    with locked(path, "the same model"):
        assert said == [
            f"{path} was locked 3 days ago by process 5624 of node42: if that process has ended, "
            "delete the file, and this command continues"
        ]


def test_a_lock_of_the_system_names_no_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hold(tmp_path / "lock"):
        locks.tell_holder(tmp_path / "lock")
    locks.tell_holder(tmp_path / "none")
    assert capsys.readouterr().err == ""


def test_ages() -> None:
    seconds = {0: "less than a minute", 60: "1 minute", 7300: "2 hours", 90_000: "1 day"}
    assert {age: show_age(age) for age in seconds} == seconds
