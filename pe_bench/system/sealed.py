"""JSON records with checksums of themselves and of other files.

A sealed record has four additional keys: `schema`, the version of the file format; `of`, the key of
its owner, such as a run; `files`, the SHA-256 of other files; and `sha256`, the SHA-256 of the
record itself without this key. The record is written after these files. Reading it therefore
detects files that are incomplete, damaged, or copied from another owner. Files of a later version
are refused.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

from pe_bench.errors import InputError
from pe_bench.system.console import warn
from pe_bench.system.files import open_regular, read_regular, saving, write_json
from pe_bench.system.schema import WrongError, read_as

SCHEMA = 1
"""Version of the file formats of results and caches.

Increase it if an earlier version would misread new files. New code must either read the files of
earlier versions, or refuse them with a sentence.
"""

Content = TypeVar("Content")


class DamagedError(Exception):
    """A file is corrupt, or belongs to another owner.

    Args:
        path: the file.
        why: the problem, as the end of a sentence that begins with the path.
    """

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path = path
        self.why = why


def plain_number(value: object) -> object:
    """Return a number of another package, such as NumPy, as one of Python; all else as text."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return str(value)


def write_sealed(
    path: Path, content: Mapping[str, Any], *, owner: str, files: Iterable[Path] = ()
) -> None:
    """Write a sealed JSON record, atomically.

    Args:
        path: path of the record.
        content: content of the record.
        owner: key of its owner.
        files: files to include in the seal, in the folder of the record or below.
    """
    with saving(path):
        sums = {file.relative_to(path.parent).as_posix(): _flushed_sum(file) for file in files}
    # The seal is computed from the JSON content: keys are strings, tuples are lists.
    seal = {"schema": SCHEMA, "of": owner, "files": sums}
    kept = json.loads(json.dumps({**content, **seal}, default=plain_number))
    write_json(path, kept | {"sha256": _seal(kept)})


def read_sealed(
    path: Path, *, owner: str, kind: Any = object, limit: int = sys.maxsize
) -> dict[str, Any]:
    """Read a sealed record and verify it and its files, which lie in its folder or below.

    Args:
        path: path of the record.
        owner: expected key of its owner.
        kind: expected type of its content, see `read_as`; default: not checked.
        limit: largest size of the record and of each of its files, in bytes.

    Raises:
        FileNotFoundError: the record does not exist.
        DamagedError: the record or one of its files is corrupt, has another owner, or is not a
            regular file.
        InputError: a later version has written the record; it stays unchanged.
    """
    try:
        content = json.loads(read_regular(path, limit))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedError(path, f"cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(path, f"cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise DamagedError(path, "is not a JSON object")
    _check_schema(path, content.get("schema", 0))
    if "sha256" not in content:
        raise DamagedError(path, "has no checksum")
    found = {name: value for name, value in content.items() if name != "sha256"}
    if content["sha256"] != _seal(found):
        raise DamagedError(path, "has changed since it was written: its checksum differs")
    if found.pop("of", None) != owner:
        raise DamagedError(path, f"belongs to {str(content['of'])[:200]}, not to {owner}")
    found.pop("schema", None)
    try:
        sums = read_as(Mapping[str, str], found.pop("files", {}))
        found = dict(read_as(kind, found))
    except WrongError as error:
        raise DamagedError(path, f"is not valid: {error}") from None
    for name, expected in sums.items():
        file = path.parent / name
        if not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise DamagedError(path, f"has the checksum of a file outside of its folder, {name}")
        try:
            same = sum_of(file, limit) == expected
        except OSError as error:
            raise DamagedError(file, f"cannot be read ({error.strerror})") from None
        if not same:
            raise DamagedError(file, "has changed since it was written: its checksum differs")
    return found


def read_if_intact(read: Callable[[], Content], *, keep: bool = True) -> Content | None:
    """Call `read` and return its result; None if the file is missing or corrupt.

    A corrupt file is moved aside, with a warning.

    Args:
        read: function that reads the file.
        keep: whether to keep a corrupt file; False for large files that can be computed again.
    """
    try:
        return read()
    except FileNotFoundError:
        return None
    except DamagedError as damage:
        set_aside(damage, keep=keep)
        return None


def set_aside(damage: DamagedError, *, keep: bool = True) -> None:
    """Move a corrupt file aside, or remove it, and print a warning."""
    path = damage.path
    kept = ""
    if not keep and path.is_file():
        with saving(path):
            path.unlink()
    elif path.exists():
        number = 1
        while path.with_name(f"{path.name}.damaged{number}").exists():
            number += 1
        target = path.with_name(f"{path.name}.damaged{number}")
        with saving(path):
            path.rename(target)
        kept = f", kept as {target.name}"
    warn(f"{damage}: made again{kept}")


def sum_of(path: Path, limit: int = sys.maxsize) -> str:
    """Return the SHA-256 of a regular file as a hexadecimal string."""
    with open_regular(path, limit) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flushed_sum(path: Path) -> str:
    """Flush a file to disk and return its SHA-256."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return sum_of(path)


def _check_schema(path: Path, schema: Any) -> None:
    if type(schema) is not int:
        raise DamagedError(path, "has a schema that is not a number")
    if schema > SCHEMA:
        raise InputError(
            f"{path} was written by a later version of pe-bench (schema {schema}, this one reads "
            f"up to {SCHEMA}): update pe-bench, or leave this folder alone"
        )


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
