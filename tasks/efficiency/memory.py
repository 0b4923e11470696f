"""Memory of a call: measured, predicted from shorter inputs, and available."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile

from pe_bench.api.engine import return_freed_memory

GIB = 2**30
PAIR_BYTES = 64  # per head, query and key: more than any shipped encoding keeps for backward
SPARE = 0.8  # fraction of the free memory that one call may use


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """Return the peak memory of a call in bytes, minus the memory in use before it.

    On CUDA, torch's allocator gives the peak. On a CPU, it is the largest running sum of all
    allocations and releases in torch's profiler, including buffers inside operations.

    Args:
        call: the call to measure.
        device: "cpu" or "cuda".
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with _without_stderr(), profile(profile_memory=True) as profiler:
        call()
    assert profiler.kineto_results is not None
    events: list[Any] = [
        event for event in profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    events.sort(key=lambda event: event.start_ns())
    held = 0
    most = 0
    for event in events:
        held += event.nbytes()
        most = max(most, held)
    return most


def predict(measured: Mapping[int, float], length: int) -> float:
    """Predict a cost from the costs at one or two shorter lengths.

    The model is a N + b N^2 with nonnegative a and b, or b N^2 for a single length. Without any
    length, the prediction is 0.

    Args:
        measured: cost by length; the two longest lengths are used.
        length: the length N to predict.
    """
    known = sorted(measured)[-2:]
    if not known:
        return 0.0
    last = known[-1]
    if len(known) == 1:
        return measured[last] * (length / last) ** 2
    per_token = measured[last] / last
    slope = (per_token - measured[known[0]] / known[0]) / (last - known[0])  # b
    slope = min(max(slope, 0.0), per_token / last)
    return length * (per_token + slope * (length - last))


def allowed_bytes(limit: float, device: str) -> float:
    """Return the bytes that one call may use: a limit in GiB, or less if less memory is free."""
    return min(limit * GIB, SPARE * free_bytes(device))


def free_bytes(device: str) -> float:
    """Return the free memory of a device in bytes."""
    if device == "cuda":
        torch.cuda.empty_cache()
        return float(torch.cuda.mem_get_info()[0])
    return_freed_memory()
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Discard messages of the profiler's C++ code."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
