"""Maximum number of output tokens of each subset."""

from collections.abc import Mapping

from pe_bench.api import InputError
from pe_bench.tasks.scrolls.prompts import Format
from pe_bench.tasks.scrolls.splits import Splits
from pe_bench.tasks.scrolls.subsets import SUBSETS
from pe_bench.tasks.scrolls.variant import Settings

RECORDS = 200  # number of training examples that determine a limit
LEAST_INPUT = 64  # tokens of a sequence that are reserved for the input


def find_limits(data: Mapping[str, Splits], layout: Format, settings: Settings) -> dict[str, int]:
    """Return the maximum number of output tokens of each subset, including EOS.

    Args:
        data: splits of each subset.
        layout: format that turns an output into tokens.
        settings: maximum numbers of tokens of sequences, answers and summaries.
    """
    limits = {}
    for name, splits in data.items():
        limit = settings.summary_tokens if SUBSETS[name].summary else settings.answer_tokens
        if not limit:
            some = splits["train"][:RECORDS]
            outputs = [output for record in some for output in record.outputs]
            needed = max(len(layout.output(output, settings.length)) for output in outputs)
            limit = min(needed, settings.length // 4)
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
