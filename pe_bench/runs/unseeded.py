"""A test of a user's task before each run, for random numbers that no seed determines."""

from pe_bench.batch import Batch
from pe_bench.registry.versions import is_shipped
from pe_bench.sequences.length_generalization import LengthGeneralizationTask
from pe_bench.task import Task

REMEDY = "take every random number of a row from the generator that `sample` gets"


def find_unseeded(task: Task) -> str | None:
    """Return a sentence on batches or items that differ between two calls, or None.

    Encodings would be compared on different items, and no run could be repeated. Only a user's
    `LengthGeneralizationTask` is tested, on one batch of each phase and the shortest point of each
    subset; `pe-bench check` tests every task in more detail.
    """
    if is_shipped(type(task)) or not isinstance(task, LengthGeneralizationTask):
        return None
    for phase in task.subsets if task.trains_each_subset else (None,):
        if _differ(task.batch(phase, 0, 0), task.batch(phase, 0, 0)):
            return f"the task makes other training batches in each call: {REMEDY}"
    for subset in task.subsets:
        shortest = min(task.eval_points(subset), key=lambda point: point.length)
        first, second = (task.items(subset, shortest).batch() for _ in range(2))
        if _differ(first, second):
            return f"the task makes other items in each call: {REMEDY}"
    return None


def _differ(one: Batch, other: Batch) -> bool:
    for first, second in zip(one, other, strict=True):
        if first.shape != second.shape or bool((first != second).any()):
            return True
    return False
