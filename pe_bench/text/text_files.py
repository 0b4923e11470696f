"""The files of a corpus: which ones are text, and their digests."""

import hashlib
import os
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pe_bench.errors import DataError
from pe_bench.system.console import warn
from pe_bench.text.document_files import SUFFIXES, holds_many, read_text

SHOWN = 5  # number of file names in a warning


class TextFile(NamedTuple):
    """A file of a corpus: one document, or many in JSON lines or a table.

    Attributes:
        name: path relative to the corpus, with forward slashes on every system.
        path: path of the file.
        size: size of the file, bytes.
        digest: SHA-256 (hex) of what determines the documents, mostly the bytes of the file.
    """

    name: str
    path: Path
    size: int
    digest: str


def read_files(root: Path, paths: Iterable[Path]) -> list[TextFile]:
    """Return the files that are UTF-8 or hold documents, ordered by relative path.

    Warnings name the files and links that were left out.

    Raises:
        DataError: a file cannot be read.
    """
    files = []
    left_out = []
    links = []
    for path in paths:
        if not path.is_file():  # a link, a socket, or a module that is a package
            if path.is_symlink():
                links.append(path.relative_to(root).as_posix())
            continue
        try:
            size, digest = _describe(path)
        except UnicodeError:
            left_out.append(path.relative_to(root).as_posix())
            continue
        except OSError as error:
            raise DataError(
                f"cannot read {path} ({error.strerror}); every file of the text must be readable"
            ) from error
        files.append(TextFile(path.relative_to(root).as_posix(), path, size, digest))
    _warn_left_out(root, "files that are not UTF-8 text", left_out)
    _warn_left_out(root, "links to folders and broken links", links)
    return sorted(files)


def _warn_left_out(root: Path, what: str, names: Sequence[str]) -> None:
    if names:
        more = f" and {len(names) - SHOWN} others" if len(names) > SHOWN else ""
        warn(f"{root}: {what} are left out: {', '.join(sorted(names)[:SHOWN])}{more}")


def digest_of(path: Path) -> str:
    """Return the present digest of a file, see `TextFile`."""
    return _describe(path)[1]


def _describe(path: Path) -> tuple[int, str]:
    """Return the size and the digest of a file.

    For most files it is the digest of the bytes. Files that earlier versions read differently
    have another digest, so that old results and caches are not mixed with new ones.

    Raises:
        UnicodeError: the file is neither text nor a file of documents.
    """
    if holds_many(path):
        always = path.name.lower().endswith(SUFFIXES)
        digest = hashlib.sha256(b"" if always else b"json lines\n")
        with path.open("rb") as file:  # may be larger than the memory
            size = os.fstat(file.fileno()).st_size
            return size, hashlib.file_digest(file, lambda: digest).hexdigest()
    data = read_text(path).encode()
    return len(data), hashlib.sha256(data).hexdigest()


def fingerprint_of(files: Iterable[TextFile]) -> str:
    """Return the SHA-256 (hex) over the names and digests of files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(os.fsencode(file.name) + b"\0" + file.digest.encode() + b"\n")
    return digest.hexdigest()


def find_files(folder: Path, skipped: Container[str] = ()) -> Iterator[Path]:
    """Yield a file, or the files under a folder without hidden and skipped folders.

    Links to folders are yielded, but not followed.
    """
    if folder.is_file():
        yield folder
    for parent, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in skipped]
        links = [name for name in folders if Path(parent, name).is_symlink()]  # not followed
        yield from (Path(parent, name) for name in [*files, *links] if not name.startswith("."))
