"""The families of tasks, and the main set, see docs/tasks.md."""

import csv
from collections.abc import Iterable
from pathlib import Path

from pe_bench.reporting.tables import Table


def _read() -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Return the family of each listed task, and the tasks of the main set in each family."""
    families: dict[str, str] = {}
    main: dict[str, tuple[str, ...]] = {}
    with (Path(__file__).parent / "families.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            families[row["task"]] = row["family"]
            if row["main"] == "yes":
                main[row["family"]] = (*main.get(row["family"], ()), row["task"])
    return families, main


FAMILIES, MAIN_SET = _read()
"""The family of each task, and the tasks of the main set by family, from families.csv."""


def family_of_task(task: str) -> str:
    """Return the family of a task. A task that families.csv lacks is its own family.

    Args:
        task: name of the task, without options.
    """
    return FAMILIES.get(task, task)


def in_main_set(tables: Iterable[Table]) -> list[Table]:
    """Return the tables of the tasks of the main set."""
    chosen = {task for tasks in MAIN_SET.values() for task in tasks}
    return [table for table in tables if table.task_name in chosen]
