"""Encodings with a seed whose headline lacks points."""

from collections.abc import Sequence

import pandas as pd

from pe_bench.results.record import RunRecord


def mark_incomplete(rows: pd.DataFrame, records: Sequence[RunRecord]) -> pd.DataFrame:
    """Mark the headline of an encoding as partial in all seeds if one of them lacks points.

    The logits of such a seed are not finite at these points, so the mean over the other seeds would
    be better than the encoding is. A seed that measured fewer subsets than others does not count:
    nothing is known about its points.

    Args:
        rows: rows of all runs of a table.
        records: records of these runs.
    """
    headline = records[0].headline
    assert headline is not None
    most = max(len(record.subsets) for record in records)
    whole = {(r.encoding, r.seed) for r in records if most and len(r.subsets) == most}
    is_headline = (rows["subset"] == headline.subset) & (rows["metric"] == headline.metric)
    is_headline &= rows["length"].isna()
    partial = rows[is_headline & (rows["status"] == "partial")]
    lacking = set()
    for encoding, seed in zip(partial["encoding"], partial["seed"], strict=True):
        if (encoding, seed) in whole:
            lacking.add(encoding)
    marked = is_headline & rows["encoding"].isin(lacking)
    return rows.assign(status=rows["status"].mask(marked, "partial"))
