"""The data of each subset: the user's files, downloads, or built-in documents."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pe_bench.api import DataError, InputError
from pe_bench.api.data import hub_file, read_if_intact, read_sealed, write_sealed
from pe_bench.tasks.scrolls import miniature, styles
from pe_bench.tasks.scrolls.documents import Records, open_split, write_split
from pe_bench.tasks.scrolls.subsets import SUBSETS

HUB_REPOSITORY = "tau/scrolls"

Splits = dict[str, Records]
"""The records of a subset, by split."""


def open_subsets(
    names: Iterable[str],
    splits: Sequence[str],
    find_folder: Callable[[str], Path],
    cache: Path,
) -> tuple[dict[str, Splits], dict[str, str]]:
    """Return the splits of each readable subset, and the reasons for unreadable ones.

    Args:
        names: names of the subsets.
        splits: splits to open of each subset.
        find_folder: returns the folder of a subset.
        cache: folder for derived data.

    Raises:
        DataError: no subset can be read.
    """
    opened: dict[str, Splits] = {}
    unavailable: dict[str, str] = {}
    for name in names:
        folder = find_folder(name)
        try:
            opened[name] = {split: open_split(folder, name, split, cache) for split in splits}
        except InputError as error:
            unavailable[name] = str(error)
    if not opened:
        raise DataError(f"no data for any subset: {next(iter(unavailable.values()))}")
    return opened, unavailable


def download(name: str, cache: Path) -> Path:
    """Return the folder with the published files of a subset."""
    return hub_file(HUB_REPOSITORY, f"{name}.zip", cache=cache / "hub").parent


@dataclass(frozen=True)
class BuiltinDocuments:
    """Writer of built-in documents in the official layout, so that they are read like real data.

    Attributes:
        cache: folder to write to.
        lengths: numbers of tokens of the evaluated documents; the first is the training length.
        items: number of validation examples of each length.

    Raises:
        InputError: there are no such documents.
    """

    cache: Path
    lengths: Sequence[int]
    items: int

    def __post_init__(self) -> None:
        if not self.items:
            raise InputError(
                "the number of built-in documents is unlimited: give scrolls:items 1 or more"
            )
        if self.lengths[0] < miniature.LEAST_SIZE:
            raise InputError(
                f"--train.length {self.lengths[0]} is too short for a built-in document with a "
                f"question: give {miniature.LEAST_SIZE} or more"
            )

    @property
    def sizes(self) -> dict[str, int]:
        """Number of tokens of the documents of each split."""
        sizes = {"train": self.lengths[0]}
        for length in self.lengths:
            sizes[f"validation-{length}"] = length
        return sizes

    def write(self, name: str) -> Path:
        """Return the folder of a subset, after writing files that are missing or damaged."""
        code = Path(miniature.__file__).read_bytes() + Path(styles.__file__).read_bytes()
        version = hashlib.sha256(code).hexdigest()[:8]
        folder = self.cache / "builtin" / f"{version}-{self.lengths[0]}-{self.items}"
        style = SUBSETS[name].miniature
        for split, size in self.sizes.items():
            path = folder / name / f"{split}.jsonl"
            if not _is_whole(path):
                part = split.partition("-")[0]
                write_split(path, miniature.rows(style, part, self.items, size))
                write_sealed(path.with_suffix(".json"), {}, owner=_seal(path), files=[path])
        return folder


def _is_whole(path: Path) -> bool:
    """Return whether a file of built-in documents exists and is intact."""
    return (
        read_if_intact(lambda: read_sealed(path.with_suffix(".json"), owner=_seal(path)))
        is not None
    )


def _seal(path: Path) -> str:
    """Return the name of the seal of a file of built-in documents."""
    return f"{path.parent.name}/{path.stem}"
