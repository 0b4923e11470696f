"""Files: atomic writes, JSON, names, the cache folder."""

import contextlib
import errno
import glob
import hashlib
import io
import json
import os
import platform
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pe_bench.errors import InputError, SavingError

LARGEST = 512 * 2**20
"""Largest file of results that is read, in bytes; also the largest size of its unpacked content."""

LONGEST = 200
"""Maximum length in bytes of a name made from a label. File systems allow 255 with suffixes."""


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file atomically: write a temporary file, flush it, rename it.

    Raises:
        SavingError: the file could not be saved; the old file is unchanged.
    """
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as aside:
        aside.write_bytes(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield an empty temporary file, which is flushed and renamed to `path` on exit.

    Raises:
        SavingError: the file could not be saved; the old file is unchanged.
    """
    with saving(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        aside = path.with_name(f"{_aside(path)}{os.getpid()}-{secrets.token_hex(4)}")
        aside.touch(exist_ok=False)  # the file mode follows the umask, unlike with `tempfile`
        mode = stat.S_IMODE(aside.stat().st_mode)
        try:
            yield aside
            aside.chmod(mode)  # safetensors makes a new file that only its owner can read
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


def follow_umask(folder: Path) -> None:
    """Give the files of a folder the mode of a new file; safetensors ignores the umask."""
    new = folder / f".{secrets.token_hex(4)}"
    new.touch(exist_ok=False)
    mode = stat.S_IMODE(new.stat().st_mode)
    new.unlink()
    for path in folder.iterdir():
        if path.is_file():
            path.chmod(mode)


def _aside(path: Path) -> str:
    """Return the prefix of temporary files for a path, for processes of this machine."""
    return f".{_cut(path.name, 60)}.{_cut(slug(platform.node()), 40)}-"


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of killed processes of this machine."""
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
        pass  # a process of another user
    return True


@contextlib.contextmanager
def saving(path: Path) -> Iterator[None]:
    """Convert an OSError within the context into a `SavingError`."""
    try:
        yield
    except OSError as error:
        raise SavingError(
            f"cannot save {path} ({error.strerror or error}): solve this problem and run the same "
            "command again; files saved earlier are kept"
        ) from error


class SameFolder:
    """A folder that is created and later checked: it must not be removed or replaced.

    Args:
        path: path of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with saving(path):
            path.mkdir(parents=True, exist_ok=True)
            self._made = path.stat()

    def check(self) -> None:
        """Check that the folder is the same.

        Raises:
            SavingError: the folder was removed or replaced.
        """
        with contextlib.suppress(OSError):
            if os.path.samestat(self._made, self.path.stat()):
                return
        raise SavingError(
            f"{self.path} was renamed or removed while results were written to it: put it back, "
            "or merge both folders with pe-bench merge, and run the same command again"
        )


def read_regular(path: Path, limit: int) -> bytes:
    """Return the content of a regular file.

    FIFOs and devices are refused; reading a FIFO might never end.

    Args:
        path: path of the file.
        limit: largest allowed size in bytes.

    Raises:
        OSError: the file cannot be read, is not a regular file, or is too large.
    """
    with open_regular(path, limit) as file:
        return file.read()


def open_regular(path: Path, limit: int) -> io.BufferedReader:
    """Open a regular file for reading, see `read_regular`."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not block
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if about.st_size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit >> 20} MiB", str(path))
        return open(handle, "rb")  # noqa: PTH123 - a handle has no path
    except BaseException:
        os.close(handle)
        raise


def real_path(path: Path) -> Path:
    """Return an absolute path without links. Of links in a loop, one remains.

    Before Python 3.13, `Path.resolve` raises a `RuntimeError` for a loop.
    """
    return Path(os.path.realpath(path))


def check_links(folder: Path, names: Iterable[str]) -> None:
    """Check that no file in a folder is a symbolic link that leads out of the folder.

    Args:
        folder: the folder.
        names: names of the files; they need not exist.

    Raises:
        OSError: a file is such a link.
    """
    for name in names:
        path = f"{folder}/{name}"
        if not os.path.islink(path):  # noqa: PTH114 - called for every file of every run
            continue
        if not real_path(Path(path)).is_relative_to(real_path(folder)):
            raise OSError(errno.EINVAL, f"a link that leads out of {folder}", path)


def list_files(folder: Path) -> list[Path]:
    """Return all files below a folder, in order; links to other folders are not followed.

    Raises:
        OSError: a file is a link that leads out of the folder, or not a regular file.
    """
    root = real_path(folder)
    found = []
    for path in sorted(folder.rglob("*")):
        if not real_path(path).is_relative_to(root):
            raise OSError(errno.EINVAL, f"a link that leads out of {folder}", str(path))
        if path.is_file():
            found.append(path)
        elif not path.is_dir():
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    return found


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write indented JSON, atomically."""
    write_atomic(path, json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n")


def slug(label: str) -> str:
    """Convert a label to a directory name that is valid on every file system.

    The end of a long name is replaced by a digest of the label.
    """
    name = re.sub(r"[^\w.=,+-]", "_", label)
    if name in (".", ".."):
        return "_" * len(name)
    if len(name.encode()) <= LONGEST:
        return name
    return f"{_cut(name, LONGEST - 9)}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def _cut(name: str, size: int) -> str:
    """Return the beginning of a name, of at most `size` bytes."""
    return name.encode()[:size].decode(errors="ignore")


def cache_folder() -> Path:
    """Return the folder for downloads, tokenizers and checkpoints.

    Raises:
        InputError: there is no home folder, and no environment variable names another one.
    """
    own_cache = os.environ.get("PE_BENCH_CACHE")
    if own_cache:
        return Path(own_cache)
    all_caches = os.environ.get("XDG_CACHE_HOME")
    if all_caches:
        return Path(all_caches) / "pe-bench"
    try:
        return Path.home() / ".cache" / "pe-bench"
    except RuntimeError:
        raise InputError(
            "this user has no home folder: name a folder for downloads and models in the "
            "environment variable PE_BENCH_CACHE"
        ) from None


def check_no_file(folder: Path, option: str) -> None:
    """Check that a path is a folder, or one can be created there.

    Args:
        folder: the path.
        option: the command line option that sets it, for the error message.

    Raises:
        InputError: the path, or one above it, is a file.
    """
    there = _existing(folder)
    if not there.is_dir():
        raise InputError(f"{there} is not a folder: give a folder with {option}")


def _existing(path: Path) -> Path:
    """Return the path, or the first one above it that exists."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))


def check_writable(folder: Path, option: str) -> None:
    """Check that a folder is writable, or can be created.

    It does not create the folder, so a command that fails later leaves nothing behind.

    Args:
        folder: the folder.
        option: the command line option that sets the folder, for the error message.

    Raises:
        InputError: the folder is not writable.
    """
    probe = _existing(folder) / f".writable-{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"cannot write to {folder} ({error.strerror}): give another folder with {option}"
        ) from None
