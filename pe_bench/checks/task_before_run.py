"""A test of a user's task before anything is trained, for faults that a run would not notice."""

from pe_bench.checks import tasks
from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.names import find_undefined
from pe_bench.checks.other_process import processes
from pe_bench.checks.task_subject import TaskSubject
from pe_bench.errors import CRASHES, DataError, InputError, as_exception
from pe_bench.registry.plugins import Plugin
from pe_bench.registry.versions import is_shipped
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
    processes,  # takes seconds
)
"""The checks that decide whether results would be right, in this order."""


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
    subject = TaskSubject(plugin, context)
    try:
        with as_exception():
            return _find_fault(subject)
    except DataError:
        return None
    except InputError as error:
        return str(error)
    except CRASHES as error:
        return find_undefined(error, plugin.cls)


def _find_fault(subject: TaskSubject) -> str | None:
    for check in CHECKS:
        try:
            fault = check(subject)
        except NotApplicable:
            continue
        if fault:
            return f"{fault}; see pe-bench check"
    return None
