"""The paired comparison of the encodings of a table."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from pe_bench.reporting.markdown import ABSENT, escape, markdown_table
from pe_bench.reporting.same_data import find_other_data
from pe_bench.reporting.tables import Table
from pe_bench.results.items import Items
from pe_bench.results.labels import find_label
from pe_bench.stats import comparison
from pe_bench.stats.comparison import MOST_LETTERS, Difference, SeedScores, describe_items
from pe_bench.stats.significance import FEWEST_SEEDS, LEVEL, smallest_flip_p

DEFAULT_REFERENCE = "rope"
FEWEST_ITEM_DEGREES = 9
"""With fewer, equal encodings differ too often (simulated in tests/test_comparison.py)."""

NO_LETTERS = (
    "The letters are left out: there are too few seeds for a test, or there would be more than "
    f"{MOST_LETTERS}."
)
DIFFERENCE_HEADER = ["95 % interval", "p", "p (sign flips)", "p (Holm)", "verdict at 5 %", "seeds"]


@dataclass(frozen=True)
class Comparison:
    """Differences between the encodings of a table.

    Attributes:
        reference: the encoding that others are compared with; empty if the table lacks it.
        to_reference: the difference of each other encoding to the reference, the best first.
        pairs: the differences of all pairs.
        ranks: best and worst rank of each encoding; empty if no difference is tested.
        letters: compact letter display; encodings that share one do not differ significantly.
            "" if no difference is tested.
        without_items: encodings whose items are unknown, so that their differences have the
            uncertainty from seeds only.
        fewest_degrees: smallest degrees of freedom of the items of an evaluation point; 0: all
            items are unknown.
    """

    reference: str
    to_reference: list[Difference]
    pairs: list[Difference]
    ranks: dict[str, tuple[int, int]]
    letters: dict[str, str]
    without_items: tuple[str, ...]
    fewest_degrees: int


def compare_table(table: Table, reference: str = DEFAULT_REFERENCE) -> Comparison:
    """Compare the encodings that a table ranks. The comparison of a table of times is empty."""
    if table.about.measures_time:  # seeds are repetitions of a measurement
        return Comparison("", [], [], {}, {}, (), 0)
    ranking = table.ranking.names
    scores = scores_of(table, ranking)
    reference = find_label(reference, ranking)
    others = [name for name in ranking if reference and name != reference]
    to_reference = comparison.compare(scores, [(name, reference) for name in others])
    pairs = comparison.compare_all(scores)
    ranks: dict[str, tuple[int, int]] = {}
    if any(difference.tested for difference in pairs):
        direction = table.ranking.higher_is_better
        ranks = comparison.rank_intervals(ranking, pairs, higher_is_better=direction)
    letters = comparison.letters(ranking, pairs)
    without: list[str] = list(ranking)
    if scores.resampled is not None:
        known = np.isfinite(scores.resampled[0]).any(1).tolist()  # (E,)
        without = [name for name, has in zip(ranking, known, strict=True) if not has]
    return Comparison(
        reference, to_reference, pairs, ranks, letters, tuple(without), scores.fewest_degrees
    )


def describe(table: Table, found: Comparison) -> str:
    """Return the differences to the reference in Markdown, with the basis of the comparison."""
    if not any(difference.has_interval for difference in found.pairs):
        return ""  # a single encoding, or a single seed without item scores
    rests_on = "\n".join(map(escape, describe_basis(found)))
    rows = difference_rows(table, found)
    return (
        "\n\n".join([markdown_table(rows[0], rows[1:], "lrrrrrlr"), rests_on]) if rows else rests_on
    )


def difference_rows(table: Table, found: Comparison) -> list[list[str]]:
    """Return heading and cells of the differences to the reference; empty with single seeds."""
    if not any(difference.seeds > 1 for difference in found.to_reference):
        return []
    digits = table.ranking.digits
    heading = f"minus {found.reference} ({table.ranking.metric.label})"
    rows = [["encoding", heading, *DIFFERENCE_HEADER]]
    for difference in found.to_reference:
        interval = ABSENT
        if difference.has_interval:
            interval = f"{difference.low:+.{digits}f} to {difference.high:+.{digits}f}"
        rows.append(
            [
                difference.first,
                f"{difference.value:+.{digits}f}",
                interval,
                show_p(difference.p_alone),
                show_p(difference.p_flips),
                show_p(difference.p_value) if difference.tested else ABSENT,
                _verdict(table, difference),
                str(difference.seeds),
            ]
        )
    return rows


def show_p(p_value: float) -> str:
    """Return a p-value with three decimals; a dash if there is none."""
    if math.isnan(p_value):
        return ABSENT
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"


def flatten(table: Table, found: Comparison) -> pd.DataFrame:
    """Return all differences of a table, as written to comparisons.csv."""
    families = {"all pairs": found.pairs, f"to {found.reference}": found.to_reference}
    rows = []
    for family, differences in families.items():
        for difference in differences:
            rows.append(
                {
                    "task": table.about.task,
                    "settings": table.about.settings_digest,
                    "subset": table.headline.subset,
                    "metric": table.headline.metric,
                    "family": family,
                    "first": difference.first,
                    "second": difference.second,
                    "difference": difference.value,
                    "ci_low": difference.low,
                    "ci_high": difference.high,
                    "p_alone": round(difference.p_alone, 6),
                    "p_flips": round(difference.p_flips, 6),
                    "p_holm": round(difference.p_value, 6),
                    "significant": difference.significant,
                    "seeds": difference.seeds,
                }
            )
    return pd.DataFrame(rows)


def _verdict(table: Table, difference: Difference) -> str:
    if not difference.tested:
        return "not tested"
    if not difference.significant:
        return "not significant"
    return "better" if (difference.value > 0) == table.ranking.higher_is_better else "worse"


def describe_basis(found: Comparison) -> list[str]:
    """Return how the differences were tested, and what few seeds cannot show, a line each."""
    seeds = max(difference.seeds for difference in found.pairs)
    source = _describe_source(found)
    if seeds < 2:
        return ["With one seed, differences between encodings cannot be tested."]
    if seeds < FEWEST_SEEDS:
        return [
            f"Differences are paired by seed and item. Intervals are over {source}, for each "
            f"difference alone. {seeds} seeds are too few for a test, which needs {FEWEST_SEEDS}."
        ]
    lines = [
        "Differences are paired by seed and item. Interval and p come from a t-test over "
        f"{source}, for each difference alone. p (sign flips) needs no normal distribution. p "
        "(Holm) is p corrected for the number of comparisons. A difference is significant if p "
        "(Holm) and, from six seeds on, p (sign flips) are at most 0.05. Encodings that share a "
        "letter do not differ significantly among all pairs, and ranks are the best and the worst "
        "possible ones. Among all pairs, p-values are corrected for the number of pairs, which is "
        "larger than the number of differences to the reference."
    ]
    if 0 < found.fewest_degrees < FEWEST_ITEM_DEGREES:
        lines.append(
            f"The items of an evaluation point come from so few documents ({found.fewest_degrees} "
            "degrees of freedom) that p may be too small."
        )
    if not any(found.letters.values()):
        lines.append(NO_LETTERS)
    if smallest_flip_p(seeds) > LEVEL:
        lines.append(f"Sign flips of {seeds} seeds cannot reach 0.05, so only the t-test is used.")
    return lines


def _describe_source(found: Comparison) -> str:
    """Return what the uncertainty of the differences comes from, in words."""
    if not found.fewest_degrees:
        return "seeds only, because item scores are unknown or come from a single document"
    source = "seeds and items"
    if found.without_items:
        names = ", ".join(found.without_items)
        source += f" (for {names}: seeds only, because their items are unknown or other ones)"
    return source


def headline_scores(table: Table, encodings: Sequence[str]) -> SeedScores:
    """Return the headline of each run, without item scores; partial means are left out."""
    headline = table.headline
    rows = table.rows[table.rows["status"] != "partial"]
    rows = rows[(rows["subset"] == headline.subset) & (rows["metric"] == headline.metric)]
    seeds = sorted(rows["seed"].unique())
    values = np.full((len(encodings), len(seeds)), np.nan)
    # Prefer a mean to the points of a curve; take the first of several numbers.
    columns = (rows["encoding"], rows["seed"], rows["length"].isna(), rows["value"])
    numbers: dict[tuple[str, int], float] = {}
    means: dict[tuple[str, int], float] = {}
    for encoding, seed, is_mean, value in zip(*columns, strict=True):
        (means if is_mean else numbers).setdefault((encoding, seed), value)
    for (encoding, seed), value in (numbers | means).items():
        if encoding in encodings:
            values[encodings.index(encoding), seeds.index(seed)] = value
    return SeedScores(list(encodings), values, seeds=seeds)


def scores_of(table: Table, encodings: Sequence[str]) -> SeedScores:
    """Return the headline of each run, also on resampled items.

    The items of an encoding are unknown if a run of it has no item scores, or other items than most
    encodings.
    """
    scores = headline_scores(table, encodings)
    runs: dict[str, dict[int, list[Items]]] = {}  # by encoding, then by index of the seed
    for record, items in zip(table.records, table.items, strict=True):
        if record.encoding not in encodings or record.seed not in scores.seeds:
            continue
        seed = list(scores.seeds).index(record.seed)
        if not np.isnan(scores.values[encodings.index(record.encoding), seed]):
            runs.setdefault(record.encoding, {})[seed] = _headline_points(table, items)
    paired = _find_paired(table, runs)
    places: list[tuple[int, int]] = []  # of each resampled run
    chosen: list[list[Items]] = []
    for name in paired:
        for seed, points in runs[name].items():
            places.append((encodings.index(name), seed))
            chosen.append(points)
    found = comparison.resample_items(chosen)
    if found is None:
        return scores
    drawn, degrees = found
    resampled: npt.NDArray[np.float64] = np.full((len(drawn), *scores.values.shape), np.nan)
    for run, (encoding, seed) in enumerate(places):
        resampled[:, encoding, seed] = drawn[:, run]
    counts = [int((point.cluster_sums()[1] > 0).sum()) for point in chosen[0]]
    return replace(
        scores, resampled=resampled, item_degrees=degrees, fewest_degrees=min(counts) - 1
    )


def _find_paired(table: Table, runs: Mapping[str, Mapping[int, list[Items]]]) -> list[str]:
    """Return the encodings whose runs all have the items that most encodings have."""
    other_data = find_other_data([one for one in table.records if one.encoding in runs])
    items_of = {}
    for name, own in runs.items():
        described = {describe_items(points) for points in own.values()}
        if len(described) == 1 and name not in other_data:
            items_of[name] = described.pop()
    counts = Counter(items for items in items_of.values() if items)
    if not counts:
        return []
    ((usual, _),) = counts.most_common(1)
    return [name for name, items in items_of.items() if items == usual]


def _headline_points(table: Table, items: list[Items]) -> list[Items]:
    """Return the evaluation points whose mean is the headline, in a fixed order."""
    wanted = (table.headline.subset, table.headline.metric)
    means: list[Items] = []
    others: list[Items] = []
    for point in items:
        named = [(p.subset, p.metric or point.metric, p.length) for p in point.groups]
        if (*wanted, None) in named:
            means.append(point)
        elif wanted in {key[:2] for key in named} or wanted == (point.subset, point.metric):
            others.append(point)
    points = means or others  # as for rows, prefer a mean to the points of a curve
    return sorted(points, key=lambda point: (point.subset, point.length or 0, point.second_axis))
