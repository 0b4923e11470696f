"""One cell after the other: predicted, measured, kept in the journal, or left out with a reason."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pe_bench.api import InputError, Journal, Measurement
from pe_bench.checks.costs import count_products

from .memory import GIB, PAIR_BYTES, allowed_bytes, peak_bytes, predict
from .timing import Call, quartiles, take_turns

MIB = 2**20
WARM_UP = {"cpu": 1, "cuda": 3}  # beyond the calls that count operations and bytes
Entry = dict[str, Any]


@dataclass(frozen=True)
class Pass:
    """One call of the encoding under test, and the same with the reference.

    Attributes:
        subject, reference: the calls.
        tokens: that the call reads or writes; 0: a rate of tokens says nothing.
        steps: that it consists of, for times of one.
        kept: bytes that a token keeps after the call; None: nothing that a cache keeps.
    """

    subject: Call
    reference: Call
    tokens: int = 0
    steps: int = 1
    kept: Callable[[], int | None] = lambda: None


@dataclass(frozen=True)
class Limits:
    """When to stop.

    Attributes:
        repeats: repetitions.
        seconds: most seconds for all repetitions, and for one call.
        memory: most GiB for one call.
    """

    repeats: int
    seconds: float
    memory: float


@dataclass(frozen=True)
class Cell:
    """What is measured together.

    Attributes:
        key: its name in the journal and in notes.
        subset: of its rows.
        length: tokens.
        pairs: pairs of a head's queries and keys that the attention of all layers has.
        passes: makes the calls, by name, for a length.
    """

    key: str
    subset: str
    length: int
    pairs: int
    passes: Callable[[int], Mapping[str, Pass]]


class _Skip(Exception):
    """The cell is not measured; the message says why."""


class Cells:
    """Measures cells; those that the journal holds are not measured again.

    Args:
        journal: of the subset.
        limits: when to stop.
        device: "cpu" or "cuda".
    """

    def __init__(self, journal: Journal, limits: Limits, device: str) -> None:
        self.journal = journal
        self.limits = limits
        self.device = device
        self.reasons: dict[str, list[str]] = {}

    def measure(self, cell: Cell, shorter: Mapping[int, Entry]) -> Entry:
        """Return what is known of a cell: times, bytes and operations by pass, or a reason.

        Args:
            cell: the cell.
            shorter: the same of shorter inputs.
        """
        if cell.key not in self.journal.items:
            self.journal.add({cell.key: self._measured(cell, shorter)})
        entry: Entry = self.journal.items[cell.key]
        if "reason" in entry:
            self.reasons.setdefault(entry["reason"], []).append(cell.key)
        return entry

    def notes(self) -> tuple[str, ...]:
        """Return a sentence for each reason why cells were left out."""
        return tuple(f"{', '.join(keys)}: {reason}" for reason, keys in self.reasons.items())

    def _measured(self, cell: Cell, shorter: Mapping[int, Entry]) -> Entry:
        try:
            self._check_predicted(cell, shorter)
            passes = cell.passes(cell.length)
            return {"passes": {name: self._times(each) for name, each in passes.items()}}
        except (_Skip, InputError, NotImplementedError) as error:
            return {"reason": " ".join(str(error).split())}
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            return {"reason": "it ran out of memory"}

    def _times(self, each: Pass) -> Entry:
        bytes_of = {}
        for name, call in (("bytes", each.subject), ("reference_bytes", each.reference)):
            call()  # what is made once, such as the state of an optimizer
            bytes_of[name] = peak_bytes(call, self.device)
        flops = count_products(each.subject)
        turns = take_turns(
            each.subject,
            each.reference,
            device=self.device,
            repeats=self.limits.repeats,
            seconds=self.limits.seconds,
            warm_up=WARM_UP[self.device],
        )
        return {
            "seconds": turns.subject,
            "reference_seconds": turns.reference,
            **bytes_of,
            "flops": flops,
            "tokens": each.tokens,
            "steps": each.steps,
            "kept": each.kept(),
        }

    def _check_predicted(self, cell: Cell, shorter: Mapping[int, Entry]) -> None:
        """Predict bytes and seconds from shorter inputs.

        Raises:
            _Skip: they are beyond the limits.
        """
        allowed = allowed_bytes(self.limits.memory, self.device)
        known = {length: entry["passes"] for length, entry in shorter.items() if "passes" in entry}
        names = {name for passes in known.values() for name in passes}
        needed = {n: predict(_column(known, n, "bytes"), cell.length) for n in names}
        taken = {n: predict(_column(known, n, "seconds"), cell.length) for n in names}
        if not names and PAIR_BYTES * cell.pairs > allowed:
            needed = {"": predict(self._bytes_of_shorter(cell), cell.length)}
        if needed and max(needed.values()) > allowed:
            raise _Skip(
                f"it would need about {max(needed.values()) / GIB:.1f} GiB, and "
                f"{allowed / GIB:.1f} are allowed"
            )
        if taken and max(taken.values()) > self.limits.seconds:
            raise _Skip(
                f"a call would take about {max(taken.values()):.0f} s, and "
                f"{self.limits.seconds:g} are allowed"
            )

    def _bytes_of_shorter(self, cell: Cell) -> dict[int, float]:
        """Return the most bytes of any pass at a quarter and at half of the length."""
        found = {}
        for length in (cell.length // 4, cell.length // 2):
            peaks = []
            for each in cell.passes(length).values():
                each.subject()
                peaks.append(peak_bytes(each.subject, self.device))
            found[length] = float(max(peaks))
        return found


def make_rows(cell: Cell, entry: Entry) -> list[Measurement]:
    """Return the rows of a cell; intervals are quartiles over repetitions."""
    rows = []
    for name, found in entry.get("passes", {}).items():
        seconds = found["seconds"]
        reference = found["reference_seconds"]
        values = {
            "ms": [1000 * each / found["steps"] for each in seconds],
            "time_ratio": [one / two for one, two in zip(seconds, reference, strict=True)],
            "mib": [found["bytes"] / MIB],
            "memory_ratio": [found["bytes"] / max(1, found["reference_bytes"])],
            "gflops": [found["flops"] / 1e9],
        }
        if found["tokens"]:
            values["tokens_per_second"] = [found["tokens"] / each for each in seconds]
        named = {f"{name}_{kind}": numbers for kind, numbers in values.items()}
        if found["kept"] is not None:
            named["cache_bytes"] = [found["kept"]]
        for metric, numbers in named.items():
            low, middle, high = quartiles(numbers)
            if len(numbers) == 1:
                low = high = math.nan
            row = Measurement(
                cell.subset,
                metric,
                middle,
                len(numbers),
                length=cell.length,
                ci_low=low,
                ci_high=high,
            )
            rows.append(row)
    return rows


def _column(known: Mapping[int, Any], name: str, what: str) -> dict[int, float]:
    """Return bytes, or median seconds, of a pass by length."""
    found = {}
    for length, passes in known.items():
        if name in passes:
            value = passes[name][what]
            found[length] = float(value if what == "bytes" else quartiles(value)[1])
    return found


def _is_out_of_memory(error: BaseException) -> bool:
    # On the CPU torch has no type of its own for that.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate" in str(error)
