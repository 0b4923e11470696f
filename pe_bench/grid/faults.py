"""Tests of the tasks and encodings of users before anything is trained."""

from collections.abc import Iterator, Sequence

from pe_bench.checks.before_run import find_refusal
from pe_bench.checks.task_before_run import find_task_fault
from pe_bench.registry.plugins import Plugin
from pe_bench.runs.run import Run
from pe_bench.system.console import info


def find_faults(tasks: Sequence[Plugin], runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Yield the label of each faulty plugin of some runs, with a sentence on its first fault."""
    used = {run.resolved.label: run.resolved.task for run in runs}
    for plugin in tasks:
        if plugin.label in used:
            fault = find_task_fault(plugin, used[plugin.label].context)
            if fault:
                yield plugin.label, fault
    tested: set[tuple[str, str]] = set()
    for run in runs:
        label, task = run.encoding.label, run.resolved.label
        if not run.encoding.uses_files or (label, task) in tested:
            continue
        tested.add((label, task))
        info(f"{label}: testing the encoding on {task} with small models")
        fault = find_refusal(run.encoding, run.resolved.model) or run.find_fault()
        if fault:
            yield label, fault
