"""Numbers from papers, shown next to measured numbers in separate tables.

docs/published-waiting.csv holds numbers of tasks that this suite lacks, and numbers whose source
has not been read yet.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from pe_bench.reporting.markdown import ABSENT, markdown_table
from pe_bench.results.labels import plugin_name
from pe_bench.results.metrics import find_metric

TABLE = Path(__file__).with_name("published.csv")
Evidence = Literal["published", "second-hand"]
NONE_KNOWN = "none"


@dataclass(frozen=True)
class Published:
    """A published number.

    Attributes:
        task, subset, metric: names in this suite, or in the source if this suite has none.
        length: position on the task's length axis; None for a mean or without a length.
        encoding: name in this suite, or in the source if this suite has none.
        value: the number.
        spread: the number after "±"; None if the source gives none.
        unit: unit of value and spread; empty for a plain number.
        source: paper, arXiv number, place in the paper.
        evidence: "published": read in the paper or its result files; "second-hand": read elsewhere.
        protocol: differences from the protocol of this suite.
        known_problems: known errors of the number or its protocol; empty without any.
    """

    task: str
    subset: str
    metric: str
    length: int | None
    encoding: str
    value: float
    spread: float | None
    unit: str
    source: str
    evidence: Evidence
    protocol: str
    known_problems: str


@cache
def load() -> tuple[Published, ...]:
    """Return all numbers, in the order of the file."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(_parse(row) for row in csv.DictReader(file))


def find(task: str, encoding: str | None = None) -> list[Published]:
    """Return the numbers of a task, in the order of the file.

    Args:
        task: name or spec of the task.
        encoding: name of the encoding; None for all.
    """
    name = plugin_name(task)
    return [n for n in load() if n.task == name and encoding in (None, n.encoding)]


@dataclass(frozen=True)
class Source:
    """The numbers of one source for a task, as a table in the order of the source.

    Attributes:
        caption: source and kind of the numbers, differences of the protocol, and common problems.
        header: a heading for each column.
        rows: cells of each row, the encoding first.
        align: a letter for each column, as in `markdown_table`.
    """

    caption: str
    header: list[str]
    rows: list[list[str]]
    align: str


def measures(task: str) -> list[tuple[str, str]]:
    """Return the unique pairs of subset and metric among the published numbers of a task."""
    return list(dict.fromkeys((number.subset, number.metric) for number in find(task)))


def markdown(task: str) -> str:
    """Return a section of published numbers of a task, with an unranked table for each source.

    Returns:
        The section; an empty string without published numbers.
    """
    tables = [f"{s.caption}\n\n{markdown_table(s.header, s.rows, s.align)}" for s in sources(task)]
    return "\n\n".join(["### Published (not measured here)", *tables]) if tables else ""


def sources(task: str) -> list[Source]:
    """Return the published tables of a task, in the order of the file."""
    found: dict[str, list[Published]] = {}
    for number in find(task):
        found.setdefault(f"{number.source} ({number.evidence})", []).append(number)
    return [_make_source(name, numbers) for name, numbers in found.items()]


def _make_source(name: str, numbers: Sequence[Published]) -> Source:
    """Return the table of a source."""
    metrics = list(dict.fromkeys(_label(number) for number in numbers))
    problems = {number.encoding: number.known_problems or NONE_KNOWN for number in numbers}
    columns: dict[str, dict[str, Published]] = {}  # heading -> encoding -> number
    for number in numbers:
        heading = number.subset
        if len(metrics) > 1:
            heading += f" {_label(number)}"
        if number.length is not None:
            heading += f" at {number.length:,}"
        columns.setdefault(heading, {})[number.encoding] = number

    protocols = dict.fromkeys(number.protocol for number in numbers)
    caption = " ".join([f"{name}: {', '.join(metrics)}.", *protocols])
    header = ["encoding (published)", *columns]
    rows = [[encoding, *_cells(encoding, columns.values())] for encoding in problems]
    align = "l" + "r" * len(columns)
    if len(set(problems.values())) == 1:
        caption += f" Known problems: {numbers[0].known_problems or NONE_KNOWN}"
    else:
        header.append("known problems")
        align += "l"
        for row in rows:
            row.append(problems[row[0]])
    return Source(caption, header, rows, align)


def _label(number: Published) -> str:
    """Return title and unit of a number's metric."""
    title = find_metric(number.metric).full_title
    return f"{title} in {number.unit}" if number.unit else title


def _cells(encoding: str, columns: Iterable[Mapping[str, Published]]) -> list[str]:
    """Return the numbers of an encoding, formatted with the decimals of their column."""
    cells = []
    for column in columns:
        if encoding not in column:
            cells.append(ABSENT)
            continue
        number = column[encoding]
        decimals = max(len(f"{other.value:g}".partition(".")[2]) for other in column.values())
        spread = "" if number.spread is None else f" ± {number.spread:.{decimals}f}"
        cells.append(f"{number.value:.{decimals}f}{spread}")
    return cells


def _parse(row: dict[str, str]) -> Published:
    evidence = next(kind for kind in get_args(Evidence) if kind == row["evidence"])
    return Published(
        task=row["task"],
        subset=row["subset"],
        metric=row["metric"],
        length=int(row["length"]) if row["length"] else None,
        encoding=row["encoding"],
        value=float(row["value"]),
        spread=float(row["spread"]) if row["spread"] else None,
        unit=row["unit"],
        source=row["source"],
        evidence=evidence,
        protocol=row["protocol"],
        known_problems=row["known_problems"],
    )
