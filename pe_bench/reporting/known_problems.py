"""Known problems of measured tables, shown with their numbers."""

import csv
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("known_problems.csv")


def find(settings: str) -> list[str]:
    """Return the known problems of tables with the settings digest `settings`, in file order."""
    return [problem for known, problem in _load() if known == settings]


@cache
def _load() -> list[tuple[str, str]]:
    with FILE.open(encoding="utf-8", newline="") as file:
        return [(row["settings"], row["problem"]) for row in csv.DictReader(file)]
