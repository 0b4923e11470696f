"""Names, files and descriptions of the shipped plugins; the folders are the registry.

A hyphen in a name is an underscore in the file. Only `import_plugin` imports torch, so `pe-bench
list` is instant.
"""

import ast
import types
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pe_bench.errors import PACKAGE, InputError
from pe_bench.registry import importing
from pe_bench.registry.importing import Kind


def names(kind: Kind) -> list[str]:
    """Return the names of all shipped plugins of a kind, in alphabetical order.

    Raises:
        InputError: the folder is missing, as in a checkout without symbolic links.
    """
    return list(_names(PACKAGE / f"{kind}s", kind))


@cache  # the files of the package do not change while a process runs
def _names(folder: Path, kind: Kind) -> list[str]:
    if not folder.is_dir():
        raise InputError(
            f"{folder} must be a symbolic link to ../{folder.name}, but this copy has no such "
            "link: clone the repository with `git clone -c core.symlinks=true`, or create the link"
        )
    files = [path.stem for path in folder.glob("*.py")]
    folders = [path.parent.name for path in folder.glob(f"*/{kind}.py")]
    return sorted(stem.replace("_", "-") for stem in files + folders)


def names_of_all(kind: Kind) -> list[str]:
    """Return the names that "all" stands for in a grid.

    A name `<other>-<more>` is left out if `<other>` is shipped too: such a plugin adds options to
    `<other>`, and is the same without them.
    """
    every = names(kind)
    found = []
    for name in every:
        adds_options = any(name.startswith(f"{other}-") for other in every)
        if not adds_options:
            found.append(name)
    return found


def expand(specs: Sequence[str], kind: Kind) -> list[str]:
    """Return the distinct specs, with "all" replaced by the names that it stands for."""
    found: dict[str, None] = {}
    for spec in specs:
        found |= dict.fromkeys(names_of_all(kind) if spec == "all" else [spec])
    return list(found)


def path_of(kind: Kind, name: str) -> Path:
    """Return the file of a shipped plugin's class: `<name>.py`, or `<name>/<kind>.py`."""
    path = PACKAGE / f"{kind}s" / name.replace("-", "_")
    return path / f"{kind}.py" if path.is_dir() else path.with_suffix(".py")


def describe(kind: Kind, name: str) -> str:
    """Return the first paragraph of a shipped plugin's docstring, without importing it."""
    return describe_file(path_of(kind, name))


def describe_file(path: Path) -> str:
    """Return the first paragraph of a file's docstring, without importing it."""
    try:
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        return f"(cannot be read: {error})"
    return doc.split("\n\n")[0].replace("\n", " ") if doc else "(no description)"


def import_plugin(kind: Kind, name: str) -> types.ModuleType:
    """Return the module of a shipped plugin.

    Raises:
        InputError: it cannot be imported.
    """
    path = path_of(kind, name)
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return importing.import_shipped(path, ".".join(["pe_bench", *parts]))
