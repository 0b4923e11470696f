"""How many threads a run has: sums are rounded in another order with another number of them."""

import contextlib
import os
from collections.abc import Iterator

import torch


def threads_of_run(preset: str, device: str, *, alone: bool) -> int:
    """Return the number of threads that a run has for its computations.

    The models of preset quick are trained as fast by one thread as by two. So their numbers depend
    neither on the processor's cores nor on how many runs go on at once.

    Args:
        preset: of the run.
        device: "cpu" or "cuda".
        alone: whether no other run goes on beside it.
    """
    quick = preset == "quick" and device == "cpu"
    if "OMP_NUM_THREADS" in os.environ or (alone and not quick):
        return torch.get_num_threads()
    return 1


@contextlib.contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Set the number of threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
