"""The entries of the cache folder, the commands that use it, and the removal of entries."""

import contextlib
import os
import platform
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pe_bench.errors import InputError, SavingError
from pe_bench.system.files import saving, slug
from pe_bench.system.locks import hold, is_held

WEIGHTS = "weights"
CHECKPOINTS = "checkpoints"
"""Folder of the cache with weights: one folder for each training."""

KINDS: Mapping[str, str] = {
    CHECKPOINTS: WEIGHTS,
    "datasets": "texts",
    "tokens": "tokens",
    "tokenizers": "vocabularies",
    "builtin": "documents",
}
"""Kinds of entries by folder; downloads have a folder for each repository."""

DOWNLOADS = "downloads"
UNFINISHED = "unfinished"
"""Weights of trainings that can be resumed."""

ALL_KINDS = (*KINDS.values(), DOWNLOADS, UNFINISHED)
RUNNING = "running"
FINAL = "final.safetensors"
OF = "of"
"""File in a folder of weights with the name of the run that they were trained for."""

START = "start"
"""File in a folder of weights that other trainings start from."""

LIMIT = "PE_BENCH_CACHE_GB"
DEFAULT_GB = 20.0
GB = 1e9
LOCK = ".lock"


@dataclass(frozen=True)
class Entry:
    """A unit of the cache, which is created and removed as a whole.

    Attributes:
        kind: one of `ALL_KINDS`.
        name: common name of its files.
        paths: its files and folders.
        size: total size of its files in bytes.
        used: time of the last use, seconds since the epoch.
    """

    kind: str
    name: str
    paths: tuple[Path, ...]
    size: int
    used: float

    @property
    def owner(self) -> str:
        """The run that weights were trained for, if known; otherwise the name of the entry."""
        if self.kind in (WEIGHTS, UNFINISHED):
            with contextlib.suppress(OSError):
                return (self.paths[0] / OF).read_text(encoding="utf-8")
        return self.name


def find_entries(cache: Path, kinds: Collection[str] = ALL_KINDS) -> list[Entry]:
    """Return the entries of given kinds in a cache, sorted by kind and name."""
    groups: dict[tuple[str, str], list[Path]] = {}
    for folder in _children(cache):
        if folder.name in KINDS:
            paths = _children(folder)
            if folder.name == "datasets":
                paths += [inner for path in paths if path.is_dir() for inner in _children(path)]
            for path in paths:
                name = _name(path, folder.name)
                kind = KINDS[folder.name]
                if kind == WEIGHTS and any(path.rglob("resume.*")):
                    kind = UNFINISHED
                if name:
                    groups.setdefault((kind, name), []).append(path)
        elif "--" in folder.name:
            groups.setdefault((DOWNLOADS, folder.name.replace("--", "/")), []).append(folder)
    groups = {key: paths for key, paths in groups.items() if key[0] in kinds}
    entries = [_entry(kind, name, tuple(paths)) for (kind, name), paths in groups.items()]
    return sorted(entries, key=lambda entry: (ALL_KINDS.index(entry.kind), entry.name))


def mark_used(path: Path) -> None:
    """Record that a file of the cache is used now; has no effect in a read-only cache."""
    with contextlib.suppress(OSError):
        os.utime(path, (time.time(), path.stat().st_mtime))


@contextlib.contextmanager
def using(cache: Path) -> Iterator[None]:
    """Register a command that uses a cache, so that entries in use are not removed.

    Raises:
        InputError: `PE_BENCH_CACHE_GB` is not a number.
    """
    weights_limit()
    name = f"{slug(platform.node())}-{os.getpid()}{LOCK}"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, SavingError):  # the cache may be read-only
            (cache / RUNNING).mkdir(parents=True, exist_ok=True)
            path = cache / RUNNING / name
            stack.enter_context(hold(path, timeout=0))
            stack.callback(_remove_lock, path)
        yield


def used_since(cache: Path) -> float:
    """Return the start time of the oldest running command of a cache; infinity if none runs."""
    begun = [float("inf")]
    for path in _children(cache / RUNNING):
        with contextlib.suppress(FileNotFoundError):  # the command has just ended
            started = path.stat().st_mtime
            if is_held(path):
                begun.append(started)
            else:
                path.unlink()  # the command was killed
    return min(begun)


def is_free(entry: Entry, since: float) -> bool:
    """Return whether no running command uses an entry.

    Args:
        entry: the entry.
        since: result of `used_since`.
    """
    locks = [path for path in _files(entry.paths) if path.name == "lock" or path.suffix == LOCK]
    return entry.used < since and not any(map(is_held, locks))


def remove(entry: Entry) -> None:
    """Remove an entry from the cache.

    Raises:
        SavingError: the entry cannot be removed.
    """
    for path in entry.paths:
        with saving(path):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def drop_weights(folder: Path) -> None:
    """Remove the weights of a finished run, unless other trainings start from them or use them."""
    if not (folder / FINAL).exists() or (folder / START).exists():
        return
    with contextlib.suppress(OSError, SavingError):  # includes Timeout
        with hold(folder / "lock", timeout=0):
            for path in _children(folder):
                if path.name != "lock":
                    path.unlink()
        (folder / "lock").unlink(missing_ok=True)
        folder.rmdir()


def limit_weights(cache: Path) -> None:
    """Remove the least recently used weights until the size is within the limit.

    Weights of unfinished trainings, and weights that a running command has used, are not removed.

    Raises:
        InputError: `PE_BENCH_CACHE_GB` is not a number.
    """
    most = weights_limit()
    found = find_entries(cache, {WEIGHTS})
    size = sum(entry.size for entry in found)
    if size <= most:
        return
    since = used_since(cache)
    for entry in sorted(found, key=lambda entry: entry.used):
        if size > most and is_free(entry, since):
            remove(entry)
            size -= entry.size


def weights_limit() -> float:
    """Return the maximum size in bytes of weights of finished trainings in the cache.

    Raises:
        InputError: `PE_BENCH_CACHE_GB` is not a number.
    """
    given = os.environ.get(LIMIT, "")
    try:
        limit = float(given) if given else DEFAULT_GB
    except ValueError:
        limit = -1
    if not limit >= 0:
        raise InputError(f"{LIMIT} is '{given}', but must be a number of gigabytes, such as 20")
    return limit * GB


def _name(path: Path, folder: str) -> str:
    """Return the name of the entry that a file or folder belongs to; empty: there is none."""
    if folder != "datasets":
        return path.name.partition(".")[0] if folder == "tokenizers" else path.name
    found = re.search(r"(text|records)-[0-9a-f]{32}(-test)?", path.name)
    return found[0] if found else ""


def _entry(kind: str, name: str, paths: tuple[Path, ...]) -> Entry:
    size, used = 0, 0.0
    for path in _files(paths):
        with contextlib.suppress(OSError):
            state = path.stat()
            size += state.st_size
            if path.name != "lock" and path.suffix != LOCK:
                used = max(used, state.st_mtime, state.st_atime)
    return Entry(kind, name, paths, size, used)


def _files(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from (inner for inner in path.rglob("*") if inner.is_file())
        elif path.is_file():
            yield path


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _remove_lock(path: Path) -> None:
    """Remove a lock file, and the folders created for it if they are empty."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()
        path.parent.parent.rmdir()
