"""Were all runs of a table evaluated on the same data?"""

from collections import Counter
from collections.abc import Sequence

from pe_bench.results.record import RunRecord

DIGESTS = ("sha256", "fingerprint")
"""Ends of the names of fields that identify the content of data."""


def find_other_data(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Return the runs on other data than most runs of their table.

    Only runs of the same subsets are compared. A field that a run lacks is not compared: far items,
    for example, are optional.

    Returns:
        The digests in which runs differ from most runs, by label of the encoding.
    """
    counts: dict[tuple[tuple[str, ...], str], Counter[str]] = {}
    for record in records:
        for name, digest in _digests(record).items():
            counts.setdefault((tuple(record.subsets), name), Counter())[digest] += 1
    found: dict[str, list[str]] = {}
    for record in records:
        for name, digest in sorted(_digests(record).items()):
            ((usual, _),) = counts[tuple(record.subsets), name].most_common(1)
            names = found.setdefault(record.encoding, [])
            if digest != usual and name not in names:
                names.append(name)
    return {encoding: names for encoding, names in found.items() if names}


def _digests(record: RunRecord) -> dict[str, str]:
    """Return the fields of a run's data that identify its content."""
    return {name: str(value) for name, value in record.data.items() if name.endswith(DIGESTS)}


def describe_other_data(records: Sequence[RunRecord]) -> list[str]:
    """Return a warning about runs on other data than most; empty if there are none."""
    found = find_other_data(records)
    if not found:
        return []
    runs = ", ".join(f"{encoding} ({' and '.join(names)})" for encoding, names in found.items())
    return [
        f"Other data: {runs}. Some of these runs were evaluated on other data than most runs, "
        "so their scores cannot be compared: run them again."
    ]
