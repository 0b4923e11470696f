"""What is known to be wrong with tables that were measured, to be shown with their numbers."""

import csv
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("known_problems.csv")


def find(settings: str) -> list[str]:
    """Return what is known about the tables of a digest of settings, in the order of the file."""
    return [problem for known, problem in _load() if known == settings]


@cache
def _load() -> list[tuple[str, str]]:
    with FILE.open(encoding="utf-8", newline="") as file:
        return [(row["settings"], row["problem"]) for row in csv.DictReader(file)]
