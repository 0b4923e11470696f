"""Public corpora on the Hugging Face hub, in their official splits, file by file."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pe_bench.api import Corpus, DataError, InputError
from pe_bench.api.data import Piece, TextFile, hub_content, hub_file, hub_path, read_files

# fmt: off
_BOOKS = (
    "5263dc4323e881d2", "2b13c68dbeba63b5", "8e4dd6b70d51dfcf", "e7f0ba0d3c2eb6c0",
    "3f9e7e096fa07f4b", "87dece6a0ab708e8", "c50fea56d0518a87", "e9fea5c158e172e2",
    "275017526d706c9d", "f07a29af90b71085", "dd5d8583a9f6a549", "6c0bc91e6df2e661",
    "78d820574bddc6bb", "5b853732c713dded", "54b567998cd5eb4b", "7a78b1e66cfe52de",
    "8269d10108995a28", "e240b232c0daddca", "f59d477d80180c78", "198af082bd917d87",
    "f9b058c5e9338514", "e221306b7359a366", "5a956eb2a5d6cab5",
)
# fmt: on


@dataclass(frozen=True)
class HubCorpus:
    """The place of a corpus on the hub.

    Attributes:
        repo: dataset repository.
        revision: commit, or a branch to which files are only added.
        train, test: files of the official splits, each with many documents.
    """

    repo: str
    revision: str
    train: Sequence[str]
    test: Sequence[str]


_PG19_TRAIN = [f"data/train-{i:05d}-of-00023-{book}.parquet" for i, book in enumerate(_BOOKS)]
_PROOFPILE_TRAIN = [f"train/proofpile_train_{i}.jsonl.gz" for i in range(21)]
_C4_TRAIN = [f"en/c4-train.{i:05d}-of-01024.json.gz" for i in range(1024)]

PUBLIC = {
    # Rae et al. 2019 with one book per row. The test file is the one of emozilla/pg19-test.
    "pg19": HubCorpus(
        "emozilla/pg19",
        "c021754c8e01c5b1cc83a1f549c1f97fbbb756b8",
        _PG19_TRAIN,
        ["data/test-00000-of-00001-29a571947c0b5ccc.parquet"],
    ),
    "proofpile": HubCorpus(
        "hoskinson-center/proof-pile",
        "490b980249446f2f3bd2df3a8cf085d0f2de240a",
        _PROOFPILE_TRAIN,
        ["test/proofpile_test.jsonl.gz"],
    ),
    # C4 has no test split; its validation split is the held-out text.
    "c4": HubCorpus(
        "allenai/c4",
        "main",
        _C4_TRAIN,
        ["en/c4-validation.00000-of-00008.json.gz"],
    ),
}


def public_corpus(name: str, train_files: int, cache: Path) -> Corpus:
    """Return the first files of a corpus' train split and its held-out text.

    Each train file is a piece that is downloaded and tokenized when training reaches it. Only its
    metadata are requested from the hub at the start.

    Args:
        name: a key of `PUBLIC`.
        train_files: number of files of the train split.
        cache: folder for the downloads.

    Raises:
        InputError: there is no download with this name, or the hub does not answer.
    """
    if name not in PUBLIC:
        raise InputError(
            f"there is no download of {name}, only of {', '.join(PUBLIC)}: give a folder with its "
            "text, in subfolders train and test, as --data"
        )
    source = PUBLIC[name]
    root = hub_path(source.repo, "", cache, source.revision)

    def describe(names: Sequence[str]) -> list[TextFile]:
        there = [root / name for name in names if (root / name).exists()]
        files = read_files(root, there)
        for name in names:
            if root / name not in there:
                content = hub_content(source.repo, name, revision=source.revision)
                # For files of this size the checksum is the SHA-256 of the bytes.
                files.append(TextFile(name, root / name, content.size or 0, content.etag or ""))
        return files

    def fetch(file: TextFile) -> None:
        hub_file(source.repo, file.name, cache=cache, revision=source.revision)

    return _in_pieces(name, describe(source.train[:train_files]), describe(source.test), fetch)


def copied_corpus(name: str, folder: Path, train_files: int) -> Corpus | None:
    """Return a public corpus from a folder with copies of the hub's files, see `public_corpus`.

    The files may be in subfolders or in the folder itself.

    Returns:
        The corpus; None if the folder has none of the files.

    Raises:
        InputError: the folder has files of one split only.
    """
    source = PUBLIC.get(name)
    if source is None:
        return None

    train, test = _find(folder, source.train)[:train_files], _find(folder, source.test)
    if bool(train) != bool(test):
        there, lacking = (train[0].name, source.test) if train else (test[0].name, source.train)
        raise DataError(
            f"{folder} has {there} but not {lacking[0]}: copy this file from {source.repo}"
        )
    if not train:
        return None
    return _in_pieces(name, read_files(folder, train), read_files(folder, test))


def copied_test(name: str, folder: Path) -> Piece | None:
    """Return the held-out text from a folder with copies of the hub's files, or None."""
    source = PUBLIC.get(name)
    found = _find(folder, source.test) if source else []
    return Piece(tuple(read_files(folder, found))) if found else None


def _find(folder: Path, files: Sequence[str]) -> list[Path]:
    """Return the copies of files that are in a folder or in its subfolders."""
    found = []
    for file in files:
        for path in (folder / file, folder / Path(file).name):
            if path.is_file():
                found.append(path)
                break
    return found


def _in_pieces(
    name: str,
    train: Iterable[TextFile],
    test: Iterable[TextFile],
    fetch: Callable[[TextFile], None] | None = None,
) -> Corpus:
    pieces = tuple(Piece((file,), fetch) for file in sorted(train))
    return Corpus(name, pieces, test=Piece(tuple(sorted(test)), fetch))
