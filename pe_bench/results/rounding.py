"""Rounding of measured numbers in exports, which makes them smaller."""

import numpy as np

from pe_bench.results.items import Floats

BITS = 12  # bits of a rounded number: a relative error of 1/4000, far below differences of items


def shorten(values: Floats) -> Floats:
    """Round numbers to `BITS` bits; short numbers such as 0 and 100 do not change."""
    mantissa, exponent = np.frexp(values)
    short: Floats = np.ldexp(np.round(np.ldexp(mantissa, BITS)), exponent - BITS)
    return short
