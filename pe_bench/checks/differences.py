"""Describe the difference between two results."""

import math

from torch import Tensor

TOLERANCE = 1e-9  # relative, in float64


def difference(
    actual: Tensor,
    expected: Tensor,
    what: str,
    tolerance: float = TOLERANCE,
    *,
    least: float = 1e-30,
) -> str | None:
    """Return the difference between two results as text, or None if it is within rounding.

    Numbers that are not finite must be equal; the check `finite` finds them.

    Args:
        actual: the result.
        expected: the result to compare it with, of the same shape.
        what: words for the difference, such as "another backend changes the outputs".
        tolerance: largest error that counts as rounding.
        least: errors are relative to the largest finite number, but at least to this value.
    """
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    errors = (actual - expected).abs().masked_fill(same, 0)
    size = expected.masked_fill(~expected.isfinite(), 0).abs().max().clamp(min=least)
    error = float(errors.max() / size)
    if error <= tolerance:
        return None
    if not math.isfinite(error):
        return f"{what}: some are finite in one case only"
    return f"{what} by {error:.1e} of the largest"


def first_difference(
    actual: list[Tensor], expected: list[Tensor], what: str, tolerance: float = TOLERANCE
) -> str | None:
    """Compare the outputs of all layers and name the first layer that differs."""
    for layer, (one, other) in enumerate(zip(actual, expected, strict=True)):
        wrong = difference(one, other, what, tolerance)
        if wrong is not None:
            return f"{wrong}, first in layer {layer}"
    return None
