"""The results of new runs for the terminal, together with earlier results."""

from collections.abc import Iterable
from pathlib import Path

from pe_bench.reporting.notes import describe_marks, describe_missing, describe_unfinished
from pe_bench.reporting.paired import compare_table
from pe_bench.reporting.ranked_table import rank_briefly, rank_table, show_plain
from pe_bench.reporting.tables import Table, make_tables
from pe_bench.reporting.terminal import wrap
from pe_bench.reporting.tuning_notes import describe_tuning, describe_worse
from pe_bench.results.identity import digest_settings
from pe_bench.results.record import RunRecord
from pe_bench.results.store import read_record

UNLIMITED = 10_000  # characters per line
TUNED = (
    "Measured before with the same settings, but with a learning rate tuned for each encoding. "
    "These runs are shown for comparison and not ranked together."
)


def summarize(
    folders: Iterable[Path], earlier: Iterable[RunRecord] = (), *, wide: bool = False
) -> str:
    """Return the ranked tables of the runs in some folders, for the terminal.

    Args:
        folders: folders of the runs.
        earlier: other runs. They are shown in the same table as new runs with equal settings,
            and in a table below if the settings differ only in tuned learning rates.
        wide: whether to show all columns regardless of the terminal's width.
    """
    records = [read_record(folder) for folder in sorted(set(folders))]
    given = {record.folder for record in records}
    ran = {record.encoding for record in records}
    beside = [one for one in earlier if one.status == "done" and one.folder not in given]
    settings = {record.settings_digest for record in records}
    parts = []
    tables = make_tables([*records, *beside])
    for table in tables:
        if table.about.settings_digest not in settings:
            continue
        comparison = compare_table(table)
        if wide:
            shown = show_plain(rank_table(table, comparison), UNLIMITED)
        else:
            shown = show_plain(rank_briefly(table, comparison))
        marks = describe_marks(table, comparison, wide=wide)
        others = [name for name in table.encodings if name not in ran]
        if others:
            marks += f" Measured before: {', '.join(others)}."
        if (table.about.settings or {}).get("tune"):
            marks += " " + " ".join([*describe_tuning(table), *describe_worse(table)])
        if not table.about.measures_time:  # its many notes are in the report
            marks = " ".join([marks, *describe_missing(table)])
        parts += [wrap(table.heading), shown, wrap(marks)]
        for other in tables:
            if other.about.settings_digest not in settings and _differ_in_tuning(table, other):
                parts += [wrap(TUNED), show_plain(rank_briefly(other, compare_table(other)))]
    unfinished = describe_unfinished(records)
    if unfinished:
        parts.append("\n".join(["Not in a table:", "", *(f"- {line}" for line in unfinished)]))
    return "\n\n".join(filter(None, parts))


def _differ_in_tuning(table: Table, other: Table) -> bool:
    """Return whether only the other table has tuned learning rates and all else is equal."""
    own, others = dict(table.about.settings), dict(other.about.settings)
    if own.pop("tune", None) or not others.pop("tune", None):
        return False
    alike = own.keys() == others.keys() and own.get("task") == others.get("task")
    return alike and digest_settings(own) == digest_settings(others)
