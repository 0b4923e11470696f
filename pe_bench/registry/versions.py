"""Versions of the code of plugins, which determine whether numbers may be used again."""

import inspect
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from pe_bench.errors import PACKAGE, PLUGINS
from pe_bench.registry import catalogue, importing
from pe_bench.registry.fingerprint import find_sources, fingerprint
from pe_bench.registry.importing import Kind, is_path
from pe_bench.registry.options import NestedSpec


def version_of(
    cls: type[Any],
    kind: Kind,
    where: str,
    options: Mapping[str, Any],
    paths: Container[str],
) -> str:
    """Return the version of a plugin's code, and of the files that its options name.

    Args:
        cls, kind, where: the plugin.
        options: all options with their values.
        paths: names of the options that may name files.
    """
    classes = dict.fromkeys(_ancestors(kind, cls))
    sources = find_sources([file_of(c) for c in classes if is_plugin(c)], PACKAGE)
    for folder, name in sources.shipped:
        other: Kind = "encoding" if folder == "encodings" else "task"
        imported = importing.plugin_class(other, catalogue.import_plugin(other, name), name)
        classes |= dict.fromkeys(_ancestors(other, imported))
    # A sum instead of a list: splitting or joining code does not change its version.
    number = 1 + sum(vars(c).get("version", 1) - 1 for c in classes)
    own = sources.own
    parts = []
    for name, value in options.items():
        if isinstance(value, NestedSpec) or name not in paths:
            continue  # `load` adds the versions of encodings; a task is part of the settings
        if isinstance(value, str | Path) and len(str(value)) < 256 and Path(value).is_file():
            parts.append(importing.digest_of(Path(value)))
    if is_path(where) and Path(where).is_dir():
        inner = importing.files_of(Path(where).resolve())
        own += [path for path in inner if path.suffix == ".py" and path not in own]
        parts += [importing.digest_of(path) for path in inner if path.suffix != ".py"]
    return f"{number}-{fingerprint(own, parts)}" if own or parts else str(number)


def _ancestors(kind: Kind, cls: type[Any]) -> list[type[Any]]:
    """Return a class and its ancestors below the interface."""
    base = importing.interface(kind)
    return [c for c in cls.__mro__ if issubclass(c, base) and c.__module__ != base.__module__]


def is_shipped(cls: type[Any]) -> bool:
    """Return whether a class belongs to a plugin of this package."""
    parts = cls.__module__.split(".")
    return parts[0] == "pe_bench" and parts[1] in PLUGINS


def is_plugin(cls: type[Any]) -> bool:
    """Return whether a class belongs to a plugin, not to the engine."""
    parts = cls.__module__.split(".")
    return parts[0] != "pe_bench" or parts[1] in PLUGINS


def file_of(cls: type[Any]) -> Path:
    """Return the file of a class."""
    return Path(inspect.getsourcefile(cls) or "")
