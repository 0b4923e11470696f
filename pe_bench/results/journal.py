"""The items of an unfinished part of a run, kept while it is measured."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pe_bench.system.files import saving


class Journal:
    """Items of an unfinished part, one JSON line each, safe against being killed.

    Args:
        path: the file; created on the first write, read if it is there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.items: dict[str, Any] = {}
        if path.exists():
            whole = path.read_bytes()
            lines = whole.split(b"\n")
            if lines[-1]:  # a line torn by a kill has no end: drop it
                os.truncate(path, len(whole) - len(lines[-1]))
            for line in lines[:-1]:
                key, value = json.loads(line)
                self.items[key] = value

    def add(self, items: Mapping[str, Any]) -> None:
        """Remembers items by key, on disk before this returns."""
        lines = [json.dumps(item, ensure_ascii=False) + "\n" for item in items.items()]
        with saving(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
        self.items.update(items)
