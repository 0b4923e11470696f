"""Journal of the items of an unfinished evaluation."""

import json
import os
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pe_bench.system.files import saving, write_atomic
from pe_bench.system.sealed import DamagedError, set_aside
from pe_bench.system.time_limit import TimeLimit


class Journal:
    """Items of an unfinished evaluation, one JSON line each, on disk even if the process is killed.

    A line is `[key, value, seconds, checksum]`. The value of the first line is the key of the
    owner. Reading stops at the first corrupt line, so that the items that are read are the first
    ones that were added, in the same order.

    Args:
        path: the file; it is read if it exists, and otherwise created on the first write.
        owner: key of the owner, such as a run.
        limit: time limit of the run, checked after items are added; None: no limit.

    Attributes:
        items: value of each key.
        seconds: measuring time of earlier calls.
    """

    def __init__(self, path: Path, owner: str = "", limit: TimeLimit | None = None) -> None:
        self.path = path
        self.owner = owner
        self.limit = limit
        self.items: dict[str, Any] = {}
        self.seconds = 0.0
        self.last = time.monotonic()
        try:
            whole = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            set_aside(DamagedError(path, f"cannot be read ({error.strerror})"))
            return
        *lines, torn = whole.split(b"\n")
        read = self._read(lines)
        if read < len(lines):
            set_aside(
                DamagedError(
                    path, f"is damaged, or belongs to another run, from line {read + 1} on"
                )
            )
            write_atomic(path, b"".join(line + b"\n" for line in lines[:read]))
        elif torn:  # an incomplete last line, after a kill
            os.truncate(path, len(whole) - len(torn))

    def _read(self, lines: list[bytes]) -> int:
        """Read items up to the first corrupt line; return the number of lines read."""
        for number, line in enumerate(lines):
            try:
                key, value, seconds, checksum = json.loads(line)
            except (ValueError, TypeError, RecursionError):
                return number
            if checksum != _checksum(key, value, seconds):
                return number
            if number:
                self.items[key] = value
                self.seconds += seconds
            elif value != self.owner:
                return 0
        return len(lines)

    def add(self, items: Mapping[str, Any]) -> None:
        """Add items by key, and flush them to disk.

        Raises:
            TimedOut: the time limit is over.
        """
        now = time.monotonic()
        each = round((now - self.last) / max(1, len(items)), 6)
        self.last = now
        with saving(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                if not file.tell():
                    file.write(_line("of", self.owner, 0.0))
                file.writelines(_line(key, value, each) for key, value in items.items())
                file.flush()
                os.fsync(file.fileno())
        self.items.update(items)
        if self.limit:
            count = len(self.items)
            word = "item" if count == 1 else "items"
            self.limit.check(f"in evaluation after {count} {word}")


def _line(key: str, value: Any, seconds: float) -> str:
    line = [key, value, seconds, _checksum(key, value, seconds)]
    return json.dumps(line, ensure_ascii=False) + "\n"


def _checksum(key: str, value: Any, seconds: float) -> int:
    # JSON is deterministic for values that were read from JSON.
    return zlib.crc32(json.dumps([key, value, seconds]).encode())
