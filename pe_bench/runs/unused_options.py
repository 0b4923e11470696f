"""Check for options that have no effect on any task of a command."""

from collections.abc import Sequence

from pe_bench.errors import InputError
from pe_bench.results.labels import plugin_name
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import ResolvedTask, without_effect
from pe_bench.task import Preset
from pe_bench.text.tokenizer import Tokenizer


def check_used(options: RunOptions, tasks: Sequence[ResolvedTask]) -> None:
    """Check that every option of the command has an effect on some task.

    Raises:
        InputError: an option has no effect.
    """
    starts = [task.start for task in tasks if task.start]
    everything = (*tasks, *starts)
    labels = ", ".join(task.label for task in tasks)
    if options.pretrain and not any(_starts_from_another(task) for task in tasks):
        raise InputError("--pretrain.* has no effect: none of the tasks starts from another one")
    if options.tune and not any(task.tuning for task in tasks):
        raise InputError(f"--tune has no effect: {labels} trains nothing")
    if options.keep and not (options.origin or any(task.train.steps for task in tasks)):
        raise InputError(f"--keep has no effect: {labels} trains nothing")
    unused = without_effect(options.train)
    if unused and not any(_preset_of(task).train.steps for task in tasks):
        raise InputError(f"--train.{unused[0]} has no effect: {labels} trains nothing")
    reads_text = any(isinstance(task.task.vocabulary, Tokenizer) for task in everything)
    if options.tokenizer is not None and not reads_text:
        raise InputError(f"--tokenizer has no effect: {labels} reads no text")
    names = dict.fromkeys(plugin_name(task.label) for task in everything)
    for name in options.data:
        if name and name not in names:
            raise InputError(f"--data {name}=... has no effect: the tasks are {', '.join(names)}")


def _starts_from_another(resolved: ResolvedTask) -> bool:
    """Return whether a task starts from another one; one that is adapted starts from itself."""
    if resolved.is_adapted and resolved.start:
        resolved = resolved.start
    return resolved.start is not None


def _preset_of(task: ResolvedTask) -> Preset:
    context = task.task.context
    return task.task.preset(context.preset, context.data)
