"""A test of a user's task before anything is trained, for faults that a run would not notice."""

import math
from collections.abc import Callable

from pe_bench.checks import tasks
from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.names import find_undefined
from pe_bench.checks.other_process import processes
from pe_bench.checks.task_subject import TaskSubject
from pe_bench.errors import CRASHES, DataError, InputError, as_exception
from pe_bench.option_table import is_number
from pe_bench.registry.plugins import Plugin
from pe_bench.registry.versions import is_shipped
from pe_bench.system.console import info
from pe_bench.task import TaskContext

CHECKS = (
    tasks.ids,
    tasks.batch,
    tasks.lengths,
    tasks.items,
    tasks.numbers,
    tasks.headline,
    tasks.summary,
    tasks.scores,
    tasks.resume,
    tasks.baselines,
    processes,  # takes seconds
)
"""The checks that decide whether results would be right, in this order."""

OF_TRAINED = (tasks.numbers, tasks.headline, tasks.summary, tasks.scores)
"""Checks of values that an untrained model may lack, such as a mean over no items."""


def find_task_fault(plugin: Plugin, context: TaskContext) -> str | None:
    """Return a sentence on the first fault of a task, or None.

    The task measures a tiny untrained model, with the items of its `check_options`. Shipped tasks
    are not tested here. A task that crashes, or lacks data, cannot be tested; the run reports why.

    Args:
        plugin: the task.
        context: settings of the run.
    """
    if is_shipped(plugin.cls):
        return None
    info(f"{plugin.label}: testing the task on a tiny untrained model")
    subject = TaskSubject(plugin, context)
    try:
        with as_exception():
            values = [row.value for row in subject.rows]
    except DataError:
        return None
    except InputError as error:
        return str(error)
    except CRASHES as error:
        return find_undefined(error, plugin.cls)
    finite = not any(is_number(value) and not math.isfinite(value) for value in values)
    for check in CHECKS:
        if finite or check not in OF_TRAINED:
            fault = _find_fault(check, subject)
            if fault:
                return fault
    return None


def _find_fault(check: Callable[[TaskSubject], str | None], subject: TaskSubject) -> str | None:
    try:
        with as_exception():
            return check(subject)
    except (NotApplicable, DataError):
        return None
    except InputError as error:
        return str(error)
    except CRASHES as error:
        return find_undefined(error, subject.plugin.cls)
