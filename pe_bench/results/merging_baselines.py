"""Merging of the rows of baselines; the later version replaces an earlier one."""

import math
from pathlib import Path

from pe_bench.errors import InputError
from pe_bench.results.layout import copy_with_seal
from pe_bench.results.record_parts import Baselines
from pe_bench.results.row_files import read_lines
from pe_bench.system.files import LARGEST, check_links
from pe_bench.system.sealed import DamagedError, read_sealed, sum_of

REL_TOLERANCE = 1e-9  # largest relative difference of equal numbers


def copy_baselines(path: Path, copy: Path) -> str:
    """Copy the rows of the baselines of a task, with their seal if they have one.

    The later version wins, see `VERSION` in `pe_bench.runs.baselines`.

    Args:
        path: file with the rows.
        copy: file to write, which may exist.

    Returns:
        A sentence if they are not copied, because they are damaged or differ from existing ones of
        the same version; else "".
    """
    try:
        check_links(path.parent, [path.name])
        version = _version_of(path)
        read_lines(path)
    except (DamagedError, OSError, InputError) as error:
        return f"{error}: left out"
    try:
        present = _version_of(copy) if copy.exists() else 0
    except (DamagedError, InputError):
        present = 0
    if version > present:
        copy_with_seal(path, copy)
    elif version == present and not _same_rows(path, copy):
        return f"{path} has other baselines than {copy}, which stay"
    return ""


def _version_of(path: Path) -> int:
    """Return the version of a file of baselines; 1 if it has no seal.

    Raises:
        DamagedError: the file does not match its seal.
    """
    seal = path.with_suffix(".json")
    if not seal.exists():
        return 1
    return int(read_sealed(seal, owner=path.stem, kind=Baselines, limit=LARGEST).get("version", 1))


def _same_rows(first: Path, second: Path) -> bool:
    """Return whether two files have the same rows, up to the rounding of another processor."""
    if sum_of(first) == sum_of(second):
        return True
    try:
        lines, other_lines = read_lines(first), read_lines(second)
    except InputError:
        return False
    cells = [cell for line in lines for cell in line]
    other_cells = [cell for line in other_lines for cell in line]
    return len(cells) == len(other_cells) and all(map(_same_cell, cells, other_cells))


def _same_cell(first: str, second: str) -> bool:
    try:
        return first == second or math.isclose(float(first), float(second), rel_tol=REL_TOLERANCE)
    except ValueError:
        return False
