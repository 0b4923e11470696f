"""Tables of some tasks with some encodings, for tables and figures of papers."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from pe_bench.errors import InputError, suggest
from pe_bench.reporting.tables import Table
from pe_bench.reporting.task_summary import has_model_scores
from pe_bench.results.labels import ARROW


def select_tables(
    tables: Sequence[Table],
    tasks: Sequence[str] | None = None,
    encodings: Sequence[str] | None = None,
) -> list[Table]:
    """Return the tables of some tasks, with the rows of some encodings only.

    Args:
        tables: all tables.
        tasks: names of tasks; None: all tables of quality, or if there are none, all tables.
        encodings: encodings as in `find_labels`; None: all.

    Raises:
        InputError: a task or an encoding has no results.
    """
    chosen = list(filter(has_model_scores, tables)) or list(tables)
    if tasks:
        chosen = tables_of_tasks(tables, tasks)
    if not encodings:
        return chosen
    known = list(dict.fromkeys(name for table in chosen for name in table.encodings))
    wanted = find_labels(encodings, known)
    restricted = [restrict(table, wanted) for table in chosen]
    found = [table for table in restricted if table is not None]
    for task in tasks or ():
        if not tables_of_tasks(found, [task], checked=False):
            raise InputError(f"there are no results of {', '.join(wanted)} on {task}")
    return found


def tables_of_tasks(
    tables: Sequence[Table], tasks: Sequence[str], *, checked: bool = True
) -> list[Table]:
    """Return the tables of some tasks.

    Args:
        tables: all tables.
        tasks: names of tasks, with or without options.
        checked: whether an unknown task is an error.

    Raises:
        InputError: there are no results of a given task.
    """
    names: set[str] = set()
    for table in tables:
        names |= {table.task_name, table.about.task}
    known = sorted(names)
    for task in tasks:
        if checked and task not in known:
            raise InputError(
                f"there are no results of a task '{task}'{suggest(task, known)}: there are "
                f"{', '.join(known)}"
            )
    return [table for table in tables if {table.task_name, table.about.task} & set(tasks)]


def find_labels(wanted: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return the labels that the user means, in the order of the user.

    Args:
        wanted: labels as in tables. The path of an encoding's file stands for its label, and the
            spec of an encoding also for models that were adapted to it.
        labels: all labels.

    Raises:
        InputError: an encoding has no results.
    """
    found: dict[str, None] = {}
    for name in wanted:
        spec = _label_of(name, labels)
        same = [spec] if spec in labels else []
        same = same or [label for label in labels if ARROW in label and _measured(label) == spec]
        if not same:
            raise InputError(
                f"there are no results of '{name}'{suggest(spec, list(labels))}: there are "
                f"{', '.join(labels) or 'no finished runs'}"
            )
        found |= dict.fromkeys(same)
    return list(found)


def restrict(table: Table, labels: Sequence[str]) -> Table | None:
    """Return a table with the runs of some encodings only; None if there are none.

    Baselines and headings remain.
    """
    records = tuple(record for record in table.records if record.encoding in labels)
    if not records:
        return None
    rows = table.rows[table.rows["encoding"].isin(labels)]
    means = table.means[table.means["baseline"] | table.means["encoding"].isin(labels)]
    return replace(table, records=records, rows=rows, means=means)


def labels_of(specs: Sequence[str], tables: Sequence[Table]) -> list[str]:
    """Return the labels of encodings, given as labels or as specs with the path of a file."""
    labels = {name for table in tables for name in table.encodings}
    return [_label_of(spec, labels) for spec in specs]


def _label_of(spec: str, labels: Collection[str]) -> str:
    """Return the label of an encoding: a spec without the folder of its file.

    Args:
        spec: a label as in tables, or the spec of an encoding.
        labels: all labels.
    """
    where, colon, options = spec.partition(":")
    return spec if spec in labels else f"{Path(where).name}{colon}{options}"


def _measured(label: str) -> str:
    """Return the spec of the encoding that a source model was adapted to."""
    return label.rpartition(ARROW)[2].partition(" [")[0]
