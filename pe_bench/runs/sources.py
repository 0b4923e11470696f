"""Paths of the user's plugins and data in a run."""

import inspect
from pathlib import Path
from typing import Any

from pe_bench.errors import PACKAGE, PLUGINS
from pe_bench.registry.plugins import Plugin
from pe_bench.results.labels import plugin_name
from pe_bench.runs.initial_weights import Adapted, Pretrained
from pe_bench.runs.resolve import ResolvedTask


def find_user_paths(task: ResolvedTask, encoding: Plugin) -> dict[str, Any]:
    """Return the paths of the user's plugins, data and checkpoint, for the record of a run.

    Returns:
        "encoding" and "task": file or folder of the user's plugin; "data": folders by name of a
        task, "" for the run's own task; "tokenizer": spec of the tokenizer; "checkpoint": the
        folder that the model starts from.
    """
    text = task.start or task
    found: dict[str, Any] = {"tokenizer": text.task.context.tokenizer}
    file = Path(inspect.getsourcefile(type(task.task)) or "")
    for kind, path in (("encoding", encoding.file), ("task", file)):
        if not any(path.is_relative_to(PACKAGE / folder) for folder in PLUGINS):
            found[kind] = str(path.parent if path.name == f"{kind}.py" else path)
    data = {"": task.task.context.data}
    if task.start is not None:
        data[plugin_name(task.start.label)] = task.start.task.context.data
    given = {name: str(folder.resolve()) for name, folder in data.items() if folder}
    if given:
        found["data"] = given
    if isinstance(encoding, Adapted) and isinstance(encoding.origin, Pretrained):
        found["checkpoint"] = str(encoding.origin.checkpoint.folder.resolve())
    return found
