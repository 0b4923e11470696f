"""Checks of what a task declares, before anything is trained."""

import json
from collections.abc import Mapping
from typing import Any

from pe_bench.errors import InputError
from pe_bench.results.metrics import find_metric
from pe_bench.results.record import RunRecord
from pe_bench.system.files import slug
from pe_bench.system.schema import WrongError
from pe_bench.system.sealed import plain_number
from pe_bench.task import Task


def check_declared(task: Task, label: str) -> None:
    """Check the subsets, the headline and all else of a task that records of its runs contain.

    Raises:
        InputError: two subsets would share files, the headline has no direction, runs on other
            data would have the same settings, or a record with a declared value could not be read.
    """
    _check_subsets(task)
    check_axes(task.axes)
    without_data = f"{task.name}-v{task.version}"
    if task.context.data is not None and task.fingerprint.partition("+")[0] == without_data:
        raise InputError(
            f"{label} does not override `fingerprint`, so runs on other data would count as the "
            "same runs: return a digest of the files that it reads from --data"
        )
    metric = find_metric(task.headline.metric, task.metrics)
    if metric.higher_is_better is None:
        raise InputError(
            f"the task is ranked by {task.headline.metric}, for which it is unknown whether higher "
            "is better: add it to `metrics`"
        )
    record = RunRecord(
        status="done",
        task=label,
        encoding="any",
        seed=0,
        preset=task.context.preset,
        protocol=task.context.protocol,
        data={"label": task.data_label},
        settings_digest="0",
        encoding_version="0",
        **declared_fields(task),
    )
    try:
        RunRecord.from_json(json.loads(json.dumps(record.to_json(), default=plain_number)))
    except WrongError as error:
        raise InputError(f"no record could be made of the task's runs: {error}") from None


def check_axes(axes: Mapping[str, str]) -> None:
    """Check the titles of the axes of a task, before its constructor uses them.

    Raises:
        InputError: a title is missing, or is not of an axis.
    """
    if set(axes) != set(Task.axes):
        raise InputError(
            f"the task has axes = {dict(axes)}, which must give a title to 'length' and 'second', "
            f"as in {dict(Task.axes)}"
        )


def declared_fields(task: Task) -> dict[str, Any]:
    """Return the fields of a run's record that a task declares."""
    return {
        "headline": task.headline,
        "views": task.views,
        "metrics": dict(task.metrics),
        "axes": dict(task.axes),
        "measures_time": task.measures_time,
        "gate": task.gate,
        "max_train_axis": task.max_train_axis,
        "unavailable": dict(task.unavailable),
    }


def _check_subsets(task: Task) -> None:
    """Check that the files of subsets have different names, also where case does not count."""
    files: dict[str, str] = {}
    for subset in task.all_subsets:
        if not isinstance(subset, str) or not subset:
            raise InputError(f"the task has the subset {subset!r}: a subset needs a name")
        other = files.setdefault(slug(subset).lower(), subset)
        if other != subset:
            raise InputError(
                f"the files of the subsets '{other}' and '{subset}' would have the same name: "
                "rename one"
            )
    if len(files) < len(task.all_subsets):
        raise InputError(f"the task names a subset twice: {', '.join(task.all_subsets)}")
    if not files:
        raise InputError("the task has no subsets: `all_subsets` needs at least one name")
