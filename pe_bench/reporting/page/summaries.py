"""The summaries over tasks."""

import math
from collections.abc import Sequence

from pe_bench.reporting.markdown import ABSENT
from pe_bench.reporting.page.bars import Bar, interval_bar, scale_of
from pe_bench.reporting.page.model import Row, SummarySection, TableSection
from pe_bench.reporting.tables import Table
from pe_bench.reporting.task_summary import (
    STANDING_HEADER,
    TaskSummary,
    correlation_rows,
    describe_correlations,
    describe_notes,
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
    standings: dict[str, list[str]] = {}
    bars: dict[str, dict[int, Bar]] = {}
    if summary and summary.is_enough:
        header += [*STANDING_HEADER, "letters"]
        scores = scale_of(
            [[one.score.low, one.score.high] for one in summary.standings] + [[0.0, 1.0]],
            percent=False,
        )
        ranks = scale_of(
            [[one.rank.low, one.rank.high] for one in summary.standings], percent=False
        )
        for one in summary.standings:
            standings[one.encoding] = standing_cells(one, summary.letters[one.encoding])[1:]
            both = {
                1: interval_bar(scores, one.score.value, one.score.low, one.score.high, 0.0),
                3: interval_bar(ranks, one.rank.value, one.rank.low, one.rank.high),
            }
            bars[one.encoding] = {index: bar for index, bar in both.items() if bar}
    first = len(header) - 1
    header += [_task_heading(section.table) for section in sections]
    columns = [_headline_cells(section) for section in sections]
    names = dict.fromkeys(name for section in sections for name in section.table.ranking.order)
    rows = []
    for name in [*standings, *(name for name in names if name not in standings)]:
        cells = standings.get(name, [ABSENT] * first)
        cells = [*cells, *(column[name][0] if name in column else ABSENT for column in columns)]
        shares = {}
        for index, column in enumerate(columns):
            share = column[name][1] if name in column else None
            if share is not None:
                shares[first + index] = share
        learned = any(s.table.learned(name) > 0 for s in sections if name in s.table.encodings)
        rows.append(Row(name, cells, bars.get(name, {}), shares, learned))
    notes = describe_notes(summary) if summary else []
    enough = summary is not None and summary.is_enough
    correlations = [["", *(t.about.task for t in summary.tables)]] if summary and enough else []
    correlations += correlation_rows(summary) if summary and enough else []
    about = describe_correlations(summary) if summary and enough else ""
    sources: list[str | None] = [None] * first
    sources += [f"{section.id}:0" for section in sections]
    return SummarySection(title, preset, notes, header, rows, sources, first, correlations, about)


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
