"""Degradation of an adapted model at the training length of its source model."""

import math
from collections.abc import Sequence

import pandas as pd

from pe_bench.results.metrics import Metric, find_metric
from pe_bench.results.record import RunRecord
from pe_bench.results.views import Column

DEGRADATION = "degradation"
TITLE = "degradation at the original length"


def find_column(record: RunRecord) -> Column | None:
    """Return the column of a task's scores at the training length, or None."""
    columns = [view for view in record.views if isinstance(view, Column)]
    return next((column for column in columns if column.at_trained_length), None)


def describe_degradation(record: RunRecord) -> Metric:
    """Return title and unit of the degradation: the unit of the score; lower is better."""
    column = find_column(record)
    assert column is not None
    metric = _describe_score(record, column)
    return Metric(TITLE, metric.unit or metric.title, higher_is_better=False)


def find_unchanged(records: Sequence[RunRecord]) -> str:
    """Return the label of the unchanged source model; empty if there is no run of it."""
    for record in records:
        adaptation = record.adaptation or {"unchanged": False}
        if "unchanged" in adaptation:
            unchanged = adaptation["unchanged"]
        else:  # format of earlier versions
            same = adaptation["encoding"] == adaptation["from"]
            unchanged = same and not adaptation["config"]["steps"]
        if unchanged:
            return record.encoding
    return ""


def add_degradation(rows: pd.DataFrame, records: Sequence[RunRecord]) -> pd.DataFrame:
    """Add the degradation of each run to the rows of a table. Positive values are worse.

    The degradation is the difference in score between an adapted model and its source model
    with the same seed, at the training length of the source model.

    Args:
        rows: rows of all runs of a table.
        records: records of these runs.
    """
    unchanged = find_unchanged(records)
    column = find_column(records[0])
    if not unchanged or column is None:
        return rows
    metric = _describe_score(records[0], column)
    chosen = (rows["subset"] == column.subset) & (rows["metric"] == column.metric)
    own = rows[chosen & rows["length"].isna() & (rows["status"] != "partial")]
    before = own[own["encoding"] == unchanged].set_index("seed")["value"]
    others = own[(own["encoding"] != unchanged) & own["seed"].isin(before.index)]
    change = others["value"] - others["seed"].map(before)
    degradation = others.assign(
        metric=DEGRADATION,
        value=-change if metric.higher_is_better else change,
        stderr=math.nan,  # unknown, because both models were scored on the same items
        ci_low=math.nan,
        ci_high=math.nan,
        status="ranked",
    )
    return pd.concat([rows, degradation], ignore_index=True)


def _describe_score(record: RunRecord, column: Column) -> Metric:
    return find_metric(column.metric, record.metrics)
