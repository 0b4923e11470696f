"""A limit for the time of a run."""

import time
from collections.abc import Callable

from pe_bench.errors import TimedOut


class TimeLimit:
    """Limit for the time of a run, from the call of `start` on.

    Args:
        minutes: the limit in minutes.
        clock: returns the current time in seconds; default: `time.monotonic`.
    """

    def __init__(self, minutes: float, clock: Callable[[], float] | None = None) -> None:
        self.minutes = minutes
        self.clock = clock or time.monotonic
        self.end: float | None = None

    def start(self) -> None:
        """Start the time."""
        self.end = self.clock() + 60 * self.minutes

    @property
    def is_over(self) -> bool:
        """Whether the time is over; False before `start`."""
        return self.end is not None and self.clock() >= self.end

    def check(self, progress: str) -> None:
        """Check that the time is not over. Call this only after all work is saved.

        Args:
            progress: the last finished work, such as "step 20 of 500", for the message.

        Raises:
            TimedOut: the time is over.
        """
        if self.is_over:
            raise TimedOut(
                f"timed out after {self.minutes:g} min (--timeout), {progress}: the same command "
                "continues from there"
            )
