"""Maximum number of output tokens of each subset."""

from collections.abc import Mapping

from pe_bench.api import InputError
from pe_bench.tasks.scrolls.prompts import Format
from pe_bench.tasks.scrolls.splits import Splits
from pe_bench.tasks.scrolls.subsets import SUBSETS

RECORDS = 200  # number of training examples that determine a limit
LEAST_INPUT = 64  # tokens of a sequence that are reserved for the input


def find_limits(
    data: Mapping[str, Splits], layout: Format, length: int, *, answer: int, summary: int
) -> dict[str, int]:
    """Return the maximum number of output tokens of each subset, including EOS.

    Args:
        data: splits of each subset.
        layout: format that turns an output into tokens.
        length: maximum number of tokens of a training sequence.
        answer: maximum number of tokens of an answer; 0: the length of the training references,
            but at most a quarter of `length`.
        summary: maximum number of tokens of a summary; 0: as for `answer`.
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
    """Check that outputs leave enough tokens of a sequence for the input.

    Raises:
        InputError: a limit is too large.
    """
    for limit in limits.values():
        if not 0 < limit < length - LEAST_INPUT:
            raise InputError(
                f"an output of {limit} tokens leaves too few of --train.length {length} for "
                "the input: reduce the output or raise --train.length"
            )
