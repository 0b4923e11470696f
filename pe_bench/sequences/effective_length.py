"""How far a score holds: the effective length of a curve over lengths."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pe_bench.results.measurement import Measurement, Status

KEPT = 0.85


class LengthCurve(NamedTuple):
    """A score over lengths.

    Attributes:
        name: of the curve.
        subset: that it is measured on.
        rows: the score at each length that every encoding is measured at.
        trained: rows of its points in distribution.
        far: the score at each far length, which the effective length does not depend on.
    """

    name: str
    subset: str
    rows: list[Measurement]
    trained: list[Measurement]
    far: Sequence[Measurement] = ()

    def effective_length(self, *, learned: bool) -> Measurement:
        """Return the longest length up to which the score keeps 85 % of that in distribution.

        All measured lengths from the longest trained one on have to keep it. It is 0 if that
        one does not, and if the model has not learned the trained lengths: a score of chance is
        kept at any length. (RULER, Hsieh et al. 2024, arXiv 2404.06654, asks for a fixed score,
        85.6 %, at every length; this is relative to the model's own.)
        """
        least = KEPT * float(np.mean([row.value for row in self.trained]))
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
        return Measurement(self.subset, "effective_length", longest, n, status=status)
