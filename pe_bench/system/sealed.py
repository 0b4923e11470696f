"""Records that say what they belong to and which files beside them are whole.

A sealed record is a JSON file with four keys more: `schema`, the version of the form of what it
vouches for; `of`, what it belongs to; `files`, the SHA-256 of files beside it; and `sha256`, its
own, over everything else. It is written after these files, so what a kill has left, a damaged disk
or somebody's copy is found when it is read back. What a later version has written is refused.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pe_bench.errors import InputError
from pe_bench.system.console import warn
from pe_bench.system.files import saving, write_json

SCHEMA = 1
"""Version of the form of results and caches; records without one are older.

Raise it where an earlier version would misread what is written now, and keep reading what earlier
versions have written, or refuse it with a sentence.
"""

Content = TypeVar("Content")


class DamagedError(Exception):
    """A file cannot be trusted.

    Args:
        path: the file.
        why: what is wrong with it, the end of a sentence that begins with its name.
    """

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path = path
        self.why = why


def write_sealed(
    path: Path, content: Mapping[str, Any], *, of: str, files: Iterable[Path] = ()
) -> None:
    """Write a JSON record, atomically, after the files that it vouches for.

    Args:
        path: of the record.
        content: of the record.
        of: what it belongs to.
        files: in its folder or below, all of them written.
    """
    with saving(path):
        sums = {file.relative_to(path.parent).as_posix(): _flushed_sum(file) for file in files}
    # As a file keeps it: keys are text, tuples are lists.
    seal = {"schema": SCHEMA, "of": of, "files": sums}
    kept = json.loads(json.dumps({**content, **seal}, default=str))
    write_json(path, kept | {"sha256": _seal(kept)})


def read_sealed(path: Path, *, of: str, old: bool = False) -> dict[str, Any]:
    """Return the content of a record that is whole, with files that are.

    Args:
        path: of the record.
        of: what it has to belong to.
        old: also return a record without a seal, as earlier versions have written it.

    Raises:
        FileNotFoundError: there is none.
        DamagedError: it or one of its files is not what was written, or belongs to something else.
        InputError: a later version has written it. It is not damaged, and stays as it is.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(path, f"cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise DamagedError(path, "is not a JSON object")
    _check_schema(path, content.get("schema", 0))
    if "sha256" not in content:
        if old:
            return content
        raise DamagedError(path, "has no checksum, as in an earlier version")
    found = {name: value for name, value in content.items() if name != "sha256"}
    if content["sha256"] != _seal(found):
        raise DamagedError(path, "is not as it was written, its checksum is another one")
    if found.pop("of", None) != of:
        raise DamagedError(path, f"belongs to {content['of']}, not to {of}")
    found.pop("schema", None)
    for name, expected in found.pop("files", {}).items():
        file = path.parent / name
        try:
            same = sum_of(file) == expected
        except OSError as error:
            raise DamagedError(file, f"cannot be read ({error.strerror})") from None
        if not same:
            raise DamagedError(file, "is not as it was written, its checksum is another one")
    return found


def recall(read: Callable[[], Content], *, keep: bool = True) -> Content | None:
    """Return what is read, None where it has to be made anew.

    What is damaged is set aside, with a sentence that names it.

    Args:
        read: reads it.
        keep: False removes what is damaged: it is large, and made from what is there.
    """
    try:
        return read()
    except FileNotFoundError:
        return None
    except DamagedError as damage:
        set_aside(damage, keep=keep)
        return None


def set_aside(damage: DamagedError, *, keep: bool = True) -> None:
    """Rename a damaged file, so that it is in nobody's way, or remove it, and say so."""
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


def sum_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flushed_sum(path: Path) -> str:
    """Return the SHA-256 of a file that is on the disk, not only on its way there."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return sum_of(path)


def _check_schema(path: Path, schema: Any) -> None:
    if not isinstance(schema, int):
        raise DamagedError(path, "has a schema that is no number")
    if schema > SCHEMA:
        raise InputError(
            f"{path} was written by a later version of pe-bench (schema {schema}, this one reads "
            f"up to {SCHEMA}): update pe-bench, or leave this folder alone"
        )


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
