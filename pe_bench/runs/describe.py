"""Descriptions of encodings and tasks for reports, which never import plugins."""

import inspect
from pathlib import Path
from typing import Any

import torch

from pe_bench.decoder.layer import AttentionLayer
from pe_bench.errors import CRASHES, as_exception
from pe_bench.registry import catalogue
from pe_bench.registry.attributes import STYLE
from pe_bench.registry.plugins import Plugin
from pe_bench.runs.resolve import ResolvedTask

FACTS = ("prefix_consistent", "shift_invariant", "max_position")
LENGTH = 8  # tokens of the input with which available backends are determined


def describe_task(resolved: ResolvedTask) -> dict[str, Any]:
    """Return the first line and the docstring of a task."""
    return _read(type(resolved.task))


def describe_encoding(resolved: ResolvedTask, encoding: Plugin) -> dict[str, Any]:
    """Return first line, docstring, style, declared facts and backends of an encoding.

    The state of random generators does not change. If the encoding fails here, the result has no
    facts and backends, and the run reports the failure.
    """
    found = _read(encoding.cls)
    own = vars(encoding.cls)
    found["style"] = {name: str(own[name]) for name in STYLE if name in own}
    model = resolved.model
    try:
        with as_exception(), torch.random.fork_rng(devices=[]), torch.no_grad():
            layer = AttentionLayer(model, encoding.make)
            found["facts"] = {name: getattr(layer.encoding, name) for name in FACTS}
            length = min(LENGTH, layer.encoding.max_position or LENGTH)
            tokens = torch.zeros(1, length, dtype=torch.long)  # (B, T)
            x = torch.zeros(1, length, model.width)  # (B, T, C)
            found["runs_on"] = layer.backends(x, tokens=tokens)
    except CRASHES:
        pass
    return found


def _read(cls: type[Any]) -> dict[str, Any]:
    file = inspect.getsourcefile(cls)
    summary = catalogue.describe_file(Path(file)) if file else ""
    return {"summary": summary, "text": inspect.cleandoc(vars(cls).get("__doc__") or "")}
