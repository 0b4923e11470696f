"""The values of options: what is read, and the sentences about what cannot be."""

import argparse
import re
from collections.abc import Callable
from typing import Any

from pe_bench.registry.options import convert

LARGEST_SEED = 2**63 - 1
MOST_SEEDS = 1000  # of a range


def value(annotation: Any) -> Callable[[str], Any]:
    """Return what reads a value of this type, as options of a spec are read."""

    def parse(text: str) -> Any:
        try:
            return convert(text, annotation)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"must be {error}, not '{text}'") from None

    return parse


def device(text: str) -> str:
    """Return the name of a device."""
    if text not in ("auto", "cpu", "cuda") and not re.fullmatch(r"cuda:\d{1,3}", text):
        raise argparse.ArgumentTypeError(f"must be auto, cpu, cuda or cuda:1, not '{text}'")
    return text


def shard(text: str) -> tuple[int, int]:
    """Return the number of a share, from 1 on, and the number of all shares."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"must be a share such as 2/8, from 1/8 to 8/8, not '{text}'"
        )
    return int(match[1]), int(match[2])


def seeds(text: str) -> list[int]:
    """Return a single seed, or those of a range with both of its ends."""
    if span := re.fullmatch(r"(\d+)-(\d+)", text):
        first, last = seed(span[1]), seed(span[2])
        if not first <= last < first + MOST_SEEDS:
            raise argparse.ArgumentTypeError(
                f"must rise to at most {MOST_SEEDS} seeds, such as 0-4, not '{text}'"
            )
        return list(range(first, last + 1))
    return [seed(text)]


def seed(text: str) -> int:
    """Return a seed that every generator takes."""
    number: int = value(int)(text)
    if not 0 <= number <= LARGEST_SEED:
        raise argparse.ArgumentTypeError(
            f"must not be negative and at most {LARGEST_SEED}, not {text}"
        )
    return number
