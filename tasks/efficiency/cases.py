"""Benchmark cases. Each is measured and stored in the journal, or left out with a reason."""

import math
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pe_bench.api import InputError, Journal, Measurement
from pe_bench.api.engine import Backend, count_products, is_out_of_memory, record_backends

from .memory import GIB, PAIR_BYTES, allowed_bytes, peak_bytes, predict
from .timing import Call, quartiles, take_turns

MIB = 2**20
WARM_UP = {"cpu": 1, "cuda": 3}  # in addition to the calls that count operations and bytes
EVERY_PASS = ""  # key of a reason that applies to all passes of a case
Entry = dict[str, Any]


@dataclass(frozen=True)
class Pass:
    """One call of the encoding under test, and the same call with the reference.

    Attributes:
        subject, reference: the calls.
        tokens: number of tokens that the call reads or writes; 0: do not report tokens per second.
        steps: number of steps in the call; times are per step.
        kept: returns the cache's bytes per token after the call; None: no cache.
    """

    subject: Call
    reference: Call
    tokens: int = 0
    steps: int = 1
    kept: Callable[[], int | None] = lambda: None


@dataclass(frozen=True)
class Limits:
    """Limits of a measurement.

    Attributes:
        repeats: number of repetitions.
        seconds: maximum seconds for all repetitions, and for one call.
        memory: maximum GiB for one call.
    """

    repeats: int
    seconds: float
    memory: float


@dataclass(frozen=True)
class Case:
    """A benchmark case: passes that share a backend and a length.

    Attributes:
        key: name of the case in the journal and in notes.
        subset: subset of the rows.
        backend: attention backend; "auto": the engine chooses, and the rows name its choice.
        length: number of tokens.
        pairs: number of query-key pairs in the attention of all heads and layers.
        passes: returns the passes for a length, by name.
    """

    key: str
    subset: str
    backend: Backend
    length: int
    pairs: int
    passes: Callable[[int], Mapping[str, Pass]]


class Meter:
    """Measures cases. Cases in the journal are not measured again.

    Args:
        journal: journal of the subset.
        limits: limits of a measurement.
        device: "cpu" or "cuda".
    """

    def __init__(self, journal: Journal, limits: Limits, device: str) -> None:
        self.journal = journal
        self.limits = limits
        self.device = device
        self.reasons: dict[str, list[str]] = {}

    def measure(self, case: Case, shorter: Mapping[int, Entry]) -> Entry:
        """Return the times, bytes and operations of each pass, or the reason why there are none.

        Args:
            case: the case to measure.
            shorter: results of the same case for shorter inputs, by length.
        """
        if case.key not in self.journal.items:
            with warnings.catch_warnings():  # flex attention warns on a CPU, where tests use it
                warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
                self.journal.add({case.key: self._measured(case, shorter)})
        entry: Entry = self.journal.items[case.key]
        reasons = {name: found["reason"] for name, found in entry.items() if "reason" in found}
        same_for_all = len(reasons) == len(entry) and len(set(reasons.values())) == 1
        for name, reason in reasons.items():
            where = case.key if same_for_all else f"{case.key} ({name.replace('_', ' ')})"
            names = self.reasons.setdefault(reason, [])
            if where not in names:
                names.append(where)
        return entry

    def notes(self) -> tuple[str, ...]:
        """Return a sentence for each reason why measurements were left out."""
        return tuple(f"{', '.join(keys)}: {reason}" for reason, keys in self.reasons.items())

    def _measured(self, case: Case, shorter: Mapping[int, Entry]) -> Entry:
        """Return the result of `measure`; a reason for all passes has the key `EVERY_PASS`."""
        too_much = self._predicted(case, shorter)
        if EVERY_PASS in too_much:
            return {EVERY_PASS: {"reason": too_much[EVERY_PASS]}}
        try:
            passes = case.passes(case.length)
        except Exception as error:
            return {EVERY_PASS: {"reason": _reason(error)}}
        entry = {}
        for name, each in passes.items():
            try:
                entry[name] = {"reason": too_much[name]} if name in too_much else self._times(each)
            except Exception as error:
                entry[name] = {"reason": _reason(error)}
        return entry

    def _times(self, each: Pass) -> Entry:
        with record_backends() as used:
            each.subject()
        bytes_of = {}
        for name, call in (("bytes", each.subject), ("reference_bytes", each.reference)):
            call()  # allocates persistent memory, such as the state of an optimizer
            bytes_of[name] = peak_bytes(call, self.device)
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
            "flops": _operations(each.subject, used),
            "tokens": each.tokens,
            "steps": each.steps,
            "kept": each.kept(),
            "chosen": "+".join(sorted(set(used))),
        }

    def _predicted(self, case: Case, shorter: Mapping[int, Entry]) -> dict[str, str]:
        """Return reasons to leave out passes, or `EVERY_PASS`, predicted from shorter inputs."""
        allowed = allowed_bytes(self.limits.memory, self.device)
        names = {name for entry in shorter.values() for name in entry if "seconds" in entry[name]}
        if names:
            needed = {n: predict(_column(shorter, n, "bytes"), case.length) for n in names}
        elif PAIR_BYTES * case.pairs > allowed:
            needed = {EVERY_PASS: predict(self._bytes_of_shorter(case), case.length)}
        else:
            return {}
        found = {}
        for name, count in needed.items():
            taken = predict(_column(shorter, name, "seconds"), case.length)
            if count > allowed:
                found[name] = (
                    f"it would need about {count / GIB:.2g} GiB, "
                    f"but {allowed / GIB:.2g} are allowed"
                )
            elif taken > self.limits.seconds:
                found[name] = (
                    f"a call would take about {taken:.0f} s, "
                    f"but {self.limits.seconds:g} are allowed"
                )
        return found

    def _bytes_of_shorter(self, case: Case) -> dict[int, float]:
        """Return the maximum bytes of the passes at a quarter and at half of the length.

        Empty if an error prevents the measurement. The error will occur again.
        """
        found = {}
        try:
            for length in (case.length // 4, case.length // 2):
                peaks = []
                for each in case.passes(length).values():
                    each.subject()
                    peaks.append(peak_bytes(each.subject, self.device))
                found[length] = float(max(peaks))
        except (InputError, NotImplementedError):
            return {}
        return found


def make_rows(case: Case, entry: Entry) -> list[Measurement]:
    """Return the rows of a case; intervals are quartiles over repetitions."""
    rows = []
    for name, found in entry.items():
        if "reason" in found:
            continue
        seconds = found["seconds"]
        reference = found["reference_seconds"]
        milliseconds = [1000 * each / found["steps"] for each in seconds]
        time_ratios = [one / two for one, two in zip(seconds, reference, strict=True)]
        values = {
            "ms": milliseconds,
            "time_ratio": time_ratios,
            "mib": [found["bytes"] / MIB],
            "memory_ratio": [found["bytes"] / max(1, found["reference_bytes"])],
        }
        if found["flops"] is not None:
            values["gflops"] = [found["flops"] / 1e9]
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
                case.subset,
                metric,
                middle,
                len(numbers),
                length=case.length,
                second_axis=found["chosen"] if case.backend == "auto" else case.backend,
                ci_low=low,
                ci_high=high,
            )
            rows.append(row)
    return rows


def _column(shorter: Mapping[int, Entry], name: str, what: str) -> dict[int, float]:
    """Return bytes, or median seconds, of a pass by length."""
    found = {}
    for length, entry in shorter.items():
        if "seconds" in entry.get(name, {}):
            value = entry[name][what]
            found[length] = float(value if what == "bytes" else quartiles(value)[1])
    return found


def _operations(call: Call, backends: Collection[Backend]) -> int | None:
    """Return the operations of the matrix products in a call; None if it uses flex attention.

    Torch's counter does not support flex attention, which fails in later calls too.
    """
    return None if "flex" in backends else count_products(call)


def _reason(error: Exception) -> str:
    """Return the reason why a pass is not measured.

    Raises:
        Exception: the error itself, if it is not an expected one.
    """
    if is_out_of_memory(error):
        return "it ran out of memory"
    if isinstance(error, InputError | NotImplementedError):
        return " ".join(str(error).split())
    raise error
