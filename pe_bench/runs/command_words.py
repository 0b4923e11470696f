"""The options of a run as words of a command, for its record."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pe_bench.option_table import option_words
from pe_bench.results.labels import plugin_name
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.runs.tuning import Tuning
from pe_bench.text.tokenizer import Tokenizer


def command_words(options: RunOptions, task: ResolvedTask, *, is_searched: bool) -> tuple[str, ...]:
    """Return the options that change a task's runs, as words of `pe-bench run`.

    The words leave out encoding, task, seed, preset, protocol, precision, and the encoding or
    checkpoint that models start from, since other fields of a record contain them. They also leave
    out options that have no effect on the task. Since paths are valid on one machine only, DIR
    stands for a folder with data and FILE for a tokenizer.

    Args:
        options: options of the command.
        task: the task, made with these options.
        is_searched: whether the first or further training has a search for learning rates.
    """
    words: list[str] = []
    if options.subsets:
        words += ["--subsets", *options.subsets]
    if options.tokenizer and isinstance((task.start or task).task.vocabulary, Tokenizer):
        words += ["--tokenizer", "FILE" if Path(options.tokenizer).exists() else options.tokenizer]
    folders = list(_data_folders(options, task))
    if folders:
        words += ["--data", *folders]
    if options.tune and is_searched:
        words.append("--tune")
        words += option_words("tune", {"lr": options.tune.lr} if options.tune.lr else {})
        if options.tune.seeds != Tuning().seeds:
            words += option_words("tune", {"seeds": options.tune.seeds})
    words += option_words("train", _changes(options.train, task))
    if task.start:
        words += option_words("pretrain", _changes(options.pretrain, task.start))
    words += option_words("model", options.model)
    words += option_words("adapt", options.adapt)
    return tuple(words)


def _changes(given: Mapping[str, Any], task: ResolvedTask) -> dict[str, Any]:
    """Return changed values of a training phase; only the length if the phase has no steps."""
    context = task.task.context
    preset = task.task.preset(context.preset, context.data).train
    changes = {name: value for name, value in given.items() if value != getattr(preset, name)}
    if preset.steps:
        return changes
    return {name: value for name, value in changes.items() if name == "length"}


def _data_folders(options: RunOptions, task: ResolvedTask) -> Iterator[str]:
    """Yield a placeholder for each folder with data that the task or its start uses."""
    names = {plugin_name(one.label) for one in (task, task.start) if one}
    for name in options.data:
        if not name:
            yield "DIR"
        elif name in names:
            yield f"{name}=DIR"
