"""Conversion of the losses of windows into items, rows, summary and views."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pe_bench.api import (
    KEPT_FRACTION,
    Column,
    Curve,
    Items,
    Measurement,
    RowKey,
    Status,
    View,
    mean_of,
    ratio,
)
from pe_bench.tasks.perplexity.scored_windows import Nats, ScoredWindows
from pe_bench.tasks.perplexity.tokenized_corpus import Offsets
from pe_bench.tasks.perplexity.windows import Span

RESAMPLES = 1000
CONTEXT_AXIS = "context, tokens (those that count among them)"

CURVES = (
    Curve("context", "bits_per_byte", "the same tokens under more context", CONTEXT_AXIS),
    Curve("key-tokens", "bits_per_byte", "the key tokens among them", CONTEXT_AXIS),
    Curve(
        "test",
        "bits_per_byte",
        "whole windows: mixes length and content",
        x="tokens of the window",
    ),
    Curve("position", "bits_per_byte", "by position in the longest windows"),
)


def make_views(longest: str, corpora: Sequence[str] = ()) -> tuple[View, ...]:
    """Return the columns and panels of one corpus, or of several and their mean.

    Args:
        longest: the longest windows in training lengths, such as `4x`.
        corpora: names of the corpora, if there are several.
    """
    columns = [
        Column("1x-context", "bits_per_byte", at_trained_length=True),
        Column(f"{longest}-context", "context_gain"),
        Column(f"{longest}-context", "effective_length", "context"),
        Column(f"{longest}-key-tokens", "bits_per_byte"),
        Column("1x-window", "bits_per_byte"),
        Column(f"{longest}-window", "bits_per_byte"),
    ]
    if not corpora:
        return (*columns, *CURVES)
    curves: list[View] = []
    for name in corpora:
        columns.append(Column(f"{name}-{longest}-context", "bits_per_byte"))
        for view in CURVES:
            title = f"{name}: {view.title}"
            curves.append(replace(view, subset=f"{name}-{view.subset}", title=title))
    return (*columns, *curves)


def in_training_lengths(longest: int, trained: int) -> str:
    """Return the longest windows in training lengths, such as `4x` or `1.5x`."""
    return f"{longest / trained:.4g}x"


def of_corpus(items: Items, name: str) -> Items:
    """Label items as one of several corpora, and include them in the mean over corpora."""
    groups: list[RowKey] = []
    for key in items.groups:
        groups += [key._replace(subset=f"{name}-{key.subset}"), key]
    return replace(items, subset=f"{name}-{items.subset}", groups=tuple(groups))


def rows_of_corpus(measured: Sequence[Measurement], name: str) -> list[Measurement]:
    """Return the rows of one of several corpora, with its name removed from their subsets."""
    start = f"{name}-"
    own = [row for row in measured if row.subset.startswith(start)]
    return [replace(row, subset=row.subset.removeprefix(start)) for row in own]


def mean_rows(summaries: Sequence[Measurement], names: Sequence[str]) -> list[Measurement]:
    """Return the means over corpora of the rows in the table.

    Args:
        summaries: summary rows of each corpus, with its name.
        names: names of all corpora; if one is missing, means are "partial".
    """
    groups: dict[RowKey, list[Measurement]] = {}
    there = set()
    for name in names:
        for row in rows_of_corpus(summaries, name):
            there.add(name)
            groups.setdefault(RowKey(row.subset, row.metric), []).append(row)
    rows = []
    for key, group in groups.items():
        status: Status = "ranked" if len(there) == len(names) else "partial"
        if any(row.status == "not_learned" for row in group):
            status = "not_learned"
        rows.append(mean_of(key.subset, group, status))
    return rows


def summary_names(trained: int, longest: int) -> dict[RowKey, str]:
    """Return the rows in the table, with their subset in the table.

    Args:
        trained: number of tokens of a training window.
        longest: number of tokens of an evaluation window.
    """
    most = in_training_lengths(longest, trained)
    return {
        RowKey("context", "bits_per_byte", trained): "1x-context",
        RowKey("context", "bits_per_byte", longest): f"{most}-context",
        RowKey("context", "context_gain", longest): f"{most}-context",
        RowKey("key-tokens", "bits_per_byte", longest): f"{most}-key-tokens",
        RowKey("test", "bits_per_byte", trained): "1x-window",
        RowKey("test", "bits_per_byte", longest): f"{most}-window",
    }


def make_items(scored: ScoredWindows, nats: Nats) -> list[Items]:
    """Return the loss of each window, for every span.

    Args:
        scored: the windows.
        nats: (N, spans) summed losses.
    """
    found: list[Items] = []
    contexts: dict[int, Items] = {}
    for column, span in enumerate(scored.spans):
        losses = nats[:, column]
        bits = _bits(span, losses, scored.bytes[:, column], scored.windows.clusters)
        if not len(bits):  # no window has a key token
            continue
        found.append(bits)
        if span.subset == "test":
            metric = f"{span.family}perplexity"
            tokens = np.full(len(bits), float(span.scored[1] - span.scored[0]))
            found.append(replace(bits, metric=metric, values=losses, weights=tokens, combine="exp"))
        if span.subset == "context":
            contexts[span.length] = bits
            if span.length > scored.trained:
                gain = contexts[scored.trained].values - bits.values
                found.append(replace(bits, metric="context_gain", values=gain))
    names = summary_names(scored.trained, scored.windows.length)
    named = []
    for items in found:
        name = names.get(items.key)
        named.append(replace(items, groups=(RowKey(name),)) if name else items)
    return named


def _bits(span: Span, nats: Nats, sizes: Offsets, clusters: Offsets) -> Items:
    """Return the loss of each window in bits per byte; windows without key tokens are skipped."""
    counts = sizes > 0 if span.keys else np.ones(len(sizes), np.bool_)
    return Items(
        span.subset,
        f"{span.family}bits_per_byte",
        nats[counts] / math.log(2),
        sizes[counts].astype(np.float64),
        span.length,
        clusters=clusters[counts],
    )


def row_of(items: Items) -> Measurement:
    """Return the row of items; intervals of perplexities are computed for their logarithm."""
    assert items.weights is not None
    row = ratio(
        items.subset,
        items.metric,
        items.values,
        items.weights,
        items.clusters,
        length=items.length,
        resamples=RESAMPLES if items.metric == "bits_per_byte" else 0,
    )
    if items.combine != "exp":
        return row
    with np.errstate(over="ignore"):
        value, low, high = np.exp([row.value, row.ci_low, row.ci_high])
    return replace(
        row,
        value=float(value),
        stderr=float(value) * row.stderr,
        ci_low=float(low),
        ci_high=float(high),
    )


def summary_rows(
    measured: Sequence[Measurement], trained: int, longest: int, threshold: float
) -> list[Measurement]:
    """Return the rows in the table, including the headline.

    A model that does not beat the threshold with the training context has not learned to use its
    context. Its rows for longer contexts are "not_learned", and its effective length is 0.

    Args:
        measured: rows of a model or an n-gram table.
        trained: number of tokens of a training window.
        longest: number of tokens of an evaluation window.
        threshold: bits per byte of the best n-gram table with the training context.
    """
    curve = context_curve(measured)
    learned = curve[trained].value < threshold
    status: Status = "ranked" if learned else "not_learned"
    names = summary_names(trained, longest)
    rows = []
    for row in measured:
        name = names.get(RowKey(row.subset, row.metric, row.length))
        if name:
            shown: Status = "ranked" if row.length == trained else status
            rows.append(replace(row, subset=name, length=None, status=shown))
    effective = effective_length(curve, trained) if learned else 0
    n = sum(row.n for row in curve.values())
    subset = names[RowKey("context", "bits_per_byte", longest)]
    return [*rows, Measurement(subset, "effective_length", effective, n, status=status)]


def context_curve(measured: Sequence[Measurement]) -> dict[int, Measurement]:
    """Return the loss of the same tokens by the length of their context."""
    curve = {}
    for row in measured:
        if (row.subset, row.metric) == ("context", "bits_per_byte"):
            curve[row.length or 0] = row
    return curve


def effective_length(curve: Mapping[int, Measurement], trained: int) -> int:
    """Return the longest context up to which the loss is at most 1 / 0.85 times the trained one.

    RULER (Hsieh et al. 2024, arXiv 2404.06654) uses a fixed threshold at every length; this one is
    relative to the model's loss at the training length.
    """
    most = curve[trained].value / KEPT_FRACTION
    longest = 0
    for length in sorted(n for n in curve if n >= trained):
        if curve[length].value > most:
            break
        longest = length
    return longest
