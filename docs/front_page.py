"""Write the figure and the main table of README.md from committed results.

    python docs/front_page.py

`tests/test_front_page.py` fails if README and results disagree.
"""

import hashlib
import io
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from pe_bench.reporting.families import MAIN_SET, family_of_task, in_main_set
from pe_bench.reporting.heatmap import draw_heatmap
from pe_bench.reporting.markdown import Markdown, markdown_table, replace_block
from pe_bench.reporting.paired import DEFAULT_REFERENCE
from pe_bench.reporting.panels import STYLE, set_title
from pe_bench.reporting.sentences import in_words
from pe_bench.reporting.sizes import read_marks
from pe_bench.reporting.tables import Table, read_tables
from pe_bench.reporting.task_summary import (
    TaskSummary,
    count_families,
    find_end,
    show_interval,
    summary_of,
)
from pe_bench.results.views import Heatmap
from pe_bench.stats.ranking import Mean, differences_over_families
from pe_bench.system.files import write_atomic

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FIGURE = ROOT / "docs" / "front_page.png"
RESULTS = ROOT / "results" / "quick"
SIZES = ROOT / "results" / "sizes"
MAPPED = "addition"  # the task of the figure
MESSAGE = (
    "Adding two numbers: trained inside the dashed line, tested beyond. All encodings share the "
    "decoder and the training"
)
NUMBERS = "numbers"  # key of the figure's metadata
BLOCK = "main table"
WINDOWED = "rnope-swa"  # which differs from the others by more than its positions


def main() -> None:
    """Write the figure and the table."""
    tables = read_tables(RESULTS)
    write_atomic(FIGURE, encode(*draw(tables)))
    text = README.read_text(encoding="utf-8")
    write_atomic(README, replace_block(text, BLOCK, compose(tables)))


def draw(tables: Sequence[Table]) -> tuple[Figure, str]:
    """Return the figure, best encodings first, and a digest of the numbers in it."""
    (table,) = (table for table in tables if table.about.task == MAPPED)
    view = table.views(Heatmap)[0]
    encodings = table.ranking.order
    figure = draw_heatmap(table, view, encodings)
    seeds = max(table.seeds(encoding) for encoding in encodings)
    floor = table.ranking.best_baseline
    assert floor is not None
    given = table.describe_given([view.metric])
    set_title(
        figure,
        f"{MESSAGE}. Means of {seeds} seeds, the best first. White line on the colour bar: the "
        f"best baseline without a model ({floor:.1f} %). {given[0].upper()}{given[1:]}",
    )
    (bar,) = (axis for axis in figure.axes if axis.get_label() == "<colorbar>")
    bar.axhline(floor, color="white", linewidth=2)
    numbers = table.numbers(view.subset, view.metric)[["encoding", "length", "second_axis", "mean"]]
    text = numbers.to_csv(index=False, float_format="%.6g") + " ".join(encodings)
    return figure, hashlib.sha256(text.encode()).hexdigest()


def encode(figure: Figure, digest: str) -> bytes:
    """Return a figure as a PNG file that contains the digest of its numbers."""
    content = io.BytesIO()
    with rc_context(STYLE):
        metadata = {NUMBERS: digest, "Software": None}
        figure.savefig(content, format="png", dpi=110, bbox_inches="tight", metadata=metadata)
    return content.getvalue()


def compose(tables: Sequence[Table]) -> str:
    """Return the main table, with a column for each task of the main set, and its explanation."""
    summary = summary_of(in_main_set(tables))
    of_tasks = sorted(summary.tables, key=_family_first)
    compared = len(summary.encodings) - 1
    header = [
        "",
        "mean score ↑ (95 % interval over families)",
        f"difference from {DEFAULT_REFERENCE} (corrected for {compared} comparisons)",
        *(_heading(table) for table in of_tasks),
    ]
    over_reference = compare_over_families(summary)
    rows = []
    for one in summary.standings:
        mean = f"{one.score.value:.2f} ({show_interval(one.score, 2)})"
        difference = _difference(over_reference.get(one.encoding))
        scores = [_score(table, one.encoding) for table in of_tasks]
        rows.append([one.encoding, mean, difference, *scores])
    for name in find_others(summary):
        rows.append([name, "", "", *(_score(table, name) for table in of_tasks)])
    floors = [_show(table, table.ranking.best_baseline) for table in of_tasks]
    rows.append([Markdown("*best baseline*"), "0.00", "", *floors])
    ends = [find_end(table) for table in of_tasks]
    shown_ends = ["" if end is None else f"{end:g}" for end in ends]
    rows.append([Markdown("*ceiling*"), "1.00", "", *shown_ends])
    shown = markdown_table(header, rows, "l" + "r" * (len(header) - 1))
    return f"{shown}\n\n{describe(summary)}"


def find_others(summary: TaskSummary) -> list[str]:
    """Return the encodings that most tasks rank, but not all, in alphabetical order."""
    counts = Counter(name for table in summary.tables for name in table.ranking.names)
    most = len(summary.tables) / 2
    return sorted(name for name, n in counts.items() if most < n < len(summary.tables))


def compare_over_families(
    summary: TaskSummary, *, cut: bool = True, without_seed: int | None = None
) -> dict[str, Mean]:
    """Return the differences from the reference, corrected for their number.

    Args:
        summary: the tasks of the main set.
        cut: whether the score of a seed below the best baseline counts as 0.
        without_seed: a seed to leave out.
    """
    tasks = []
    for task in summary.tasks:
        kept = [seed != without_seed for seed in task.scores.seeds]
        values = task.scores.values[:, kept]  # (E, S)
        seeds = [seed for seed in task.scores.seeds if seed != without_seed]
        scores = replace(task.scores, values=values, resampled=None, seeds=seeds)
        tasks.append(replace(task, scores=scores))
    others = len(summary.encodings) - 1
    return differences_over_families(tasks, DEFAULT_REFERENCE, comparisons=others, cut=cut)


def find_decisive_seeds(summary: TaskSummary, encoding: str) -> list[int]:
    """Return the seeds without which the interval of a difference contains 0."""
    seeds = sorted({seed for task in summary.tasks for seed in task.scores.seeds})
    found = []
    for seed in seeds:
        mean = compare_over_families(summary, without_seed=seed)[encoding]
        if mean.low <= 0 <= mean.high:
            found.append(seed)
    return found


def describe(summary: TaskSummary) -> str:
    """Return the sentences below the table."""
    seeds = {table.seeds(name) for table in summary.tables for name in summary.encodings}
    shown = {*summary.encodings, *find_others(summary)}
    records = [record for table in summary.tables for record in table.records]
    sizes = [r.parameters for r in records if r.parameters and r.encoding in shown]
    families = count_families(summary.tables)
    said = [
        f"Scores are means of {_any_of(seeds)} seeds on longer sequences than in training; models "
        f"have {_range(sizes)} parameters. (k of {_any_of(seeds)}): only k seeds learned the task."
        f"{_describe_given(summary)}",
        describe_search(summary),
        "Mean score: 0 is a task's best baseline (lower scores of a seed are clipped), 1 is the "
        f"ceiling; the {families} families have equal weight.",
    ]
    if WINDOWED in shown:
        said.append(f"`{WINDOWED}` also limits the attention of its first layers to a window.")
    if find_others(summary):
        said.append("Encodings that were not run on every task have no mean score.")
    said += [
        f"Intervals are wide and treat the {families} families as a random sample, although the "
        "tasks were [chosen after first results](docs/tasks.md#the-main-set). "
        f"{describe_differences(summary)}",
        "[Tests over seeds and items](results/quick/leaderboard.md) compare all pairs.",
        describe_sizes(summary),
        "Do not choose an encoding for a large model from this table.",
    ]
    return "**How to read it:**\n\n" + "\n".join(f"- {sentences}" for sentences in said)


def describe_search(summary: TaskSummary) -> str:
    """Return how learning rates were chosen, with the tasks of an earlier search."""
    earlier: list[str] = []
    for table in sorted(summary.tables, key=_family_first):
        tune = table.about.settings["tune"]
        if tune.get("version", 1) == 1:
            assert len(tune["seeds"]) == 1, table.about.task
            earlier.append(table.about.task)
    less = ""
    if earlier:
        less = f" ({in_words(earlier)}: learning rate only, one tuning seed)"
    return (
        "In each task, the learning rate of every encoding was tuned by the same "
        "[rule](docs/findings.md#learning-rates-and-tests), and for "
        f"some encodings one more hyperparameter{less}. On `passkey`, the rule "
        "[affects the order](docs/findings.md#summary)."
    )


def describe_differences(summary: TaskSummary) -> str:
    """Return which differences from the reference would also be expected on other families."""
    found = compare_over_families(summary)
    clear = [name for name, mean in found.items() if mean.low > 0 or mean.high < 0]
    if not clear:
        return (
            f"All intervals of the difference from `{DEFAULT_REFERENCE}` contain 0, so the order "
            "may differ on other tasks."
        )
    names = in_words([f"`{name}`" for name in clear])
    said = f"only that of {names} has an interval that excludes"
    if len(clear) > 1:
        said = f"only those of {names} have intervals that exclude"
    limits = _describe_limits(summary, clear)
    return f"Of the differences from `{DEFAULT_REFERENCE}`, {said} 0.{limits}"


def _describe_limits(summary: TaskSummary, clear: Sequence[str]) -> str:
    """Return under which other choices the interval of the only clear difference contains 0."""
    if len(clear) > 1:
        return ""
    reasons = []
    uncut = compare_over_families(summary, cut=False)[clear[0]]
    if uncut.low <= 0 <= uncut.high:
        reasons.append("without clipping")
    seeds = find_decisive_seeds(summary, clear[0])
    if seeds:
        reasons.append(f"without seed {_any_of(seeds)}")
    if not reasons:
        return ""
    first, *others = reasons
    return f" {', or '.join([first.capitalize(), *others])}, it contains 0."


def describe_sizes(summary: TaskSummary) -> str:
    """Return for each task whether the order of encodings holds at other sizes of the model."""
    marks = read_marks(SIZES)
    words = {
        "stable": "stable",
        "changes": "different",
        "unknown": "unknown",
        None: "not measured",
    }
    trained = {name for table in read_tables(SIZES) for name in table.encodings}
    tasks: dict[str | None, list[str]] = {mark: [] for mark in words}
    for table in sorted(summary.tables, key=_family_first):
        mark, said = marks.get(table.title), table.about.task
        below = len(trained.intersection(table.ranking.below_baselines))
        if mark == "stable" and below:
            said += f" ({below} of them worse than the {table.ranking.shown_baselines[-1]})"
        tasks[mark].append(said)
    said = [f"{word} for {in_words(tasks[mark])}" for mark, word in words.items() if tasks[mark]]
    if len(said) > 1 and tasks[None]:
        said[-1] = "not measured for other tasks"
    page = "docs/findings.md#other-sizes-of-the-model"
    return (
        f"At [other model sizes]({page}), the order of {len(trained)} of these encodings is "
        f"{'; '.join(said)}."
    )


def _difference(mean: Mean | None) -> str:
    """Return a difference over families with its interval."""
    return "" if mean is None else f"{mean.value:+.2f} ({mean.low:+.2f} to {mean.high:+.2f})"


def _family_first(table: Table) -> tuple[int, str]:
    return list(MAIN_SET).index(family_of_task(table.task_name)), table.about.task


def _heading(table: Table) -> str:
    family = family_of_task(table.task_name)
    context = re.fullmatch(r"(\d+)x-context", table.headline.subset)
    where = f", context of {context[1]} times the training length" if context else ""
    return f"{family}: {table.about.task} ({table.ranking.metric.label}{where})"


def _score(table: Table, encoding: str) -> str:
    """Return the mean, and the number of seeds that learned if not all did; "" if not ranked."""
    if encoding not in table.ranking.names:
        return ""
    scores = table.ranking.scores
    (mean,) = scores[scores["encoding"] == encoding]["mean"]
    learned, seeds = table.learned(encoding), table.seeds(encoding)
    shown = _show(table, mean)
    return shown if learned == seeds else f"{shown} ({learned} of {seeds})"


def _show(table: Table, score: float | None) -> str:
    """Return a score with the decimals of its task."""
    if score is None:
        return ""
    decimals = 1 if table.ranking.scores["mean"].abs().max() >= 10 else 3
    return f"{score:.{decimals}f}"


def _describe_given(summary: TaskSummary) -> str:
    """Return what a model is given besides the prompt, for each metric with such an input."""
    given = {}
    for table in summary.tables:
        metric = table.ranking.metric
        if metric.given:
            given[metric.title] = metric.given
    return "".join(f" {title.capitalize()}: given {what}." for title, what in given.items())


def _any_of(values: Collection[int]) -> str:
    """Return numbers as in "5, 7 or 8"."""
    *first, last = map(str, sorted(values))
    return f"{', '.join(first)} or {last}" if first else last


def _range(values: Collection[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


if __name__ == "__main__":
    main()
