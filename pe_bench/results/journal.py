"""The items of an unfinished part of a run, kept while it is measured."""

import json
import os
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pe_bench.system.files import saving, write_atomic
from pe_bench.system.sealed import DamagedError, set_aside


class Journal:
    """Items of an unfinished part, one JSON line each, safe against being killed.

    A line is `[key, value, seconds, checksum]`, and the first one has what the journal belongs to
    as its value. From a damaged line on a journal is not read: items are added in the order in
    which they are measured, and a task may rely on that.

    Args:
        path: the file; created on the first write, read if it is there.
        of: what the items belong to.

    Attributes:
        items: value of each key.
        seconds: that earlier calls have measured for.
    """

    def __init__(self, path: Path, of: str = "") -> None:
        self.path = path
        self.of = of
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
            set_aside(DamagedError(path, f"is damaged or another run's from line {read + 1} on"))
            write_atomic(path, b"".join(line + b"\n" for line in lines[:read]))
        elif torn:  # by a kill
            os.truncate(path, len(whole) - len(torn))

    def _read(self, lines: list[bytes]) -> int:
        """Take the items of whole lines up to the first that is not; return their number."""
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
            elif value != self.of:
                return 0
        return len(lines)

    def add(self, items: Mapping[str, Any]) -> None:
        """Remembers items by key, on disk before this returns."""
        now = time.monotonic()
        each = round((now - self.last) / max(1, len(items)), 6)
        self.last = now
        with saving(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                if not file.tell():
                    file.write(_line("of", self.of, 0.0))
                file.writelines(_line(key, value, each) for key, value in items.items())
                file.flush()
                os.fsync(file.fileno())
        self.items.update(items)


def _line(key: str, value: Any, seconds: float) -> str:
    line = [key, value, seconds, _checksum(key, value, seconds)]
    return json.dumps(line, ensure_ascii=False) + "\n"


def _checksum(key: str, value: Any, seconds: float) -> int:
    # Of the text that JSON makes of what it has read: of the same value, always the same.
    return zlib.crc32(json.dumps([key, value, seconds]).encode())
