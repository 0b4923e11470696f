"""The ranked table: encodings by columns, the best first, then baselines."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pe_bench.reporting.columns import (
    NumberColumn,
    count_learned,
    list_columns,
    show_learned,
    show_learned_mean,
    show_number,
    show_rank,
)
from pe_bench.reporting.markdown import ABSENT, Markdown, escape, markdown_table
from pe_bench.reporting.notes import BELOW
from pe_bench.reporting.paired import Comparison
from pe_bench.reporting.run_costs import mean_costs, training_loss
from pe_bench.reporting.tables import Table
from pe_bench.reporting.terminal import WIDTH, plain_table
from pe_bench.reporting.tuning_notes import WORSE, find_worse

LEARNED = "seeds that learned"
COSTS = {"seconds": ("seconds", 1), "peak_memory_bytes": ("MiB", 2**20)}  # heading, unit


@dataclass(frozen=True)
class RankedColumn:
    """A column of a ranked table.

    Attributes:
        heading: its heading.
        show: returns the cell of an encoding.
        numbers: the scores in the cells; None: the cells are not scores, and empty for baselines.
    """

    heading: str
    show: Callable[[str], str]
    numbers: NumberColumn | None = None

    def show_baseline(self, name: str) -> str:
        """Return the cell of a baseline."""
        if self.numbers is None or name not in self.numbers.baselines:
            return ABSENT
        return self.numbers.show(self.numbers.baselines[name])


@dataclass(frozen=True)
class RankedRow:
    """A row of a ranked table.

    Attributes:
        label: encoding or baseline.
        cells: a text for each column.
        is_baseline: whether it is a baseline.
        is_below: whether it is an encoding that does not beat every baseline.
    """

    label: str
    cells: list[str]
    is_baseline: bool = False
    is_below: bool = False


@dataclass(frozen=True)
class RankedTable:
    """Encodings and baselines by columns.

    Attributes:
        columns: the columns after the label.
        rows: encodings from best to worst, then baselines.
    """

    columns: list[RankedColumn]
    rows: list[RankedRow]

    @property
    def header(self) -> list[str]:
        """Headings of the label and of all columns."""
        return ["encoding", *(column.heading for column in self.columns)]


def rank_table(table: Table, comparison: Comparison) -> RankedTable:
    """Return all columns: the headline first, then the columns of the task, then costs."""
    headline, *others = list_columns(table)
    columns = _rank_columns(comparison)
    columns.append(_score_column(table, headline))
    if table.is_gated:
        unit = " %" if headline.percent else ""
        mean = f"their mean{unit}, not ranked"
        columns.append(RankedColumn(LEARNED, partial(show_learned, table, headline)))
        columns.append(RankedColumn(mean, partial(show_learned_mean, headline)))
    columns += [_score_column(table, column) for column in others]
    losses = {encoding: training_loss(table, encoding) for encoding in table.encodings}
    if not all(map(math.isnan, losses.values())):
        columns.append(RankedColumn("training loss", partial(_loss, losses, find_worse(table))))
    columns.append(_seeds_column(table))
    columns.append(RankedColumn("parameters", partial(_parameters, table)))
    if not table.about.measures_time:
        costs = {encoding: mean_costs(table, encoding) for encoding in table.encodings}
        for name, (heading, unit_size) in COSTS.items():
            if any(name in own for own in costs.values()):
                columns.append(RankedColumn(heading, partial(_cost, costs, name, unit_size)))
    return _fill(table, columns)


def rank_briefly(table: Table, comparison: Comparison) -> RankedTable:
    """Return the columns for a terminal: rank, headline, differences and seeds."""
    headline, *others = list_columns(table)
    columns = _rank_columns(comparison)
    columns.append(_score_column(table, headline))
    columns += [_score_column(table, column) for column in others if column.signed]
    if table.is_gated:
        columns.append(RankedColumn(LEARNED, partial(count_learned, table, headline)))
    else:
        columns.append(_seeds_column(table))
    return _fill(table, columns)


def show_markdown(ranked: RankedTable, short: Mapping[str, str]) -> str:
    """Return the table in Markdown, with baselines in italics.

    Args:
        ranked: the table.
        short: the short labels of the encodings.
    """
    rows = []
    for row in ranked.rows:
        if row.is_baseline:
            label: str = Markdown(f"*{escape(row.label)}*")
        else:
            label = short[row.label] + _mark(row)
        rows.append([label, *row.cells])
    return markdown_table(ranked.header, rows, "l" + "r" * len(ranked.columns))


def show_plain(ranked: RankedTable, width: int = WIDTH) -> str:
    """Return the table for a terminal.

    Args:
        ranked: the table.
        width: characters per line.
    """
    rows = [[row.label + _mark(row), *row.cells] for row in ranked.rows]
    return plain_table(ranked.header, rows, width)


def _mark(row: RankedRow) -> str:
    return f" {BELOW}" if row.is_below else ""


def _fill(table: Table, columns: list[RankedColumn]) -> RankedTable:
    """Return the table of some columns."""
    below = table.ranking.below_baselines
    rows = []
    for encoding in table.ranking.order:
        cells = [column.show(encoding) for column in columns]
        rows.append(RankedRow(encoding, cells, is_below=encoding in below))
    for name in table.ranking.shown_baselines:
        cells = [column.show_baseline(name) for column in columns]
        rows.append(RankedRow(name, cells, is_baseline=True))
    return RankedTable(columns, rows)


def _rank_columns(comparison: Comparison) -> list[RankedColumn]:
    """Return the column of the ranks; nothing with single seeds."""
    if not any(difference.seeds > 1 for difference in comparison.pairs):
        return []
    return [RankedColumn("rank", partial(show_rank, comparison))]


def _score_column(table: Table, numbers: NumberColumn) -> RankedColumn:
    def show(encoding: str) -> str:
        return show_number(numbers, encoding, table.seeds(encoding))

    return RankedColumn(numbers.heading, show, numbers)


def _seeds_column(table: Table) -> RankedColumn:
    return RankedColumn("seeds", lambda encoding: str(table.seeds(encoding)))


def _loss(losses: Mapping[str, float], worse: Mapping[str, Sequence[int]], encoding: str) -> str:
    """Return the training loss, with the number of runs that ended worse than in the search."""
    loss = losses[encoding]
    count = f" {WORSE}{len(worse[encoding])}" if encoding in worse else ""
    return ABSENT if math.isnan(loss) else f"{loss:.4f}{count}"


def _parameters(table: Table, encoding: str) -> str:
    record = next(record for record in table.records if record.encoding == encoding)
    return ABSENT if record.parameters is None else f"{record.parameters:,}"


def _cost(
    costs: Mapping[str, Mapping[str, float]], name: str, unit_size: float, encoding: str
) -> str:
    found = costs[encoding].get(name)
    return ABSENT if found is None else f"{found / unit_size:,.0f}"
