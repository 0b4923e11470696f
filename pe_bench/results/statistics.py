"""Proportions, means and their uncertainty."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pe_bench.results.schema import Measurement

Z95 = 1.959964


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n (Wilson 1927)."""
    middle = (share + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * math.sqrt(share * (1 - share) / n + (Z95 / (2 * n)) ** 2)
    return max(0.0, middle - half), min(1.0, middle + half)


def exact_match_rows(
    subset: str,
    right: float,
    n: int,
    *,
    length: int | None = None,
    aux: str = "",
    metric: str = "exact_match",
) -> list[Measurement]:
    """Exact match in percent, and the ends of its Wilson interval."""
    share = right / n
    low, high = wilson(share, n)
    error = 100 * math.sqrt(share * (1 - share) / n)
    return [
        Measurement(subset, metric, 100 * share, n, error, length, aux),
        Measurement(subset, f"{metric}_low", 100 * low, n, length=length, aux=aux),
        Measurement(subset, f"{metric}_high", 100 * high, n, length=length, aux=aux),
    ]


def mean(subset: str, rows: Sequence[Measurement], *, solved: bool = True) -> Measurement:
    """The unweighted mean of rows of one metric; not ranked unless `solved`."""
    value = float(np.mean([row.value for row in rows]))
    error = float(np.sqrt(np.sum([row.stderr**2 for row in rows]))) / len(rows)
    metric = rows[0].metric if solved else f"unsolved_{rows[0].metric}"
    return Measurement(subset, metric, value, sum(row.n for row in rows), error)


def average(runs: Sequence[Sequence[Measurement]]) -> list[Measurement]:
    """The mean of evaluations that differ in an encoding's frozen random choices only.

    Standard errors are averaged too: the items are the same, so repeating them adds no certainty.
    """
    return [
        replace(
            same[0],
            value=sum(row.value for row in same) / len(same),
            stderr=sum(row.stderr for row in same) / len(same),
        )
        for same in zip(*runs, strict=True)
    ]
