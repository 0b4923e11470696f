"""Were all runs of a table evaluated on the same data?"""

from collections import Counter
from collections.abc import Sequence

from pe_bench.results.record import RunRecord

DIGESTS = ("sha256", "fingerprint")
"""Ends of the names of fields that identify the content of data."""


def find_other_data(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Return the runs on other data than most runs of their table.

    A field that a run lacks is not compared: far items, for example, are optional.

    Returns:
        The digests in which runs differ from most runs, by label of the encoding.
    """
    digests: dict[str, Counter[str]] = {}
    for record in records:
        for name, value in record.data.items():
            if name.endswith(DIGESTS):
                digests.setdefault(name, Counter())[str(value)] += 1
    usual = {name: counts.most_common(1)[0][0] for name, counts in digests.items()}
    found: dict[str, list[str]] = {}
    for record in records:
        for name in sorted(usual.keys() & record.data.keys()):
            names = found.setdefault(record.encoding, [])
            if str(record.data[name]) != usual[name] and name not in names:
                names.append(name)
    return {encoding: names for encoding, names in found.items() if names}


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
