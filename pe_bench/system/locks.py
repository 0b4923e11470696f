"""Locks between processes on one machine, or on several machines that share a file system."""

import contextlib
import errno
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from pe_bench.errors import SavingError
from pe_bench.system.console import info, show_age, warn

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
REMIND_S = 600.0

_reminded: dict[Path, float] = {}


@contextlib.contextmanager
def hold(path: Path, timeout: float = -1) -> Iterator[None]:
    """Hold a lock file within the context.

    If the file system does not support locks (ENOSYS), the existence of the file is the lock. If
    the process dies on another machine, the file then remains: see `tell_holder`.

    Args:
        path: path of the lock file, in an existing folder.
        timeout: seconds to wait for another process; -1: no limit.

    Raises:
        Timeout: another process holds the lock.
        SavingError: the file system refuses locks.
    """
    lock = FileLock(path)
    try:
        with warnings.catch_warnings():  # a warning that the file system has no locks
            warnings.filterwarnings("ignore", "flock not supported")
            lock.acquire(timeout=timeout)
    except Timeout:
        raise
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise SavingError(
            f"cannot lock {path} ({error.strerror}): its file system refuses locks; mount it with "
            "locks, or choose folders on another file system with --results and PE_BENCH_CACHE"
        ) from error
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path, *, unknown: bool = True) -> bool:
    """Return whether a process holds a lock file.

    Args:
        path: path of the lock file.
        unknown: the result if the lock cannot be tried, as in a folder of another user.
    """
    try:
        with hold(path, timeout=0):
            return False
    except Timeout:
        return True
    except (OSError, SavingError):
        return unknown


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file within the context; print a line before waiting for another process.

    A read-only folder needs no lock, since its files do not change.

    Args:
        path: path of the lock file, in an existing folder.
        what: description of the locked resource, for messages.

    Raises:
        SavingError: the file system refuses locks.
    """
    with contextlib.ExitStack() as stack:
        timeout = 0.0
        while True:
            try:
                stack.enter_context(hold(path, timeout))
                break
            except Timeout:
                if not timeout:
                    info(f"waiting for another process that works on {what} ({path.parent})")
                tell_holder(path)
                timeout = REMIND_S
            except OSError as error:
                if error.errno not in READ_ONLY:
                    raise
                break
        yield


def tell_holder(path: Path) -> None:
    """Warn which process holds a lock file, at most every ten minutes.

    Lock files name a process only if the file system does not support locks. Only the user can know
    whether that process has died on another machine.
    """
    now = time.monotonic()
    if now - _reminded.get(path, -REMIND_S) < REMIND_S:
        return
    try:
        process, host, *_ = path.read_text(encoding="utf-8").splitlines()
        age = time.time() - path.stat().st_mtime
    except (OSError, ValueError):  # released meanwhile, or a real lock, which names no process
        return
    _reminded[path] = now
    warn(
        f"{path} was locked {show_age(age)} ago by process {process} of {host}: if that process "
        "has ended, delete the file, and this command continues"
    )
