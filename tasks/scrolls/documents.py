"""Question-answer and summary records: one JSON object per line, kept as a table on disk.

The layout follows Shaham et al. (2022, arXiv:2201.03533): `<subset>/<split>.jsonl`, alone or in
`<subset>.zip`, with the fields `id`, `input` and `output`. An example with several reference
outputs has several lines with the same `id`.
"""

import contextlib
import hashlib
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import IO, Any, overload

from pe_bench.api import DataError
from pe_bench.api.data import (
    Opener,
    encodable,
    keep_rows,
    naming_damage,
    read_json_lines,
    refuse_bomb,
    unchanged,
    write_atomic,
)

FIELDS = ("id", "input", "output")
DOCUMENT_END = 1000  # characters at the end of an input that identify its document


@dataclass(frozen=True)
class Record:
    """One example.

    Attributes:
        id: identifier, unique in its split.
        input: input of the model: a query and a document, or a document.
        outputs: the references in file order, including repeats; empty if labels are withheld.
    """

    id: str
    input: str
    outputs: tuple[str, ...]

    @property
    def document(self) -> str:
        """The end of the input, which is equal for all questions about one document."""
        return self.input[-DOCUMENT_END:]


class Records(Sequence[Record]):
    """The examples of one split, in the order in which their ids first appear.

    An example is read from disk at each access.

    Attributes:
        rows: a `Dataset` with the fields of each line, one line per reference.
        ids: the id of every example.
        sha256: SHA-256 (hex) of the file.
    """

    def __init__(self, rows: Any, sha256: str) -> None:
        self.rows = rows
        self.sha256 = sha256
        self._outputs = rows.select_columns("output")  # leaves out the inputs, which may be long
        self._places: dict[str, list[int]] = {}
        for index, id_ in enumerate(rows.data.column("id").to_pylist()):
            self._places.setdefault(id_, []).append(index)
        self.ids = tuple(self._places)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        places = self._places[self.ids[index]]
        first = self.rows[places[0]]
        outputs = self._outputs[places]["output"]
        return Record(first["id"], first["input"], tuple(o for o in outputs if o is not None))


def open_split(folder: Path, subset: str, split: str, cache: Path) -> Records:
    """Open one split of one subset.

    Args:
        folder: folder with `<subset>/<split>.jsonl`, or with `<subset>.zip`, which is read without
            unpacking. The first one is preferred.
        subset: name of the subset.
        split: `train`, `validation` or `test`; a test split may lack outputs.
        cache: folder for the table, which is named by the checksum of the lines.

    Raises:
        DataError: neither file exists, the zip is damaged or unsafe, or a line is not a record.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: give a folder with {subset}.zip")
    path = folder / subset / f"{split}.jsonl"
    archive = folder / f"{subset}.zip"
    if path.is_file():
        name, file = str(path), path
        open_file: Opener = partial(path.open, "rb")
    elif archive.is_file():
        member = f"{subset}/{split}.jsonl"
        name, file = f"{archive}/{member}", archive
        with naming_damage(archive), zipfile.ZipFile(archive) as opened:
            _check_members(archive, opened, member)
        open_file = partial(_open_member, archive, member)
    else:
        raise DataError(f"no {subset} in {folder}: expected {path} or {archive}")
    with naming_damage(file):
        sha256 = _digest(open_file)

    def records() -> Iterator[dict[str, Any]]:
        with unchanged(file, partial(_digest, open_file), sha256):
            yield from _records(open_file, name, labelled=split != "test")

    rows = keep_rows(
        f"records-{sha256[:32]}{'' if split != 'test' else '-test'}",
        FIELDS,
        records,
        cache,
        empty=f"{name} is empty: expected one JSON object per line",
    )
    return Records(rows, sha256)


def write_split(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Write rows in the format of `open_split`, one JSON object per line."""
    write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


@contextlib.contextmanager
def _open_member(archive: Path, member: str) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(archive) as opened, opened.open(member) as file:
        yield file


def _digest(open_file: Opener) -> str:
    with open_file() as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_members(archive: Path, opened: zipfile.ZipFile, wanted: str) -> None:
    """Refuse an archive that is unsafe or lacks a member."""
    names = opened.namelist()
    for name in names:
        # Windows rules recognise both kinds of slash, and drives.
        path = PureWindowsPath(name)
        if path.anchor or ".." in path.parts:
            raise DataError(
                f"{archive} has a member outside its own folder, {name!r}: do not use it"
            )
    refuse_bomb(archive, sum(member.file_size for member in opened.infolist()))
    if wanted not in names:
        raise DataError(f"{archive} holds no {wanted}: it has {', '.join(names[:9])}")


def _records(open_file: Opener, name: str, *, labelled: bool) -> Iterator[dict[str, Any]]:
    inputs: dict[str, bytes] = {}  # SHA-256 of each id's input, which may be a book
    for where, row in read_json_lines(open_file, name):
        if not isinstance(row, dict):
            raise DataError(f"{where} is not a JSON object: expected {', '.join(FIELDS)}")
        record: dict[str, str | None] = {}
        for field in FIELDS:
            value = row.get(field)
            if value is None and field == "output" and not labelled:
                record[field] = None
            elif isinstance(value, str):
                record[field] = encodable(value)
            else:
                found = type(value).__name__ if field in row else "missing"
                raise DataError(f"{where}: the field {field!r} is {found}, but must be a string")
        digest = hashlib.sha256(str(record["input"]).encode()).digest()
        if inputs.setdefault(str(record["id"]), digest) != digest:
            raise DataError(
                f"{where}: the id {record['id']!r} has another input in an earlier line: give each "
                "example its own id"
            )
        yield record
