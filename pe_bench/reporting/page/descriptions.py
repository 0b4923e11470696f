"""Descriptions of encodings and tasks: from the records of their runs, else from their source."""

import ast
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from pe_bench.registry import catalogue
from pe_bench.registry.importing import Kind
from pe_bench.results.labels import split_label
from pe_bench.results.record import RunRecord


def describe_labels(kind: Kind, records: Iterable[RunRecord]) -> dict[str, Mapping[str, Any]]:
    """Return the description of each encoding or task, by label.

    Returns:
        "summary", a line, and "text", a docstring; "note", if they are not from the runs; for an
        encoding also "facts" and "runs_on", if its runs recorded them. Unknown entries are absent.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for record in sorted(records, key=lambda one: one.age):
        label = record.encoding if kind == "encoding" else record.task
        found[label] = record.described.get(kind) or found.get(label) or {}
    return {label: said or describe_source(kind, label) for label, said in found.items()}


def describe_source(kind: Kind, label: str) -> dict[str, str]:
    """Return the docstrings of a shipped plugin, without importing it.

    Args:
        kind: kind of the plugin.
        label: spec of the plugin. The result is empty if it is not shipped.
    """
    name, _ = split_label(label)
    if name not in catalogue.names(kind):
        return {}
    path = catalogue.path_of(kind, name)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.bases]
    public = [node for node in classes if not node.name.startswith("_")]
    text = ast.get_docstring(public[-1]) if public else None
    return {
        "summary": catalogue.describe_file(path),
        "text": inspect.cleandoc(text or ""),
        "note": "From the present source: records of these runs do not contain this text.",
    }
