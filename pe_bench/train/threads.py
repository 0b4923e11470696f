"""Thread count of a run; it affects the order of floating-point sums."""

import contextlib
import os
from collections.abc import Iterator

import torch


def threads_of_run(preset: str, device: str, *, alone: bool) -> int:
    """Return the number of threads for the computations of a run.

    The models of preset quick train as fast with one thread as with two. One thread makes their
    numbers independent of the number of cores and of parallel runs.

    Args:
        preset: preset of the run.
        device: "cpu" or "cuda".
        alone: whether no other run is executed in parallel.
    """
    quick = preset == "quick" and device == "cpu"
    if "OMP_NUM_THREADS" in os.environ or (alone and not quick):
        return torch.get_num_threads()
    return 1


@contextlib.contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Set the number of threads inside a `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
