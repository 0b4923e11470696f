"""Does the order of encodings hold at other sizes of the model? Tables, notes and marks.

Tables of one task are compared if their settings differ only in the size of the model: width, heads
and layers, with the same channels per head. The engine has no concept of a size: options
such as `--model.width` make one, and a results folder may have any number of sizes.
`pe_bench.stats.sizes` has the statistics and the rule for the mark.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from pe_bench.reporting.markdown import ABSENT, Markdown, escape, markdown_table
from pe_bench.reporting.paired import headline_scores, scores_of
from pe_bench.reporting.tables import Table, make_tables
from pe_bench.reporting.task_summary import has_model_scores
from pe_bench.results.identity import digest
from pe_bench.results.reading import reading
from pe_bench.results.store import read_records
from pe_bench.stats.sizes import (
    FEWEST_ENCODINGS,
    SAME_ORDER,
    SEEDS_OF_AN_INTERVAL,
    Agreement,
    OrderVerdict,
    Reversal,
    Stability,
    complete_seeds,
    find_stability,
)
from pe_bench.system.files import slug

HEADING = "Sizes of the model"
SHAPE = ("layers", "heads", "kv_heads", "width", "mlp_width")
"""Settings of the model that make its size."""

EXPLAINED = (
    "Does the order of encodings hold at another size? Tables are compared if they differ only in "
    "the size of the model. Kendall's tau is the fraction of pairs of encodings in the same order "
    "minus the fraction in the opposite order; its 95 % interval comes from the error of the means "
    f"over seeds. stable: all intervals are at or above {SAME_ORDER:g}, at which 80 % of the pairs "
    "have the same order. changes: two encodings differ significantly in both directions, or an "
    f"interval is below {SAME_ORDER:g} and the seeds settle the order at both sizes. unknown: "
    "neither. Parameters are those of the model without its encoding."
)
SUMMARY = ["task", "mark", "compared sizes", "Kendall's tau", "95 % interval"]


@dataclass(frozen=True)
class Ladder:
    """The tables of a task at several sizes of the model.

    Attributes:
        key: digest of all settings except the size.
        tables: one for each size, the smallest first.
        encodings: encodings that all tables rank, the best at the largest size first.
        left_out: tables of other sizes, without which more encodings are in common.
    """

    key: str
    tables: tuple[Table, ...]
    encodings: tuple[str, ...]
    left_out: tuple[Table, ...] = ()

    @property
    def title(self) -> str:
        """The title of all tables."""
        return self.tables[0].title

    @property
    def name(self) -> str:
        """Stem of the file name of the figure, which a further size does not change."""
        return slug(f"sizes-{self.tables[0].task_name}-{self.key}")

    @cached_property
    def parameters(self) -> list[int]:
        """Number of parameters at each size, without those of the encodings."""
        return [table.parameters for table in self.tables]

    @cached_property
    def stability(self) -> Stability | None:
        """Whether the order is the same at all sizes; None without two common encodings."""
        if len(self.encodings) < 2:
            return None
        return find_stability([scores_of(table, self.encodings) for table in self.tables])

    @property
    def mark(self) -> OrderVerdict:
        """Whether the order of the encodings is stable."""
        return self.stability.mark if self.stability else "unknown"

    def seeds(self, index: int) -> int:
        """Return the number of seeds that all encodings have at a size."""
        scores = headline_scores(self.tables[index], self.encodings)
        return len(complete_seeds(scores.values).T)


def find_ladders(tables: Sequence[Table]) -> list[Ladder]:
    """Return the tasks that have tables at several sizes, in the order of the tables."""
    groups: dict[str, list[Table]] = {}
    for table in filter(has_model_scores, tables):
        if table.about.settings.get("model") and table.parameters > 0:
            groups.setdefault(digest(_without_size(table.about.settings)), []).append(table)
    ladders = []
    for key, group in groups.items():
        group.sort(key=lambda table: table.parameters)
        kept = _comparable(group)
        if kept[0].parameters < kept[-1].parameters:
            left_out = []
            for table in group:
                if all(table is not one for one in kept):
                    left_out.append(table)
            ladders.append(Ladder(key, tuple(kept), tuple(_in_common(kept)), tuple(left_out)))
    return ladders


def _comparable(tables: list[Table]) -> list[Table]:
    """Return the tables of the sizes that can be compared.

    If too few encodings are in common, as few sizes as possible are left out, such as that of an
    ablation with few encodings. If this does not help, all sizes are returned.
    """
    for count in range(len(tables), 1, -1):
        kept = max(combinations(tables, count), key=lambda some: len(_in_common(some)))
        if len(_in_common(kept)) >= FEWEST_ENCODINGS:
            return list(kept)
    return tables


def _in_common(tables: Sequence[Table]) -> list[str]:
    """Return the encodings that all tables rank, the best in the last one first."""
    ranked = [table.ranking.names for table in tables]
    found = []
    for name in ranked[-1]:
        if all(name in names for names in ranked):
            found.append(name)
    return found


def read_marks(folder: Path) -> dict[str, OrderVerdict]:
    """Return the mark of each title of tables that a results folder has at several sizes.

    The result is empty if the folder has no runs. If a title has several ladders with different
    marks, its mark is unknown.

    Raises:
        InputErrors: a file of the folder cannot be read.
    """
    if not read_records(folder):
        return {}
    marks: dict[str, OrderVerdict] = {}
    with reading(folder) as records:
        for ladder in find_ladders(make_tables(records)):
            agrees = marks.setdefault(ladder.title, ladder.mark) == ladder.mark
            if not agrees:
                marks[ladder.title] = "unknown"
    return marks


def describe_sizes(ladders: Sequence[Ladder], figures: Sequence[str] = ()) -> str:
    """Return the section of leaderboard.md; empty without ladders.

    Args:
        ladders: tasks with several sizes.
        figures: path of the figure of each ladder; empty if it has none.
    """
    if not ladders:
        return ""
    summary = markdown_table(SUMMARY, summary_rows(ladders), "lllrr")
    parts = [f"## {HEADING}", escape(EXPLAINED), summary]
    for index, ladder in enumerate(ladders):
        header, *rows = score_rows(ladder)
        for row in rows:
            if row[0] in ladder.tables[-1].ranking.shown_baselines:
                row[0] = Markdown(f"*{escape(row[0])}*")
        parts.append(f"### {escape(ladder.title)}")
        parts.append("\n".join(map(escape, describe_ladder(ladder))))
        parts.append(markdown_table(header, rows, "l" + "r" * len(ladder.tables)))
        if figures and figures[index]:
            parts.append(f"![{escape(ladder.title)}: scores by size]({figures[index]})")
    return "\n\n".join(parts)


def summary_rows(ladders: Sequence[Ladder]) -> list[list[str]]:
    """Return a row for each two sizes that are compared; the first of a task has its mark."""
    rows = []
    for ladder in ladders:
        begin = [ladder.title, ladder.mark]
        if ladder.stability is None:
            rows.append([*begin, ABSENT, ABSENT, ABSENT])
            continue
        for one in ladder.stability.agreements:
            both = f"{ladder.parameters[one.first]:,} and {ladder.parameters[one.second]:,}"
            rows.append([*begin, both, _show_tau(one.tau), _show_interval(one)])
            begin = ["", ""]
    return rows


def score_rows(ladder: Ladder) -> list[list[str]]:
    """Return heading and cells of the scores at each size.

    Encodings that some sizes lack follow those that are compared, and baselines come last.
    """
    last = ladder.tables[-1]
    label = last.ranking.metric.label
    header = [label, *(f"{number:,} parameters" for number in ladder.parameters)]
    rows = []
    others = [name for name in _all_encodings(ladder) if name not in ladder.encodings]
    for name in [*ladder.encodings, *others]:
        rows.append([name, *(show_score(table, name) for table in ladder.tables)])
    for name in last.ranking.shown_baselines:
        rows.append([name, *(_show_baseline(table, name) for table in ladder.tables)])
    return [header, *rows]


def show_score(table: Table, encoding: str) -> str:
    """Return a mean with its interval over seeds, and how many seeds learned if not all did.

    A dash stands for an encoding that the table does not rank.
    """
    if encoding not in table.ranking.names:
        return ABSENT
    scores = table.ranking.scores
    row = scores[scores["encoding"] == encoding].iloc[0]
    digits = _digits(table)
    text = f"{row['mean']:.{digits}f}"
    if not math.isnan(row["ci_low"]):
        text += f" ({row['ci_low']:.{digits}f} to {row['ci_high']:.{digits}f})"
    learned, seeds = table.learned(encoding), table.seeds(encoding)
    return text if learned == seeds else f"{text}, {learned} of {seeds} learned"


def describe_ladder(ladder: Ladder) -> list[str]:
    """Return the reason for the mark, and what it does not include, a line each."""
    lines = [f"{ladder.mark.capitalize()}: {explain_mark(ladder)}"]
    if ladder.stability:
        lines += [_describe_reversal(ladder, one) for one in ladder.stability.reversals]
    counts = [ladder.seeds(index) for index in range(len(ladder.tables))]
    seeds = str(counts[0]) if len(set(counts)) == 1 else ", ".join(map(str, counts))
    lines.append(f"Seeds at each size, which all of these encodings have: {seeds}.")
    for table in ladder.left_out:
        lines.append(
            f"Left out: {table.parameters:,} parameters, with too few encodings in common."
        )
    for index, table in enumerate(ladder.tables):
        size = f"{ladder.parameters[index]:,} parameters"
        missing = [name for name in _all_encodings(ladder) if name not in table.ranking.names]
        if missing:
            lines.append(f"Not compared: {', '.join(missing)}, without a score at {size}.")
        more = [name for name in ladder.encodings if table.seeds(name) > counts[index]]
        if more:
            lines.append(f"More seeds at {size}, which tau does not use: {', '.join(more)}.")
        failed = [name for name in ladder.encodings if not table.learned(name)]
        if failed:
            lines.append(
                f"No seed learned the training task at {size}: {', '.join(failed)}. Such a score "
                "is one of training, not of positions."
            )
    return lines


def explain_mark(ladder: Ladder) -> str:
    """Return the reason for the mark of a ladder, one sentence."""
    found = ladder.stability
    if found is None:
        return "the sizes have fewer than two encodings in common."
    if found.reversals:
        return "encodings differ significantly in both directions."
    if found.mark == "changes":
        return (
            f"an interval of tau is below {SAME_ORDER:g}, and the order at both sizes is settled."
        )
    if found.mark == "stable":
        return f"all intervals of tau are at or above {SAME_ORDER:g}."
    if len(ladder.encodings) < FEWEST_ENCODINGS:
        return f"an order takes {FEWEST_ENCODINGS} encodings in common."
    if any(ladder.seeds(index) < SEEDS_OF_AN_INTERVAL for index in range(len(ladder.tables))):
        return f"an interval takes {SEEDS_OF_AN_INTERVAL} seeds at each size."
    if any(math.isnan(one.tau) for one in found.agreements):
        return "all encodings have the same score at one size."
    return "the seeds do not settle it."


def _describe_reversal(ladder: Ladder, found: Reversal) -> str:
    """Return which of two encodings is better at which size."""
    table = ladder.tables[-1]
    said = []
    for index, difference in zip(found.indices, (found.first, found.second), strict=True):
        first_is_better = (difference.value > 0) == table.ranking.higher_is_better
        better = found.encodings[0 if first_is_better else 1]
        amount = f"{abs(difference.value):.{_digits(table)}f} {table.ranking.unit}"
        said.append(f"{better} is better by {amount} at {ladder.parameters[index]:,} parameters")
    return f"{' and '.join(found.encodings)}: {', '.join(said)}."


def _all_encodings(ladder: Ladder) -> list[str]:
    return sorted({name for table in ladder.tables for name in table.encodings})


def _without_size(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the proportions of heads in place of the size of the model.

    The same holds for the task that this one starts from, whose model it continues.
    """
    found = dict(settings)
    model = dict(settings.get("model") or {})
    heads = max(1, model.get("heads", 1))
    model["head_dim"] = model.get("width", 0) / heads
    model["queries_of_a_key"] = heads / max(1, model.get("kv_heads", heads))
    found["model"] = {name: value for name, value in model.items() if name not in SHAPE}
    if settings.get("start"):
        found["start"] = _without_size(settings["start"])
    return found


def _show_baseline(table: Table, name: str) -> str:
    """Return the headline of a baseline."""
    found = table.ranking.baselines.get(name)
    return ABSENT if found is None else f"{found:.{_digits(table)}f}"


def _digits(table: Table) -> int:
    """Return the decimals of scores: one for percentages."""
    return 1 if table.ranking.metric.is_percent else 3


def _show_tau(tau: float) -> str:
    return ABSENT if math.isnan(tau) else f"{tau:+.2f}"


def _show_interval(one: Agreement) -> str:
    """Return the interval of a tau."""
    return ABSENT if math.isnan(one.low) else f"{one.low:+.2f} to {one.high:+.2f}"
