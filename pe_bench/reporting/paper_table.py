"""The table of a paper in LaTeX: encodings by tasks, or one task with all its scores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pe_bench.reporting.columns import NumberColumn, list_columns, shorten
from pe_bench.reporting.display_names import display_names
from pe_bench.reporting.latex import ABSENT, Cell, Part, Rows, make_table
from pe_bench.reporting.paired import compare_table
from pe_bench.reporting.paper_captions import CHANCE, STRONGEST, describe_source, describe_table
from pe_bench.reporting.styles import family_of
from pe_bench.reporting.tables import Table
from pe_bench.results.baselines import find_chance, find_strongest

MOST_SCORES = 5  # maximum number of scores in a row; a column of families counts as one
FEW = 3  # maximum number of encodings that are columns if there are more scores
WHOLE = 1000  # numbers from here on have no decimals


@dataclass(frozen=True)
class Score:
    """A number of each encoding: a column of the table, or a row if it is transposed.

    Attributes:
        table: the table of results that it is from.
        numbers: the numbers of encodings.
        heading: lines of the heading.
        is_headline: whether the number ranks the encodings.
    """

    table: Table
    numbers: NumberColumn
    heading: tuple[str, ...]
    is_headline: bool

    @property
    def digits(self) -> int:
        """Decimals of all numbers."""
        largest = self.numbers.largest
        if largest >= WHOLE:
            return 0
        return 1 if self.numbers.percent or largest >= 10 else 3

    @property
    def best(self) -> float | None:
        """The best finite mean; None if there is none, or if all are equal."""
        means = [float(row["mean"]) for row in self.numbers.of.values()]
        finite = [mean for mean in means if math.isfinite(mean)]
        higher = self.table.metric(self.numbers.metric).higher_is_better
        if higher is None or len(set(finite)) < 2:
            return None
        return max(finite) if higher else min(finite)

    @cached_property
    def letters(self) -> Mapping[str, str]:
        """The compact letter display of the encodings; empty if nothing can be compared."""
        if not self.is_headline:
            return {}
        return compare_table(self.table).letters

    def cell(self, encoding: str) -> Cell:
        """Return the cell of an encoding: mean, interval, seeds that learned, and letters."""
        number = self.numbers.of.get(encoding)
        if number is None or math.isnan(number["mean"]):
            return Cell(ABSENT)
        low, high, digits = number["ci_low"], number["ci_high"], self.digits
        small = []
        if not math.isnan(low):
            if number["seeds"] > 1:
                small.append(f"±{high - number['mean']:.{digits}f}")
            else:
                small.append(f"[{low:.{digits}f}, {high:.{digits}f}]")
        learned, seeds = self.table.learned(encoding), self.table.seeds(encoding)
        if self.is_headline and self.table.is_gated and learned < seeds:
            small.append(f"({learned}/{seeds})")
        bold = number["mean"] == self.best
        text = _show(number["mean"], digits, signed=self.numbers.signed)
        return Cell(text, " ".join(small), self.letters.get(encoding, ""), bold)

    def baseline_cell(self, name: str) -> Cell:
        """Return the cell of a baseline, or of `CHANCE` or `STRONGEST`."""
        known = self.numbers.baselines
        if known and name == CHANCE:
            name = find_chance([*known])
        elif known and name == STRONGEST:
            name = find_strongest(known, higher_is_better=self.table.ranking.higher_is_better)
        value = known.get(name)
        return Cell(ABSENT if value is None else _show(value, self.digits))


def write_tables(
    tables: Sequence[Table],
    label: str,
    *,
    encodings: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
    families: bool = False,
    comments: Sequence[str] = (),
) -> str:
    """Return LaTeX source: a table for each preset, protocol, source model and tuning.

    A table of several tasks has their headlines, a table of one task has all its scores. Encodings
    are the rows, in several parts below each other if there are more than `MOST_SCORES` scores. Up
    to `FEW` encodings are the columns if there are more scores than encodings.

    Args:
        tables: the tables, as returned by `selection.select_tables`.
        label: name of the table in LaTeX; a number follows if there are several tables.
        encodings: labels in the order of the table; empty: the best first.
        names: display names that replace others, by label.
        families: whether to show the family of each encoding.
        comments: comments at the top.
    """
    groups = _groups(tables)
    parts = ["".join(f"% {line}\n" for line in comments)]
    for number, group in enumerate(groups, 1):
        name = f"tab:{label}" if len(groups) == 1 else f"tab:{label}-{number}"
        order = []
        for encoding in encodings:
            if any(encoding in table.encodings for table in group):
                order.append(encoding)
        parts.append(_write_group(group, name, order or _order(group), names, families=families))
    return "\n".join(filter(None, parts))


def _groups(tables: Sequence[Table]) -> list[list[Table]]:
    """Return groups of tables that are one table in a paper.

    Tables of one group have common preset, protocol, source model and tuning. If a task has
    several tables with these, each is in a separate group.
    """
    groups: dict[tuple[object, ...], list[Table]] = {}
    for table in tables:
        about = table.about
        tuned = bool(about.settings.get("tune"))
        shared = (about.preset, about.protocol, table.origin, tuned, about.measures_time)
        number = 0
        while any(one.about.task == about.task for one in groups.get((*shared, number), [])):
            number += 1
        groups.setdefault((*shared, number), []).append(table)
    return list(groups.values())


def _write_group(
    tables: Sequence[Table],
    label: str,
    order: Sequence[str],
    names: Mapping[str, str] | None,
    *,
    families: bool,
) -> str:
    scores = _scores_of_a_task(tables[0]) if len(tables) == 1 else _headlines(tables)
    records = [record for table in tables for record in table.records]
    shown = display_names(records, names)
    family = {record.encoding: family_of(record.encoding, record) for record in records}
    heads = {name: [shown[name]] for name in order}
    if families:
        heads = {name: [shown[name], f"({family[name]})"] for name in order}
    across = len(order) <= FEW and len(scores) > len(order)
    if across:
        parts = [_make_transposed(scores, heads)]
    else:
        count = math.ceil(len(scores) / (MOST_SCORES - families))
        size = math.ceil(len(scores) / count)
        starts = range(0, len(scores), size)
        parts = [_make_part(scores[start : start + size], scores, heads) for start in starts]
    has_letters = any(any(score.letters.values()) for score in scores)
    has_best = any(score.best is not None for score in scores)
    return make_table(
        parts,
        caption=describe_table(
            tables,
            has_letters=has_letters,
            has_best=has_best,
            baselines=_baseline_names(scores),
        ),
        label=label,
        comments=[describe_source(table) for table in tables],
        text_columns=2 if families and not across else 1,
    )


def _make_part(
    scores: Sequence[Score], every: Sequence[Score], heads: Mapping[str, Sequence[str]]
) -> Part:
    """Return a part whose rows are encodings and baselines.

    Args:
        scores: the scores of the part.
        every: the scores of all parts.
        heads: display name of each encoding, and optionally its family in brackets.
    """
    rows = []
    for name, lines in heads.items():
        family = [Cell(text.strip("()")) for text in lines[1:]]
        rows.append([*family, *(score.cell(name) for score in scores)])
    blocks = [Rows([lines[0] for lines in heads.values()], rows)]
    below = _baseline_names(every)
    has_families = any(len(lines) > 1 for lines in heads.values())
    beside = [Cell("")] if has_families else []
    if below:
        cells = []
        for name in below:
            cells.append([*beside, *(score.baseline_cell(name) for score in scores)])
        blocks.append(Rows(below, cells))
    titles = [["Encoding"], ["Family"]] if has_families else [["Encoding"]]
    return Part([*titles, *(score.heading for score in scores)], blocks)


def _make_transposed(scores: Sequence[Score], heads: Mapping[str, Sequence[str]]) -> Part:
    """Return a part whose rows are scores, see `_make_part`."""
    below = _baseline_names(scores)
    rows = []
    for score in scores:
        own = [score.cell(name) for name in heads]
        rows.append([*own, *(score.baseline_cell(name) for name in below)])
    names = [": ".join(score.heading) for score in scores]
    titles = [["Score"], *heads.values(), *(name.split(" ", 1) for name in below)]
    return Part(titles, [Rows(names, rows)])


def _headlines(tables: Sequence[Table]) -> list[Score]:
    """Return the headline of each table."""
    found = []
    for table in tables:
        lines = (table.about.task, table.ranking.metric.label)
        found.append(Score(table, list_columns(table)[0], lines, is_headline=True))
    return found


def _scores_of_a_task(table: Table) -> list[Score]:
    """Return all scores of a table, the headline first."""
    found = []
    for index, column in enumerate(list_columns(table)):
        label = table.metric(column.metric).label
        name = shorten(column.name)
        lines = (label,) if column.name == table.metric(column.metric).title else (name, label)
        found.append(Score(table, column, lines, is_headline=index == 0))
    return found


def _order(tables: Sequence[Table]) -> list[str]:
    """Return the encodings from best to worst, by their mean rank over the tables."""
    ranks: dict[str, list[float]] = {}
    for table in tables:
        for index, name in enumerate(table.ranking.order):
            ranks.setdefault(name, []).append(index / len(table.encodings))

    def key(name: str) -> tuple[int, float, str]:
        own = ranks[name]
        return -len(own), sum(own) / len(own), name

    return sorted(ranks, key=key)


def _baseline_names(scores: Sequence[Score]) -> list[str]:
    """Return the names of the rows of baselines: names of one task, or `CHANCE`, `STRONGEST`."""
    tables = [score.table for score in scores]
    if all(table is tables[0] for table in tables):
        return tables[0].ranking.shown_baselines
    names: dict[tuple[str, ...], str] = {}  # by the cells of the row; equal rows are shown once
    for name in (CHANCE, STRONGEST):
        cells = tuple(score.baseline_cell(name).text for score in scores)
        if set(cells) != {ABSENT}:
            names.setdefault(cells, name)
    return list(names.values())


def _show(value: float, digits: int, *, signed: bool = False) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if signed:
        return f"{round(value, digits) + 0.0:+.{digits}f}"  # no -0.0
    return f"{value:.{digits}f}"
