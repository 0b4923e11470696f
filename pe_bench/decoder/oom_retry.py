"""Evaluation that does not fit into a GPU's memory at once is done in parts."""

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def in_halves(run: Callable[[slice], Result], rows: int) -> list[Result]:
    """Return [run(all rows)], or what it returns for halves, quarters ... that fit into memory.

    Args:
        run: a function of some rows, in which no row depends on another.
        rows: number of rows.

    Raises:
        torch.OutOfMemoryError: one row alone does not fit.
    """
    return _try(run, 0, rows)


def _try(run: Callable[[slice], Result], start: int, stop: int) -> list[Result]:
    try:
        return [run(slice(start, stop))]
    except torch.OutOfMemoryError:
        if stop - start <= 1:
            raise
    # Here the error is gone, and with it what its traceback has held in memory.
    middle = (start + stop) // 2
    return [*_try(run, start, middle), *_try(run, middle, stop)]
