"""Class attributes of shipped plugins, read from their source without importing them.

Reports need these attributes, but never import torch.
"""

import ast
from functools import cache

from pe_bench.registry.catalogue import path_of
from pe_bench.registry.importing import Kind

STYLE = ("label", "family", "colour", "marker")
"""Attributes of an encoding that say how reports show it."""


@cache
def literal_attributes(kind: Kind, name: str) -> dict[str, object]:
    """Return the attributes of a shipped plugin's class whose values are literals.

    Inherited attributes are not included. If a file defines several public classes, the last value
    of an attribute counts.

    Args:
        kind: "encoding" or "task".
        name: name of a shipped plugin.
    """
    found: dict[str, object] = {}
    for node in _classes(kind, name):
        found |= _literals(node)
    return found


@cache
def class_name(kind: Kind, name: str) -> str:
    """Return the name of a shipped plugin's class: the last public class of its file.

    Args:
        kind: "encoding" or "task".
        name: name of a shipped plugin.
    """
    return _classes(kind, name)[-1].name


def _classes(kind: Kind, name: str) -> list[ast.ClassDef]:
    """Return the public classes in the file of a shipped plugin."""
    tree = ast.parse(path_of(kind, name).read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return [node for node in classes if not node.name.startswith("_")]


def _literals(node: ast.ClassDef) -> dict[str, object]:
    found: dict[str, object] = {}
    for statement in node.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    found[target.id] = statement.value.value
    return found
