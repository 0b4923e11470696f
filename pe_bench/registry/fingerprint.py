"""Identity of a plugin's code: versions of shipped plugins, contents of the user's files."""

import ast
import hashlib
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pe_bench.errors import PLUGINS, is_library


class Sources(NamedTuple):
    """The files that a plugin consists of.

    Attributes:
        own: the user's files, in a fixed order.
        shipped: folder and name of each shipped plugin in the files and their imports.
    """

    own: list[Path]
    shipped: list[tuple[str, str]]


def find_sources(files: Iterable[Path], package: Path) -> Sources:
    """Return the files of a plugin, and of all plugins that they import from.

    Args:
        files: files of the plugin, in a fixed order.
        package: folder with the folders of shipped plugins.
    """
    found = dict.fromkeys(files)
    waiting = list(found)
    while waiting:
        file = waiting.pop()
        # Shipped files do not change while a process runs; the user's files may.
        imported = _imported_once if file.is_relative_to(package) else _imported
        more = [other for other in imported(file, package) if other not in found]
        found |= dict.fromkeys(more)
        waiting += more
    own: list[Path] = []
    shipped: dict[tuple[str, str], None] = {}
    for file in found:
        inner = file.relative_to(package).parts if file.is_relative_to(package) else ()
        if len(inner) > 1 and inner[0] in PLUGINS:
            shipped[inner[0], Path(inner[1]).stem.replace("_", "-")] = None
        else:
            own.append(file)
    return Sources(own, list(shipped))


def fingerprint(files: Iterable[Path], parts: Iterable[str]) -> str:
    """Return a digest of Python files and of other parts, with 12 digits.

    Comments, docstrings and layout do not change the digest.

    Args:
        files: the Python files, in a fixed order.
        parts: digests of other data that affect results.
    """
    text = "".join([*(_bare(_read(file)) for file in files), *parts])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _imported(file: Path, package: Path) -> list[Path]:
    """Return the files of shipped plugins and the user's files that a plugin imports from."""
    paths: list[Path] = []
    for node in _imports(_read(file)):
        if isinstance(node, ast.ImportFrom):  # imports names of a module, or modules
            inner = node.module.split(".") if node.module else []
            if node.level:
                path = file.parents[node.level - 1].joinpath(*inner)
                paths += [path, *(path / alias.name for alias in node.names)]
                continue
            modules = [inner, *([*inner, alias.name] for alias in node.names)]
        else:
            modules = [alias.name.split(".") for alias in node.names]
        for parts in modules:
            if len(parts) > 1 and parts[1] in PLUGINS:
                paths.append(package.joinpath(*parts[1:]))
            elif parts[0] != package.name and not file.is_relative_to(package):
                paths += [root.joinpath(*parts) for root in _roots(file, parts[0])]
    files = []
    for path in paths:
        files += [path.with_suffix(".py"), path / "__init__.py"]
    return [file for file in files if file.is_file()]  # other imports are names in a module


_imported_once = cache(_imported)


def _roots(file: Path, module: str) -> list[Path]:
    """Return the folders that may contain a top-level module of the user.

    These are the folder of the file that imports it, and the module's folder on the import path.
    Modules of libraries do not count, unless the file is part of the library.
    """
    roots = [file.parent]
    loaded = sys.modules.get(module)
    origin = getattr(loaded, "__file__", None)
    inside = Path(origin or "").parent
    is_package = hasattr(loaded, "__path__")
    if origin and (not is_library(origin) or (is_package and file.is_relative_to(inside))):
        roots.append(inside.parent if is_package else inside)
    return roots


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


# Both functions are cached because plugins are loaded often, with the same text.
@cache
def _imports(source: str) -> list[ast.Import | ast.ImportFrom]:
    nodes = ast.walk(ast.parse(source))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


@cache
def _bare(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                del body[0]
    return ast.unparse(tree)
