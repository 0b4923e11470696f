"""How many tokens the output of each subset may have."""

from collections.abc import Mapping

from pe_bench.api import InputError
from pe_bench.tasks.scrolls.prompts import Format
from pe_bench.tasks.scrolls.splits import Splits
from pe_bench.tasks.scrolls.subsets import SUBSETS

RECORDS = 200  # training examples that a limit follows from
LEAST_INPUT = 64  # tokens of a sequence that no output may take


def find_limits(
    data: Mapping[str, Splits], layout: Format, length: int, *, answer: int, summary: int
) -> dict[str, int]:
    """Return the longest output of each subset, in tokens with EOS.

    Args:
        data: splits of each subset.
        layout: how an output becomes tokens.
        length: tokens of the longest sequence in training.
        answer: tokens of the longest answer; 0: as the training references need, but at most a
            quarter of `length`.
        summary: tokens of the longest summary; 0: likewise.
    """
    limits = {}
    for name, splits in data.items():
        limit = summary if SUBSETS[name].summary else answer
        if not limit:
            some = splits["train"][:RECORDS]
            outputs = [output for record in some for output in record.outputs]
            needed = max(len(layout.output(output, length)) for output in outputs)
            limit = min(needed, length // 4)
        limits[name] = limit
    return limits


def check_limits(limits: Mapping[str, int], length: int) -> None:
    """Refuse outputs that leave too little of a sequence for the input.

    Raises:
        InputError: there is such a limit.
    """
    for limit in limits.values():
        if not 0 < limit < length - LEAST_INPUT:
            raise InputError(
                f"an output of {limit} tokens leaves too little of --train.length {length} for "
                "the input: ask for less output or train longer sequences"
            )
