"""A grid as a file: `pe-bench run grid.toml` reads the options of the command from TOML.

Keys are the options without their dashes. Options with a dot in them may be tables: `train.lr = 1`
is `lr = 1` below `[train]`. A table `[tune]` stands for `--tune` too, a table `[data]` has a folder
for each task.

A file may hold several grids, each in a table `[[grid]]`. Keys outside of these tables are common
to all grids; a grid's own value of a key replaces the common one.
"""

import argparse
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pe_bench.errors import InputError, suggest

SUFFIX = ".toml"
SEVERAL = "grid"  # the array of tables that have a grid each
NOT_IN_FILE = ("help",)


def read_grids(
    path: Path, options: Mapping[str, argparse.Action], given: Sequence[str]
) -> list[list[str]]:
    """Return the words of a command line for each grid of a file.

    Args:
        path: of the file.
        options: of the command, by the name that a user writes, such as "--train.lr".
        given: options that the command line has itself; the file's are left out then.

    Raises:
        InputError: it cannot be read, has a key that is no option, or a value of another type.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    grids = content.pop(SEVERAL, [{}])
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        raise InputError(f"{path}: {SEVERAL} must be tables, each below a line [[{SEVERAL}]]")
    return [_read_grid(path, content | grid, options, given) for grid in grids]


def _read_grid(
    path: Path,
    content: Mapping[str, Any],
    options: Mapping[str, argparse.Action],
    given: Sequence[str],
) -> list[str]:
    """Return the words of a command line for one grid.

    Raises:
        InputError: a key that is no option, or a value of another type.
    """
    known = {name[2:]: action for name, action in options.items() if name.startswith("--")}
    for name in NOT_IN_FILE:
        known.pop(name, None)
    words: list[str] = []
    for key, value in _flatten(content, known):
        if key not in known:
            hint = suggest(key, list(known))
            raise InputError(f"{path}: there is no option '{key}'{hint}")
        try:
            found = _words(key, value, known[key])
        except ValueError as error:
            raise InputError(f"{path}: {key} must be {error}, not {_show(value)}") from None
        if f"--{key}" not in given:
            words += found
    return words


def _flatten(
    content: Mapping[str, Any], known: Mapping[str, argparse.Action]
) -> Iterator[tuple[str, Any]]:
    """Return keys and values, those of tables under the names of options."""
    for key, value in content.items():
        inner = [name for name in known if name.startswith(f"{key}.")]
        if not isinstance(value, dict):
            yield key, value
        elif key == "data":
            yield key, [f"{task}={folder}" for task, folder in value.items()]
        elif not inner:
            yield key, value  # a table where none may be
        else:
            if key in known:
                yield key, True
            for name, one in value.items():
                yield f"{key}.{name}", one


def _words(key: str, value: Any, action: argparse.Action) -> list[str]:
    """Return an option and its value as words of a command line.

    Raises:
        ValueError: it is of another type; the message says what would be right.
    """
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError("true or false")
        return [f"--{key}"] if value else []
    several = action.nargs == "+"
    values = value if several and isinstance(value, list) else [value]
    plain = action.type in (None, Path)  # a text, and nothing that is computed from one
    kinds = (str,) if plain else (str, int, float)
    what = "a text" if plain else "a number or a text"
    if not values or not all(isinstance(one, kinds) for one in values):
        raise ValueError(f"{what}, or a list of such" if several else what)
    if not several:
        return [f"--{key}={_show(value)}"]
    return [f"--{key}", *map(_show, values)]


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
