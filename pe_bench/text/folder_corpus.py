"""A folder of text files as a corpus."""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pe_bench.errors import DataError
from pe_bench.system.console import warn
from pe_bench.text.corpus import Corpus, Piece, Split
from pe_bench.text.document_files import ALSO_LINES, SUFFIXES, holds_many, read_documents
from pe_bench.text.text_files import TextFile, find_files, read_files

Parts = dict[Split, list[TextFile]]

MIN_BYTES = 1024  # minimum of each part of a corpus, for one evaluation window

_VALID_FOLDERS = ("valid", "validation", "val", "dev")

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
    return Corpus.of_files(folder.resolve().name, parts)


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


def _warn_of_copies(folder: Path, parts: Parts) -> None:
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


def _named(folder: Path, part: str) -> list[Path]:
    """Return the subfolder or multi-document file of a folder that holds a part."""
    files = [folder / f"{part}{suffix}" for suffix in (*SUFFIXES, *ALSO_LINES, ".json")]
    found = [path for path in files if path.is_file() and holds_many(path)]
    return [folder / part, *found] if (folder / part).is_dir() else found


def _split_by_file(folder: Path, files: list[TextFile]) -> Parts:
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
    return [file for file in read_files(root, find_files(folder)) if file.size]
