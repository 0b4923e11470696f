"""Files: atomic writes, JSON, names, the cache folder."""

import contextlib
import glob
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pe_bench.errors import InputError, SavingError


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
    """Return the prefix of temporary files for a path, for processes of this machine."""
    return f".{path.name}.{slug(platform.node())}-"


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
            f"cannot save {path} ({error.strerror or error}): mend that and run the same "
            "command again; files saved earlier are kept"
        ) from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write indented JSON, atomically."""
    write_atomic(path, json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n")


def slug(label: str) -> str:
    """Convert a label to a directory name that is valid on every file system."""
    return re.sub(r"[^\w.=,+-]", "_", label)


def cache_folder() -> Path:
    """Return the folder for downloads, tokenizers and checkpoints."""
    if given := os.environ.get("PE_BENCH_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pe-bench"


def check_writable(folder: Path, option: str) -> None:
    """Check that a folder is writable, or can be created.

    It does not create the folder, so a command that fails later leaves nothing behind.

    Args:
        folder: the folder.
        option: the command line option that sets the folder, for the error message.

    Raises:
        InputError: the folder is not writable.
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
