"""A grid as a file: `pe-bench run grid.toml` reads the options of the command from TOML.

Keys are the options without their dashes. Options with a dot may be written as tables:
`train.lr = 1` is `lr = 1` below `[train]`. A table `[tune]` implies `--tune`, and a table `[data]`
has a folder for each task.

A file may contain several grids, each in a table `[[grid]]`. Keys outside of these tables apply to
all grids; a value in the table of a grid replaces the common value of the same option.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pe_bench.errors import InputError, suggest
from pe_bench.option_table import Option
from pe_bench.system.toml_file import read_toml

SUFFIX = ".toml"
SEVERAL = "grid"  # the array of tables, one table per grid
OF_ALL = ("results", "dry-run", "wide", "no-report")
"""Options that apply to all grids of a file."""


def read_grids(path: Path, options: Sequence[Option], given: Sequence[str]) -> list[list[str]]:
    """Return the words of a command line for each grid of a file.

    Args:
        path: path of the file.
        options: options of the command.
        given: flags on the command line; they replace the values of the file.

    Raises:
        InputError: the file cannot be read, a key is not an option, or a value has the wrong type.
    """
    content = read_toml(path)
    grids = content.pop(SEVERAL, [{}])
    if (
        not isinstance(grids, list)
        or not all(isinstance(grid, dict) for grid in grids)
        or not grids
    ):
        raise InputError(f"{path}: {SEVERAL} must be tables, each below a line [[{SEVERAL}]]")
    for name in OF_ALL:
        if any(name in grid for grid in grids):
            raise InputError(f"{path}: {name} applies to all grids: write it above [[{SEVERAL}]]")
    known: dict[str, Option] = {}
    for option in options:
        if not option.is_changes:
            known[option.flag] = option
        known |= {inner.flag: inner for inner in option.inner}
    return [_read_grid(path, content, grid, known, given) for grid in grids]


def _read_grid(
    path: Path,
    common: Mapping[str, Any],
    own: Mapping[str, Any],
    known: Mapping[str, Option],
    given: Sequence[str],
) -> list[str]:
    """Return the words of a command line for one grid.

    Raises:
        InputError: a key is not an option, or a value has the wrong type.
    """
    of_grid = list(_flatten(own, known))
    # A table of the grid changes single options of the common table; another value, such as
    # `tune = false`, replaces all of them.
    single = {key for key, _ in of_grid}
    whole = {key for key, value in own.items() if not isinstance(value, dict)}
    of_all = [
        (key, value)
        for key, value in _flatten(common, known)
        if key not in single and key.partition(".")[0] not in whole
    ]
    words: list[str] = []
    for key, value in [*of_all, *of_grid]:
        if key not in known:
            inner = next((name for name in known if name.startswith(f"{key}.")), "")
            if inner:
                raise InputError(f"{path}: {key} must be a table with options such as {inner}")
            hint = suggest(key, list(known))
            raise InputError(f"{path}: there is no option '{key}'{hint}")
        try:
            found = _words(known[key], value)
        except ValueError as error:
            raise InputError(f"{path}: {key} must be {error}, not {_show(value)}") from None
        if f"--{key}" not in given:
            words += found
    return words


def _flatten(content: Mapping[str, Any], known: Mapping[str, Option]) -> Iterator[tuple[str, Any]]:
    """Yield keys and values; a key in a table gets the full name of its option."""
    for key, value in content.items():
        has_inner = any(name.startswith(f"{key}.") for name in known)
        if isinstance(value, dict) and key in known and known[key].is_mapping:
            yield key, [f"{name}={one}" for name, one in value.items()]
        elif isinstance(value, dict) and has_inner:
            if key in known:
                yield key, True
            for name, one in value.items():
                yield f"{key}.{name}", one
        else:  # a table that is not allowed here is reported as a value of the wrong type
            yield key, value


def _words(option: Option, value: Any) -> list[str]:
    """Return an option and its value as words of a command line.

    Raises:
        ValueError: the value has the wrong type; the message describes the right one.
    """
    if option.is_switch:
        if not isinstance(value, bool):
            raise ValueError("true or false")
        return [f"--{option.flag}"] if value else []
    several = option.is_tuple or option.is_mapping
    values = value if several and isinstance(value, list) else [value]
    has_numbers = option.item in (bool, int, float)
    kinds = (str, int, float) if has_numbers else (str,)
    what = "a number or a text" if has_numbers else "a text"
    if not values or not all(isinstance(one, kinds) for one in values):
        raise ValueError(f"{what}, or a list of such" if several else what)
    if any("\0" in str(one) for one in values):
        raise ValueError("a text without the character NUL")
    if any(isinstance(one, str) and one.startswith("--") for one in values):
        raise ValueError("a text that does not begin with --")
    if not several:
        return [f"--{option.flag}={_show(value)}"]
    return [f"--{option.flag}", *map(_show, values)]


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
