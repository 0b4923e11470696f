"""The base of tasks that make their own sequences: checked options, a gate, a digest."""

import hashlib
from collections.abc import Iterable
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pe_bench.errors import InputError
from pe_bench.results.schema import Measurement
from pe_bench.task import Setup, Task


class GeneratedTask(Task):
    """A task that reads no data and ranks nobody who has not learned what was trained.

    How well a model extrapolates what it does not know inside the trained range is no property of
    its encoding. So each such task has an option `gate`, in per cent: below it, whatever is beyond
    gets another metric, `unsolved_` and its name, which no table ranks.

    Args:
        gate: see above.
        ranges: least and largest value of each option that has them, and what was given.

    Raises:
        InputError: an option out of its range, or data.
    """

    name: ClassVar[str]
    """Of the task, for messages."""

    made: ClassVar[str] = "sequences"
    """What it makes itself, for the message to those who give it data."""

    takes_data: ClassVar[bool] = False
    """It has a use for text all the same, and says itself when not."""

    def __init__(
        self,
        setup: Setup,
        start: Task | None,
        *,
        gate: float,
        **ranges: tuple[int, int, int],
    ) -> None:
        super().__init__(setup, start)
        for option, (value, least, most) in ranges.items():
            if not least <= value <= most:
                raise InputError(
                    f"{self.name}:{option} must be from {least} to {most}, not {value}"
                )
        if not 0 <= gate <= 100:
            raise InputError(f"{self.name}:gate is a percentage, not {gate}")
        if setup.data is not None and not self.takes_data:
            raise InputError(f"{self.name} makes its own {self.made}: leave out --data")
        self.gate = gate

    def solved(self, *inside: Measurement) -> bool:
        """Whether these are all at the gate or above."""
        return all(row.value >= self.gate for row in inside)

    def evaluated(self) -> Iterable[npt.NDArray[np.int64]]:
        """The ids of everything that is evaluated, in a fixed order."""
        raise NotImplementedError

    def provenance(self) -> dict[str, Any]:
        return {"label": self.data_label, "items_sha256": self._items_digest}

    @cached_property
    def _items_digest(self) -> str:
        digest = hashlib.sha256()
        for ids in self.evaluated():
            digest.update(str(ids.shape).encode())
            digest.update(ids.astype("<i4").tobytes())
        return digest.hexdigest()
