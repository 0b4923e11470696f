"""The official score of each answer."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pe_bench.api import Items, RowKey
from pe_bench.api.data import quiet_library
from pe_bench.tasks.scrolls.documents import Record
from pe_bench.tasks.scrolls.text_metrics import ROUGE_TYPES, Metric

Scores = npt.NDArray[np.float64]
Clusters = npt.NDArray[np.integer]


def score_answers(
    subset: str,
    metric: Metric,
    predictions: Sequence[str],
    records: Sequence[Record],
    *,
    length: int,
    groups: tuple[RowKey, ...],
    cache: Path,
) -> list[Items]:
    """Return the scores of answers, by metric. ROUGE types come before their mean.

    Args:
        subset: subset of the rows.
        metric: metric of the subset.
        predictions: one answer to each record.
        records: the examples.
        length: length of the rows.
        groups: summary rows that include the score.
        cache: folder for the files of `evaluate`.
    """
    values = load_metric(metric, cache).compute(
        predictions=list(predictions),
        references=[record.outputs for record in records],
        per_example=True,
    )
    scores: Scores = 100 * values["per_example"]  # (N, 1) or (N, ROUGE types)
    main = Items(
        subset,
        metric,
        scores if metric == "rgm" else scores[:, 0],
        length=length,
        clusters=documents_of(records),
        groups=groups,
        combine="geometric mean" if metric == "rgm" else "mean",
    )
    if metric != "rgm":
        return [main]
    parts = []
    for name, column in zip(ROUGE_TYPES, scores.T, strict=True):
        parts.append(replace(main, metric=name, values=column, groups=(), combine="mean"))
    return [*parts, main]


def documents_of(records: Sequence[Record]) -> Clusters:
    """Return the index of the document of each record (N,)."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(record.document, len(numbers)) for record in records])


@lru_cache
def load_metric(name: Metric, cache: Path) -> Any:
    """Return the package's metric for `evaluate`; its files go into a cache.

    `evaluate.load` would run the copy in its cache, which anyone may have changed.
    """
    with quiet_library(cache):
        # Imported late, like `datasets`.
        from pe_bench.tasks.scrolls.evaluate_metric import LongDocumentMetric

        folder = str(cache / "evaluate")
        return LongDocumentMetric(config_name=name, cache_dir=folder, keep_in_memory=True)
