"""Retry an evaluation batch in halves after CUDA runs out of memory."""

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def retry_in_halves(run: Callable[[slice], Result], rows: int) -> list[Result]:
    """Call a function on all rows, or on halves, quarters and so on if memory runs out.

    Args:
        run: function of a slice of rows; rows must not depend on each other.
        rows: number of rows.

    Returns:
        The results in order, one for each part.

    Raises:
        torch.OutOfMemoryError: a single row does not fit.
    """
    return _try(run, 0, rows)


def _try(run: Callable[[slice], Result], start: int, stop: int) -> list[Result]:
    try:
        return [run(slice(start, stop))]
    except torch.OutOfMemoryError:
        if stop - start <= 1:
            raise
    # Outside the except block the traceback no longer keeps tensors alive.
    middle = (start + stop) // 2
    return [*_try(run, start, middle), *_try(run, middle, stop)]
