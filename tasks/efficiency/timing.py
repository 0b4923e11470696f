"""Time of calls that take turns, so that whatever slows the machine slows all of them."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

LEAST = 3  # repetitions, whatever they take
LEAST_SECONDS = 0.02  # of one measurement, for which short calls are made several times
Call = Callable[[], object]


@dataclass(frozen=True)
class Turns:
    """Seconds of two calls that took turns, those of one repetition at one index.

    Attributes:
        subject: times of the call under test.
        reference: times of the reference.
    """

    subject: list[float]
    reference: list[float]

    @property
    def ratios(self) -> list[float]:
        """Time of the subject over that of the reference, for each repetition."""
        return [one / two for one, two in zip(self.subject, self.reference, strict=True)]


def take_turns(
    subject: Call, reference: Call, *, device: str, repeats: int, seconds: float, warm_up: int
) -> Turns:
    """Return the times of two calls that alternate; which one comes first alternates too.

    Args:
        subject: the call under test.
        reference: the call to compare with.
        device: "cpu" (wall clock) or "cuda" (its events).
        repeats: repetitions.
        seconds: after which no repetition is begun, once there are `LEAST`.
        warm_up: calls of each before the first one that counts, 1 at least.
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
    """Return the time that a call takes, the mean of `count` in a row."""
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
    """Return how many calls of a duration make a measurement."""
    return max(1, math.ceil(LEAST_SECONDS / max(seconds, 1e-6)))


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float(low), float(middle), float(high)
