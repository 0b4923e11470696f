"""Ranking of all encodings for the terminal: on each task and over tasks."""

from collections.abc import Sequence

from pe_bench.reporting import task_summary
from pe_bench.reporting.notes import ARROWS, DEVIATION, RANKS
from pe_bench.reporting.paired import compare_table
from pe_bench.reporting.ranked_table import rank_briefly, show_plain
from pe_bench.reporting.same_data import describe_other_data
from pe_bench.reporting.tables import Table
from pe_bench.reporting.terminal import WIDTH, plain_table, wrap


def describe_ranks(tables: Sequence[Table]) -> str:
    """Return the ranks of all encodings with their compact letter display.

    Args:
        tables: tables of quality, at least one.
    """
    parts = []
    for table in tables:
        parts += [wrap(table.heading), show_plain(rank_briefly(table, compare_table(table)))]
        parts += map(wrap, describe_other_data(table.records))
    legend = f"{RANKS} among all pairs of their table; –: too few seeds for a test."
    parts.append(wrap(f"{legend} {DEVIATION} {ARROWS}."))
    summaries = task_summary.find_summaries(tables)
    for summary in summaries:
        parts += _describe_summary(summary)
    if not summaries:
        parts.append(wrap(task_summary.too_few(tables)))
    return "\n\n".join(parts)


def _divided(numbers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return tables with the columns of one table, each as wide as the terminal at most."""
    found: list[str] = []
    first = 1  # column of the next table; column 0 has the names
    while first <= len(numbers):
        for last in range(len(numbers), first - 1, -1):
            cells = [[row[0], *row[first : last + 1]] for row in rows]
            table = plain_table(["", *numbers[first - 1 : last]], cells)
            if last == first or max(map(len, table.splitlines())) <= WIDTH:
                break
        found.append(table)
        first = last + 1
    return found


def _describe_summary(summary: task_summary.TaskSummary) -> list[str]:
    if not summary.is_enough:
        return [wrap(summary.title), *map(wrap, task_summary.describe_notes(summary))]
    rows = [
        task_summary.standing_cells(one, summary.letters[one.encoding]) for one in summary.standings
    ]
    means = plain_table(["encoding", *task_summary.STANDING_HEADER, "letters"], rows)
    correlations = [wrap(task_summary.describe_correlations(summary))]
    names = [table.about.task for table in summary.tables]
    cells = task_summary.correlation_rows(summary)
    table = plain_table(["", *names], cells)
    if max(map(len, table.splitlines())) > WIDTH:  # use numbers as headings instead of names
        numbers = [str(number) for number in range(1, len(names) + 1)]
        rows = [
            [f"{n} {name}", *row[1:]] for n, name, row in zip(numbers, names, cells, strict=True)
        ]
        correlations += _divided(numbers, rows)
    else:
        correlations.append(table)
    notes = map(wrap, task_summary.describe_notes(summary))
    return [wrap(summary.title), means, *notes, *correlations]
