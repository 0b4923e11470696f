"""The text that language models are trained and scored on, split by document.

Sources: a part of the Python standard library that is shipped with this package, the whole standard
library of this machine, and any folder of text files or of files with many documents. Numbers are
comparable only if the fingerprints of the text are equal.
"""

import hashlib
import os
import re
import sysconfig
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pe_bench.errors import DataError
from pe_bench.system.console import warn
from pe_bench.text.arrow import keep_rows
from pe_bench.text.document_files import ALSO_LINES, SUFFIXES, holds_many, read_documents, read_text
from pe_bench.text.unchanged import unchanged

Split = Literal["train", "valid", "test"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PYTHON = "python-v1"
PYTHON_FOLDER = Path(__file__).with_name(PYTHON)
PYTHON_FINGERPRINT = "7e6981d01a236287d002e87585881904599ec501da4f129e4f64d1177bf76ed0"

MIN_BYTES = 1024  # minimum of each part of a corpus, for one evaluation window
SHOWN = 5  # number of file names in a warning
MIN_GROUPS = 150  # with fewer modules, the sources are missing

# The recipe "stdlib-v1" is frozen: any change below needs a new name. A group is a top-level module
# or package that CPython 3.10 to 3.13 and Debian's Python all have. Tests, tables and files that
# differ between machines are left out. Modules that share text (bz2 and lzma, ntpath and
# posixpath, ...) are on one side of the split.
STDLIB_TEST = _names(
    """
    argparse asyncio dataclasses difflib imaplib inspect ipaddress mailbox pickletools plistlib
    statistics tarfile textwrap zoneinfo
    """
)
STDLIB_VALID = _names("calendar configparser dis enum fractions logging shutil webbrowser")
STDLIB_TRAIN = _names(
    """
    __future__ _aix_support _collections_abc _compat_pickle _compression _markupbase _osx_support
    _py_abc _pydecimal _pyio _sitebuiltins _strptime _threading_local _weakrefset abc antigravity
    ast base64 bdb bisect bz2 cProfile cmd code codecs codeop collections colorsys compileall
    concurrent contextlib contextvars copy copyreg csv ctypes datetime decimal doctest email
    filecmp fileinput fnmatch ftplib functools genericpath getopt getpass gettext glob graphlib
    gzip hashlib heapq hmac html http importlib io json keyword linecache locale lzma mimetypes
    modulefinder multiprocessing netrc ntpath nturl2path numbers opcode operator optparse os pdb
    pickle pkgutil platform poplib posixpath pprint profile pstats pty py_compile pyclbr pydoc
    queue quopri random reprlib rlcompleter runpy sched secrets selectors shelve shlex signal
    site smtplib socket socketserver sqlite3 sre_compile sre_constants sre_parse ssl stat string
    stringprep struct subprocess symtable tabnanny tempfile this threading timeit token tokenize
    trace traceback tracemalloc tty types typing unittest urllib uuid venv warnings wave weakref
    wsgiref xml xmlrpc zipapp zipimport
    """
)
_STDLIB_SKIPPED = {"__pycache__", "test", "tests", "idle_test"}
_VALID_FOLDERS = ("valid", "validation", "val", "dev")


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


@dataclass(frozen=True)
class Piece:
    """Files whose documents form one text.

    Attributes:
        files: the files, ordered by name.
        fetch: downloads a file to its path if it is missing; None: no file is missing.
    """

    files: tuple[TextFile, ...] = ()
    fetch: Callable[[TextFile], None] | None = None

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self.files)

    def documents(self, cache: Path) -> Any:
        """Return a `Dataset` with a column `text`, kept in the subfolder `datasets` of a cache.

        Raises:
            ChangedError: a file does not match the fingerprint.
            DataError: a file is missing or damaged, or there is no document.
        """
        return keep_rows(
            f"text-{self.fingerprint[:32]}",
            ["text"],
            self._rows,
            cache,
            empty="the text has no document: give more text",
            size=sum(file.size for file in self.files),
        )

    def _rows(self) -> Iterator[dict[str, str]]:
        for file in self.files:
            if self.fetch:
                self.fetch(file)
            with unchanged(file.path, partial(_digest_now, file.path), file.digest):
                for text in read_documents(file.path):
                    yield {"text": text}


@dataclass(frozen=True)
class Corpus:
    """Documents of one source, each in exactly one of three splits.

    Attributes:
        name: name in tables.
        train: training documents for models and vocabularies; several pieces if the corpus is so
            large that the first one is enough to start with.
        valid: validation documents; no file if the source has no such part.
        test: test documents, for results.
    """

    name: str
    train: tuple[Piece, ...] = ()
    valid: Piece = Piece()
    test: Piece = Piece()

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the lines `path NUL sha256 of the bytes` of all files."""
        pieces = [*self.train, self.valid, self.test]
        return _fingerprint(file for piece in pieces for file in piece.files)


_Parts = dict[Split, list[TextFile]]


@cache
def python_corpus() -> Corpus:
    """Return modules of the library of CPython 3.11.7: 1.6 MB to train on, 0.3 MB to test on.

    The files are part of this package, so the text is the same on every machine. A README in their
    folder states their origin and licence.

    Raises:
        DataError: the files are missing or differ from the shipped ones.
    """
    parts: _Parts = {}
    splits: tuple[Split, ...] = ("train", "test")
    for split in splits:
        path = PYTHON_FOLDER / f"{split}.jsonl.gz"
        parts[split] = read_files(PYTHON_FOLDER, [path])
    corpus = _corpus(PYTHON, parts)
    if corpus.fingerprint != PYTHON_FINGERPRINT:
        raise DataError(
            f"files of the built-in text in {PYTHON_FOLDER} are missing or damaged: install "
            "pe-bench again"
        )
    return corpus


def stdlib_corpus() -> Corpus:
    """Return the standard library of the running Python: about 5.2, 0.5 and 1.4 MB of source code.

    Text and fingerprint differ between Python versions.

    Raises:
        DataError: the sources are not on this machine (a zipped or frozen Python).
    """
    return _stdlib_in(Path(sysconfig.get_paths()["stdlib"]))


@cache  # several tasks of a run use it
def _stdlib_in(root: Path) -> Corpus:
    groups: dict[str, list[TextFile]] = {}
    for group in STDLIB_TRAIN | STDLIB_VALID | STDLIB_TEST:
        files = [root / f"{group}.py", *_walk(root / group, _STDLIB_SKIPPED)]
        groups[group] = read_files(root, (path for path in files if path.suffix == ".py"))
    found = sum(map(bool, groups.values()))
    if found < MIN_GROUPS:
        raise DataError(
            f"only {found} of the {len(groups)} modules that make up the built-in text are in "
            f"{root}; use a Python installed with its .py files, or give a folder of text files"
        )

    def part(chosen: frozenset[str]) -> list[TextFile]:
        return sorted(file for group in chosen for file in groups[group])

    return _corpus(
        "stdlib-v1",
        {"train": part(STDLIB_TRAIN), "valid": part(STDLIB_VALID), "test": part(STDLIB_TEST)},
    )


PART = re.compile(r"(?:^|[._-])(train|training|valid|validation|val|dev|test)(?:[._-]|$)")
"""What names of files and folders have for a part of a corpus."""

TEXT_ENDINGS = {
    *(".txt", ".text", ".json", ".jsonl", ".ndjson", ".parquet", ".tokens", ".raw", ".csv", ".tsv"),
    *(".arrow", ".gz", ".bz2", ".xz", ".zst", ".zip"),
}
"""Endings of files with text, as opposed to programs such as train.py."""


def folder_corpus(folder: Path) -> Corpus:
    """Return the UTF-8 text files under a folder, without hidden and empty ones.

    Files that are not UTF-8 are left out with a warning. A file is one document. JSON lines, under
    any ending or packed (.jsonl.gz, .json.gz, .ndjson.gz), and tables (.parquet) hold many
    documents, each in a field `text`. The splits are the subfolders, or files in JSON lines,
    `train`, `test` and optionally `valid` or `validation`. A folder without `train` and `test` is
    split by file, about 90/5/5, by the hash of the relative path; there, equal files count once, so
    that no test text is in the training text.

    Raises:
        DataError: the folder is missing or has no text, no test part or too little text.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}: give a folder of UTF-8 text files")
    train, test = _named(folder, "train"), _named(folder, "test")
    valid = [path for name in _VALID_FOLDERS for path in _named(folder, name)]
    for paths in (train, test, valid):
        if len(paths) > 1:
            names = " and ".join(path.name for path in paths)
            raise DataError(f"{folder} has {names}; keep one of them")
    if not train:
        _refuse_other_names(folder)
        parts = _split_by_file(folder, _texts_in(folder, folder))
    elif not test:
        raise DataError(f"{folder} has {train[0].name} but no test part; add a folder test")
    else:
        parts = {"train": _texts_in(folder, train[0])}
        if valid:
            parts["valid"] = _texts_in(folder, valid[0])
        parts["test"] = _texts_in(folder, test[0])
        _warn_of_copies(folder, parts)
    _check_sizes(folder, parts)
    return _corpus(folder.resolve().name, parts)


def _warn_of_copies(folder: Path, parts: _Parts) -> None:
    """Warn of test files that are also in the training part."""
    trained = {file.digest for file in parts["train"]}
    copies = [file.name for file in parts["test"] if file.digest in trained]
    if copies:
        warn(
            f"{folder}: {len(copies)} of {len(parts['test'])} test files are also in the training "
            f"part, such as {copies[0]}: remove them from one part"
        )


def _refuse_other_names(folder: Path) -> None:
    """Refuse a folder whose names have the parts of a corpus in another form.

    Its files would be divided by their names' hash, and the test text might be trained on.

    Raises:
        DataError: there are names for training text and for held-out text.
    """
    named: dict[bool, str] = {}
    for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):
        found = PART.search(path.name.lower())
        if found and (path.is_dir() or path.suffix.lower() in TEXT_ENDINGS):
            named.setdefault(found[1].startswith("train"), path.relative_to(folder).as_posix())
    if len(named) == 2:
        raise DataError(
            f"{folder} has {named[True]} and {named[False]}, which are not read as parts: name the "
            "parts train, valid and test, as folders or as files of many documents (.jsonl, "
            ".parquet)"
        )


def _check_sizes(folder: Path, parts: Mapping[Split, Sequence[TextFile]]) -> None:
    for split, files in parts.items():
        size = _text_bytes(files, enough=MIN_BYTES)
        if size < MIN_BYTES:
            raise DataError(
                f"the {split} part of {folder} has {size} bytes of UTF-8 text; "
                f"at least {MIN_BYTES} are needed"
            )


def _text_bytes(files: Iterable[TextFile], enough: int) -> int:
    """Return the number of bytes of UTF-8 text in files; stop counting at `enough`."""
    size = 0
    for file in files:
        if not holds_many(file.path):
            size += file.size
        elif size < enough:
            for text in read_documents(file.path):
                size += len(text.encode())
                if size >= enough:
                    break
    return size


def folder_test(folder: Path) -> Piece:
    """Return the test part of `folder_corpus`, also for a folder without other parts.

    Raises:
        DataError: there is too little text.
    """
    if _named(folder, "train") or not _named(folder, "test"):
        return folder_corpus(folder).test
    files = _texts_in(folder, _named(folder, "test")[0])
    _check_sizes(folder, {"test": files})
    return Piece(tuple(files))


def _named(folder: Path, part: str) -> list[Path]:
    """Return the subfolder or multi-document file of a folder that holds a part."""
    files = [folder / f"{part}{suffix}" for suffix in (*SUFFIXES, *ALSO_LINES, ".json")]
    found = [path for path in files if path.is_file() and holds_many(path)]
    return [folder / part, *found] if (folder / part).is_dir() else found


def _split_by_file(folder: Path, files: list[TextFile]) -> _Parts:
    distinct = {file.digest: file for file in files}.values()
    if len(distinct) < 3:
        raise DataError(
            f"{folder} has {len(distinct)} different files of UTF-8 text; at least 3 are needed, "
            "or folders train and test"
        )
    ranked = sorted(distinct, key=lambda file: hashlib.sha256(os.fsencode(file.name)).digest())
    held_out = max(1, round(0.05 * len(ranked)))
    return {
        "train": sorted(ranked[2 * held_out :]),
        "valid": sorted(ranked[held_out : 2 * held_out]),
        "test": sorted(ranked[:held_out]),
    }


def _texts_in(root: Path, folder: Path) -> list[TextFile]:
    return [file for file in read_files(root, _walk(folder)) if file.size]


def _walk(folder: Path, skipped: Container[str] = ()) -> Iterator[Path]:
    if folder.is_file():
        yield folder
    for parent, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in skipped]
        links = [name for name in folders if Path(parent, name).is_symlink()]  # not followed
        yield from (Path(parent, name) for name in [*files, *links] if not name.startswith("."))


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


def _digest_now(path: Path) -> str:
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


def _corpus(name: str, parts: _Parts) -> Corpus:
    train, test = (Piece(tuple(parts[split])) for split in ("train", "test"))
    return Corpus(name, (train,), Piece(tuple(parts.get("valid", ()))), test)


def _fingerprint(files: Iterable[TextFile]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(os.fsencode(file.name) + b"\0" + file.digest.encode() + b"\n")
    return digest.hexdigest()
