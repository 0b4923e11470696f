"""Files: atomic writes, JSON, names, the cache folder."""

import contextlib
import errno
import glob
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pe_bench.errors import InputError, SavingError
from pe_bench.system.console import info


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write aside, flush and rename: the file is old or new, never half.

    Raises:
        SavingError: it could not be saved; the old file is still there.
    """
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as aside:
        aside.write_bytes(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield an empty file aside, which is flushed and takes the place of `path` in the end.

    Raises:
        SavingError: it could not be saved; the old file is still there.
    """
    with saving(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        prefix = f"{_aside(path)}{os.getpid()}-"
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix)
        os.close(handle)
        aside = Path(name)
        try:
            yield aside
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            aside.chmod(0o644)  # mkstemp lets only the owner read
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


def _aside(path: Path) -> str:
    """Return how the names begin under which this machine's processes write a file aside."""
    return f".{path.name}.{slug(platform.node())}-"


def _remove_leftovers(path: Path) -> None:
    """Remove what processes of this machine have written aside and were killed before renaming."""
    prefix = _aside(path)
    for left in path.parent.glob(f"{glob.escape(prefix)}*"):
        process = left.name.removeprefix(prefix).partition("-")[0]
        if process.isdigit() and not _is_running(int(process)):
            left.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    return True


@contextlib.contextmanager
def saving(path: Path) -> Iterator[None]:
    """Turn an OSError while a file is written into a `SavingError`."""
    try:
        yield
    except OSError as error:
        raise SavingError(
            f"cannot save {path} ({error.strerror or error}): mend that and run the same "
            "command again, what was saved before is kept"
        ) from error


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock that other processes respect; say so where one of them holds it.

    A folder that cannot be written to needs no lock: nothing changes there.

    Args:
        path: of the lock, in a folder that is there.
        what: is locked, for people.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        info(f"waiting for another process, which works on {what} ({path.parent})")
        lock.acquire()
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
    try:
        yield
    finally:
        lock.release()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write indented JSON, atomically."""
    write_atomic(path, json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n")


def slug(label: str) -> str:
    """Return a label as a directory name that every file system takes."""
    return re.sub(r"[^\w.=,+-]", "_", label)


def cache_folder() -> Path:
    """Return the folder for downloads, tokenizers and checkpoints."""
    if given := os.environ.get("PE_BENCH_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pe-bench"


def check_writable(folder: Path, option: str) -> None:
    """Check that files can be made in a folder, or that the folder can be made.

    Nothing is left behind: a command that is refused later has made no folder.

    Args:
        folder: the folder.
        option: what the user would give another folder with.

    Raises:
        InputError: it cannot be written to.
    """
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    probe = there / f".writable-{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"cannot write to {folder} ({error.strerror}): give another folder with {option}"
        ) from None
