"""The effective length of a curve: the length up to which its score holds."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pe_bench.results.measurement import Measurement, Status

KEPT_FRACTION = 0.85
"""Fraction of the score at the trained lengths that an effective length keeps."""


class LengthCurve(NamedTuple):
    """A score over lengths.

    Attributes:
        name: name of the curve.
        subset: subset that it is measured on.
        rows: the score at each length that all encodings are measured at.
        trained: rows of the points in distribution.
        far: the score at each far length; the effective length does not depend on them.
    """

    name: str
    subset: str
    rows: list[Measurement]
    trained: list[Measurement]
    far: Sequence[Measurement] = ()

    def effective_length(self, subset: str, *, learned: bool) -> Measurement:
        """Return the longest length up to which the score keeps 85 % of its value in distribution.

        All measured lengths from the longest training length on must reach this threshold. The
        result is 0 if the longest training length does not reach it, or if the model has not
        learned the training lengths: a score at chance level holds at any length. (RULER, Hsieh et
        al. 2024, arXiv 2404.06654, uses a fixed threshold of 85.6 % at every length; this one is
        relative to the model's score.)

        Args:
            subset: subset of the row.
            learned: whether the model has learned the training lengths.
        """
        least = KEPT_FRACTION * float(np.mean([row.value for row in self.trained]))
        start = max(row.length or 0 for row in self.trained)
        longest = 0
        for row in sorted(self.rows, key=lambda row: row.length or 0):
            length = row.length or 0
            if learned and length >= start:
                if row.value < least:
                    break
                longest = length
        n = sum(row.n for row in self.rows)
        status: Status = "ranked" if learned else "not_learned"
        return Measurement(subset, "effective_length", longest, n, status=status)
