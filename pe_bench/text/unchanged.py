"""Files that must not change after a command has computed their digest."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pe_bench.errors import ChangedError


@contextlib.contextmanager
def unchanged(path: Path, digest: Callable[[], str], expected: str) -> Iterator[None]:
    """Check after reading that a file has not changed since the start of the command.

    The check comes after the reading to cover a change during the reading. It also runs after an
    error, which such a change may have caused.

    Args:
        path: the file.
        digest: returns the current digest of the file.
        expected: digest from the start of the command.

    Raises:
        ChangedError: the file differs.
    """

    def check() -> None:
        try:
            same = digest() == expected
        except (OSError, ValueError):  # the file is missing or no longer text
            same = False
        if not same:
            raise ChangedError(path) from None

    try:
        yield
    except Exception:
        check()
        raise
    check()


class MappedFiles:
    """Files that are mapped into memory and read repeatedly while a command runs.

    Args:
        paths: the files.

    Attributes:
        fingerprint: SHA-256 (hex) of the digests of the files.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self._states = self._find_states()
        self.fingerprint = self._digest()

    def check(self) -> None:
        """Check that the files are unchanged; read them only if their times or sizes differ.

        Raises:
            ChangedError: a file differs.
        """
        states = self._find_states()
        if states == self._states:
            return
        if None in states or self._digest() != self.fingerprint:
            before = zip(self.paths, states, self._states, strict=True)
            raise ChangedError(next(path for path, now, then in before if now != then))
        self._states = states

    def _find_states(self) -> list[tuple[int, ...] | None]:
        """Return for each file the metadata that change with its content; None if it is missing."""
        states: list[tuple[int, ...] | None] = []
        for path in self.paths:
            try:
                found = path.stat()
            except OSError:
                states.append(None)
            else:
                states.append((found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
        return states

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for path in self.paths:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()
