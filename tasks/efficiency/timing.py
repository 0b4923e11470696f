"""Times of calls that alternate, so that a slow machine affects all of them."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

LEAST = 3  # minimum number of repetitions
LEAST_SECONDS = 0.02  # minimum duration of one measurement; short calls are repeated
Call = Callable[[], object]


@dataclass(frozen=True)
class Turns:
    """Seconds of two calls that alternate; times of one repetition have the same index.

    Attributes:
        subject: times of the call under test.
        reference: times of the reference.
    """

    subject: list[float]
    reference: list[float]

    @property
    def ratios(self) -> list[float]:
        """The time of the subject divided by the time of the reference, for each repetition."""
        return [one / two for one, two in zip(self.subject, self.reference, strict=True)]


def take_turns(
    subject: Call, reference: Call, *, device: str, repeats: int, seconds: float, warm_up: int
) -> Turns:
    """Return the times of two calls that alternate. Their order alternates too.

    Args:
        subject: the call under test.
        reference: the call to compare with.
        device: "cpu" (wall clock) or "cuda" (CUDA events).
        repeats: maximum number of repetitions.
        seconds: time after which no further repetition starts, after at least `LEAST`.
        warm_up: number of calls of each before the first measurement, at least 1.
    """
    for _ in range(warm_up - 1):
        subject()
        reference()
    calls = {call: _calls(seconds_of(call, 1, device)) for call in (subject, reference)}
    turns = Turns([], [])
    started = time.monotonic()
    for repeat in range(repeats):
        if repeat >= LEAST and time.monotonic() - started > seconds:
            break
        order = [(subject, turns.subject), (reference, turns.reference)]
        for call, times in order if repeat % 2 else reversed(order):
            times.append(seconds_of(call, calls[call], device))
    return turns


def seconds_of(call: Call, count: int, device: str) -> float:
    """Return the time of a call: the mean of `count` consecutive calls."""
    if device == "cuda":
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(count):
            call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1000 / count
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count


def _calls(seconds: float) -> int:
    """Return the number of calls of a duration in one measurement."""
    return max(1, math.ceil(LEAST_SECONDS / max(seconds, 1e-6)))


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float(low), float(middle), float(high)
