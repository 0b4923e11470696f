"""The summaries over tasks."""

import math
from collections.abc import Sequence

from pe_bench.reporting.markdown import ABSENT
from pe_bench.reporting.page.bars import interval_bar, scale_of
from pe_bench.reporting.page.model import Row, SummarySection, TableSection
from pe_bench.reporting.tables import Table
from pe_bench.reporting.task_summary import (
    STANDING_HEADER,
    TaskSummary,
    correlation_rows,
    describe_correlations,
    describe_notes,
    describe_unscaled,
    find_limits,
    has_model_scores,
    shared_settings,
    standing_cells,
)


def list_summaries(
    sections: Sequence[TableSection], summaries: Sequence[TaskSummary]
) -> list[SummarySection]:
    """Return a section for all tables that share settings, with means if `summaries` has them."""
    groups: dict[tuple[str, ...], list[TableSection]] = {}
    for section in sections:
        if has_model_scores(section.table):
            groups.setdefault(shared_settings(section.table), []).append(section)
    by_settings = {shared_settings(summary.tables[0]): summary for summary in summaries}
    found = []
    for settings, own in groups.items():
        if len(own) == 1:  # the table itself is enough
            continue
        preset = own[0].table.about.preset
        title = " · ".join(settings)
        found.append(_summary_section(title, preset, own, by_settings.get(settings)))
    return found


def _summary_section(
    title: str, preset: str, sections: list[TableSection], summary: TaskSummary | None
) -> SummarySection:
    header = ["encoding"]
    standings: dict[str, Row] = {}
    correlations: list[list[str]] = []
    about = ""
    if summary is not None and summary.is_enough:
        header += [*STANDING_HEADER, "letters"]
        standings = _standing_part(summary)
        correlations = [["", *(table.about.task for table in summary.tables)]]
        correlations += correlation_rows(summary)
        about = describe_correlations(summary)
    first = len(header) - 1
    header += [_task_heading(section.table) for section in sections]
    sources: list[str | None] = [None] * first
    sources += [f"{section.id}:0" for section in sections]
    tasks = _task_part(sections)
    rows = []
    for name in dict.fromkeys([*standings, *tasks]):
        means = standings.get(name, Row(name, [ABSENT] * first))
        scores = tasks[name]
        shares = {first + index: share for index, share in scores.shares.items()}
        cells = [*means.cells, *scores.cells]
        rows.append(Row(name, cells, means.bars, shares, scores.learned))
    notes = describe_notes(summary) if summary else describe_unscaled([s.table for s in sections])
    return SummarySection(title, preset, notes, header, rows, sources, first, correlations, about)


def _standing_part(summary: TaskSummary) -> dict[str, Row]:
    """Return the means over tasks of each encoding, the best first."""
    ends = [[one.score.low, one.score.high] for one in summary.standings]
    scores = scale_of([*ends, [0.0, 1.0]], percent=False)
    ends = [[one.rank.low, one.rank.high] for one in summary.standings]
    ranks = scale_of(ends, percent=False)
    rows = {}
    for one in summary.standings:
        cells = standing_cells(one, summary.letters[one.encoding])[1:]
        bars = {
            1: interval_bar(scores, one.score.value, one.score.low, one.score.high, 0.0),
            3: interval_bar(ranks, one.rank.value, one.rank.low, one.rank.high),
        }
        known = {index: bar for index, bar in bars.items() if bar}
        rows[one.encoding] = Row(one.encoding, cells, known)
    return rows


def _task_part(sections: Sequence[TableSection]) -> dict[str, Row]:
    """Return the headlines of each encoding."""
    columns = [_headline_cells(section) for section in sections]
    names = dict.fromkeys(name for section in sections for name in section.table.ranking.order)
    rows = {}
    for name in names:
        cells = []
        shares = {}
        for index, column in enumerate(columns):
            text, share = column.get(name, (ABSENT, None))
            cells.append(text)
            if share is not None:
                shares[index] = share
        learned = any(s.table.learned(name) > 0 for s in sections if name in s.table.encodings)
        rows[name] = Row(name, cells, {}, shares, learned)
    return rows


def _task_heading(table: Table) -> str:
    """Return the task, what distinguishes the table, and unit and direction of its headline."""
    heading = f"{table.about.task} ({table.ranking.metric.label})"
    return f"{heading} · {table.distinction}" if table.differences else heading


def _headline_cells(section: TableSection) -> dict[str, tuple[str, float | None]]:
    """Return each encoding's headline as text, and its position from floor (0) to ceiling (1)."""
    table = section.table
    column = section.numbers[0]
    floor, ceiling = find_limits(table) if table.ranking.names else (0.0, 1.0)
    found = {}
    for encoding, number in column.of.items():
        share = (number["mean"] - floor) / (ceiling - floor)
        position = None if math.isnan(share) else min(1.0, max(0.0, share))
        found[encoding] = (column.show(number["mean"]), position)
    return found
