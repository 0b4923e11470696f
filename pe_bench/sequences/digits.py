"""Numbers as rows of decimal digits, the last digit first."""

from pe_bench.text.tokenizer import TokenIds


def carry(numbers: TokenIds) -> None:
    """Carry in place, so that every place has a digit from 0 to 9.

    Args:
        numbers: (..., width) sums or products of digits, the last place first. The result must fit
            into `width` digits.
    """
    for index in range(numbers.shape[-1] - 1):
        numbers[..., index + 1] += numbers[..., index] // 10
        numbers[..., index] %= 10
