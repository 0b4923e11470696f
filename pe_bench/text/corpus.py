"""The text that language models are trained and scored on, split by document.

`builtin_corpora` and `folder_corpus` make them. Numbers are comparable only if the fingerprints of
the text are equal.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pe_bench.text.arrow import keep_rows
from pe_bench.text.document_files import read_documents
from pe_bench.text.text_files import TextFile, digest_of, fingerprint_of
from pe_bench.text.unchanged import unchanged

Split = Literal["train", "valid", "test"]


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
        return fingerprint_of(self.files)

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
            with unchanged(file.path, partial(digest_of, file.path), file.digest):
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

    @classmethod
    def of_files(cls, name: str, parts: Mapping[Split, Sequence[TextFile]]) -> "Corpus":
        """Return a corpus whose training text is one piece; the split `valid` may be missing."""
        train, test = Piece(tuple(parts["train"])), Piece(tuple(parts["test"]))
        return cls(name, (train,), Piece(tuple(parts.get("valid", ()))), test)

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the lines `path NUL sha256 of the bytes` of all files."""
        pieces = [*self.train, self.valid, self.test]
        return fingerprint_of(file for piece in pieces for file in piece.files)
