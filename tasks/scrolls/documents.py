"""Question-answer and summary records: one JSON object per line, read lazily from big files.

The layout is that of Shaham et al. (2022, arXiv:2201.03533): `<subset>/<split>.jsonl`, alone or
in `<subset>.zip`, with the fields `id`, `input` and `output`; an example with several reference
outputs is several lines with one `id`.
"""

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, overload

from tqdm import tqdm

from pe_bench.api import InputError
from pe_bench.system.files import saving, write_atomic


@dataclass(frozen=True)
class Record:
    """One example.

    Attributes:
        id: Unique in its split.
        input: What the model reads, a query and document or a document.
        outputs: The references in file order, repeats included; none where labels are withheld.
    """

    id: str
    input: str
    outputs: tuple[str, ...]


class Records(Sequence[Record]):
    """The examples of one `.jsonl` file, in the order in which their ids first appear.

    Opening reads and checks the whole file once, line by line, and keeps ids and byte offsets
    only; an example is read from the disk each time it is asked for.

    Attributes:
        path: The file.
        ids: The id of every example.
        rows: Number of lines, one per reference, so at least `len(records)`.
        sha256: Of the file, in hexadecimal.
    """

    def __init__(self, path: Path, *, labelled: bool = True) -> None:
        """Indexes `path`.

        Args:
            path: The file.
            labelled: Whether every line must have an output.

        Raises:
            InputError: The file is missing, empty, not UTF-8, or a line is not a record.
        """
        if not path.is_file():
            raise InputError(f"there is no file {path}: expected one JSON object per line")
        self.path = path
        self.rows = 0
        self._offsets: dict[str, list[int]] = {}
        digest = hashlib.sha256()
        offset = 0
        with (
            path.open("rb") as file,
            # Small files are read before the bar would appear; logs get none.
            tqdm(
                total=path.stat().st_size,
                desc=f"checking {path.name}",
                unit="B",
                unit_scale=True,
                delay=2,
                leave=False,
                disable=None,
            ) as bar,
        ):
            for number, line in enumerate(file, start=1):
                digest.update(line)
                if line.strip():
                    row = _parse(line, f"{path}:{number}", labelled)
                    self._offsets.setdefault(row["id"], []).append(offset)
                    self.rows += 1
                offset += len(line)
                bar.update(len(line))
        if not self.rows:
            raise InputError(f"{path} is empty: expected one JSON object per line")
        self.ids = tuple(self._offsets)
        self.sha256 = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        id_ = self.ids[index]
        rows = []
        with self.path.open("rb") as file:
            for offset in self._offsets[id_]:
                file.seek(offset)
                rows.append(json.loads(file.readline()))
        outputs = tuple(row["output"] for row in rows if row.get("output") is not None)
        return Record(id_, rows[0]["input"], outputs)


def open_split(folder: Path, subset: str, split: str, cache: Path) -> Records:
    """Opens one split of one subset.

    Args:
        folder: Holds `<subset>/<split>.jsonl`, which wins, or `<subset>.zip`.
        subset: Name of a data set.
        split: `train`, `validation` or `test`; a test split may lack outputs.
        cache: Where a split from a zip file is unpacked, under the zip's checksum.

    Raises:
        InputError: Neither is there, the zip is damaged or unsafe, or a line is not a record.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: expected one that holds {subset}.zip")
    path = folder / subset / f"{split}.jsonl"
    archive = folder / f"{subset}.zip"
    if not path.is_file():
        if not archive.is_file():
            raise InputError(f"no {subset} in {folder}: expected {path} or {archive}")
        path = _unpack(archive, f"{subset}/{split}.jsonl", cache)
    return Records(path, labelled=split != "test")


def write_split(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Writes rows as `open_split` reads them, one JSON object per line."""
    write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _parse(line: bytes, where: str, labelled: bool) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 text ({error.reason}): convert the file") from None
    except ValueError as error:
        raise InputError(f"{where} is not JSON ({error}): expected one object per line") from None
    if not isinstance(row, dict):
        raise InputError(f"{where} is not a JSON object: expected one with id, input and output")
    for field in ("id", "input", "output"):
        value = row.get(field)
        if field == "output" and value is None and not labelled:
            continue
        if not isinstance(value, str):
            found = type(value).__name__ if field in row else "missing"
            raise InputError(f"{where}: the field {field!r} is {found}, it should be a string")
    return row


def _unpack(archive: Path, member: str, cache: Path) -> Path:
    """Extracts one member, unless an earlier run did; others cost disk space for nothing."""
    with archive.open("rb") as file:
        fingerprint = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    target = cache / fingerprint / member
    if target.exists():
        return target
    try:
        with zipfile.ZipFile(archive) as source:
            names = source.namelist()
            for name in names:
                # Windows rules see both kinds of slash, and drives.
                path = PureWindowsPath(name)
                if path.anchor or ".." in path.parts:
                    raise InputError(
                        f"{archive} has a member outside its own folder, {name!r}: do not use it"
                    )
            if member not in names:
                raise InputError(f"{archive} holds no {member}: it has {', '.join(names[:9])}")
            _extract(source, member, target)
    # RuntimeError covers encrypted members and unknown compression methods.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise InputError(f"{archive} cannot be unpacked ({error}): get it again") from error
    return target


def _extract(source: zipfile.ZipFile, member: str, target: Path) -> None:
    """Writes aside and renames, so that an interrupted run leaves no half file."""
    with saving(target), source.open(member) as packed:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f"{target.name}.")
        try:
            with os.fdopen(handle, "wb") as copy:
                shutil.copyfileobj(packed, copy, 1 << 20)
            Path(name).replace(target)
        finally:
            Path(name).unlink(missing_ok=True)
