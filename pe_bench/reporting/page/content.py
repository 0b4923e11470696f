"""Build the content of the page from tables, comparisons and records."""

from collections.abc import Sequence

from pe_bench.reporting import paired, published
from pe_bench.reporting.columns import NumberColumn
from pe_bench.reporting.notes import write_notes
from pe_bench.reporting.page import prose
from pe_bench.reporting.page.bars import interval_bar, scale_of
from pe_bench.reporting.page.cards import list_encodings
from pe_bench.reporting.page.descriptions import describe_labels
from pe_bench.reporting.page.model import Content, Row, TableSection, TaskSection
from pe_bench.reporting.page.summaries import list_summaries
from pe_bench.reporting.paired import Comparison
from pe_bench.reporting.ranked_table import RankedRow, rank_table
from pe_bench.reporting.report_data import ReportData
from pe_bench.reporting.styles import is_own
from pe_bench.reporting.tables import Table


def gather(data: ReportData) -> Content:
    """Return the content of the page."""
    pairs = enumerate(zip(data.tables, data.comparisons, strict=True))
    sections = [_table_section(f"table-{n}", table, found) for n, (table, found) in pairs]
    done = [record for table in data.tables for record in table.records]
    said = describe_labels("task", done)
    tasks = []
    by_own = sorted(data.tables, key=lambda table: not any(map(is_own, table.encodings)))
    for name in dict.fromkeys(table.task_name for table in by_own):
        own = [section for section in sections if section.table.task_name == name]
        about = said.get(own[0].table.about.task, {})
        tasks.append(
            TaskSection(
                f"task-{prose.anchor_of(name)}",
                name,
                prose.inline(about.get("summary", "")),
                prose.render(about.get("text", "")),
                about.get("note", ""),
                own,
                published.sources(name),
            )
        )
    unfinished = [record for record in data.records if record.status != "done"]
    encodings = list_encodings(sections, data.summaries, done)
    return Content(
        list_summaries(sections, data.summaries),
        tasks,
        encodings,
        unfinished,
        tuple(data.answers),
        tuple(data.ladders),
    )


def _table_section(id: str, table: Table, comparison: Comparison) -> TableSection:
    ranked = rank_table(table, comparison)
    columns: list[int | None] = []
    numbers: list[NumberColumn] = []
    for column in ranked.columns:
        columns.append(None if column.numbers is None else len(numbers))
        if column.numbers is not None:
            numbers.append(column.numbers)
    headline = columns.index(0)
    differences = paired.difference_rows(table, comparison)
    has_intervals = any(difference.has_interval for difference in comparison.pairs)
    return TableSection(
        id,
        table,
        comparison,
        ranked.header,
        _ranked_rows(table, ranked.rows, numbers[0], headline),
        columns,
        headline + 1,
        numbers,
        write_notes(table).splitlines(),
        _difference_rows(comparison, differences[1:]),
        differences[0] if differences else [],
        paired.describe_basis(comparison) if has_intervals else [],
    )


def _ranked_rows(
    table: Table, ranked: Sequence[RankedRow], column: NumberColumn, index: int
) -> list[Row]:
    """Return the rows of a ranked table, with an interval for the headline.

    Args:
        table: the table.
        ranked: its rows.
        column: the headline.
        index: index of the headline among the cells after the label.
    """
    intervals = {
        name: (number["mean"], number["ci_low"], number["ci_high"])
        for name, number in column.of.items()
    }
    baseline = table.ranking.best_baseline
    shown = [*intervals.values(), [] if baseline is None else [baseline]]
    scale = scale_of(shown, percent=column.percent)
    rows = []
    for row in ranked:
        bar = None
        if not row.is_baseline and row.label in intervals:
            bar = interval_bar(scale, *intervals[row.label], baseline=baseline)
        bars = {index: bar} if bar else {}
        learned = row.is_baseline or not table.is_gated or table.learned(row.label) > 0
        rows.append(Row(row.label, row.cells, bars, {}, learned, row.is_below, row.is_baseline))
    return rows


def _difference_rows(comparison: Comparison, cells: Sequence[Sequence[str]]) -> list[Row]:
    """Return the rows of the comparison with the reference, each with its interval."""
    ends = [end for one in comparison.to_reference for end in (one.low, one.high)]
    scale = scale_of([ends, [0.0]], percent=False)
    rows = []
    for difference, row in zip(comparison.to_reference, cells, strict=False):
        bar = interval_bar(scale, difference.value, difference.low, difference.high, 0.0)
        rows.append(Row(row[0], list(row[1:]), {1: bar} if bar else {}))
    return rows
