"""Write the tables in docs/tape.md.

    python docs/tape_table.py

The numbers come from results/. `tests/test_tape_page.py` fails if page and results disagree.
"""

import math
import runpy
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

from pe_bench.config import show_rate
from pe_bench.registry import plugins
from pe_bench.reporting.families import in_main_set
from pe_bench.reporting.markdown import ABSENT, Markdown, markdown_table, replace_block
from pe_bench.reporting.paired import compare_table, scores_of, show_p
from pe_bench.reporting.sentences import describe_mean, in_words
from pe_bench.reporting.tables import Table, read_tables
from pe_bench.reporting.task_summary import count_families, summary_of, task_scores
from pe_bench.reporting.verdicts import Verdict, Verdicts, compare_pair, tables_to_compare
from pe_bench.results.views import Headline
from pe_bench.stats.comparison import Difference, SeedScores, compare, compare_asked
from pe_bench.stats.ranking import Mean, average_over, differences_over_families
from pe_bench.system.files import write_atomic

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tape.md"
WIDTH = 110  # characters of a line of the page
PAIR = ("tape", "rope")
LAYERS = 4  # of the models with updates in some layers only
REPEATED = "chained-facts"  # results/tape has it with more seeds than results/quick
DEEPER = {"mqar": (3, 6), "addition": (6,)}  # layers of models that are compared by depth
BLOCK = "tape against rope"
TUNED, EQUAL_RATES, BY_LAYER = "ablations", "ablations at equal rates", "ablations by layer"
ON_ADDITION, ON_PERPLEXITY = "ablations on addition", "ablations on perplexity"
SETTINGS = "mqar in other settings"
ADDITION_SETTINGS = "addition in other settings"
PERPLEXITY_SETTINGS = "perplexity in other settings"
EIGHT_SEEDS = "chained-facts with eight seeds"
FACTORS = "learning rate of the weights of TAPE"
FAR = Headline("accuracy", "far")
LONGER = Headline("accuracy", "longer")
GAP = 128  # tokens between four pairs and their only query
TRAINED_CONTEXT = Headline("bits_per_byte", "1x-context")
EXTENDED = "extension"
COST = "cost"
STATES = "sizes of states"
ABLATED = ["p", "p (Holm)", "learned"]
HEADER = [
    *("task", "best baseline", "tape", "rope", "difference", "95 % interval"),
    *("p", "p (Holm)", "verdict", "seeds", "learned (tape, rope)", "rates (tape, rope)"),
]
COLUMNS = "l" + "r" * 7 + "l" + "r" * 3


def main() -> None:
    """Write the tables."""
    text = PAGE.read_text(encoding="utf-8")
    found = [read(folder) for folder in ("quick", "scrolls")]
    text = replace_block(text, BLOCK, compose(found, read_main_set()))
    repeated = markdown_table(HEADER, [cells(read_repeated())], COLUMNS)
    text = replace_block(text, EIGHT_SEEDS, repeated)
    for name, tables in read_ablations().items():
        text = replace_block(text, name, compose_ablations(tables))
    text = replace_block(text, FACTORS, compose_factors(read_factors()))
    text = replace_block(text, SETTINGS, compose_settings(read_settings()))
    text = replace_block(text, ADDITION_SETTINGS, compose_addition(read_addition_settings()))
    perplexity = compose_perplexity(read_perplexity_settings())
    text = replace_block(text, PERPLEXITY_SETTINGS, perplexity)
    text = replace_block(text, EXTENDED, compose_extension(read_extension()))
    text = replace_block(text, COST, compose_cost(read_cost()))
    text = replace_block(text, STATES, compose_states())
    write_atomic(PAGE, text)


def read(folder: str) -> Verdicts:
    """Return the comparison on the tasks of a folder of results/."""
    return compare_pair(tables_to_compare(read_tables(ROOT / "results" / folder)), *PAIR)


def read_repeated() -> Verdict:
    """Return `REPEATED` of results/tape, corrected with the other tasks of results/quick."""
    (repeated,) = [t for t in read_tables(ROOT / "results" / "tape") if t.about.task == REPEATED]
    tables = tables_to_compare(read_tables(ROOT / "results" / "quick"))
    others = [table for table in tables if table.about.task != REPEATED]
    assert len(others) == len(tables) - 1
    verdicts = compare_pair([*others, repeated], *PAIR).tasks
    return next(verdict for verdict in verdicts if verdict.table is repeated)


def read_main_set() -> Mean:
    """Return the difference of the mean scores over the families of the main set."""
    summary = summary_of(in_main_set(read_tables(ROOT / "results" / "quick")))
    return differences_over_families(summary.tasks, PAIR[1])[PAIR[0]]


def read_ablations() -> dict[str, list[Table]]:
    """Return the tables of results/tape with models trained from scratch, by their block."""
    blocks = (TUNED, EQUAL_RATES, ON_ADDITION, ON_PERPLEXITY, BY_LAYER)
    found: dict[str, list[Table]] = {block: [] for block in blocks}
    for table in read_tables(ROOT / "results" / "tape"):
        settings = table.about.settings
        if table.about.adaptation is not None or factor_of(table) != 1:
            continue
        if table.about.task == REPEATED:
            continue
        if not settings.get("tune"):
            found[EQUAL_RATES].append(table)
        elif table.about.task == "addition":
            if not is_deeper(table):
                found[ON_ADDITION].append(table)
        elif table.about.task == "perplexity":
            found[ON_PERPLEXITY] += [_ranked_by(table, TRAINED_CONTEXT), table]
        elif layers_of(table) == LAYERS:
            found[BY_LAYER].append(table)
        elif not is_deeper(table):
            found[TUNED].append(table)
    return found


def read_factors() -> dict[str, list[Table]]:
    """Return the tables of `tape` with a learning rate of 1e-3 and several factors, by task.

    The tables of a task are sorted by the factor of the learning rate of the encoding's weights.
    The first one has the factor 1, and also RoPE.
    """
    ablations = read_ablations()
    found = {}
    # The last table of `mqar` has the same version of torch as those with other factors.
    for table in [*ablations[TUNED], *ablations[ON_ADDITION], *ablations[EQUAL_RATES]]:
        if rates(table, PAIR[0]) == rates(table, PAIR[1]) == "1e-3":
            found[table.about.task] = [table]
    for table in read_tables(ROOT / "results" / "tape"):
        if factor_of(table) != 1:
            assert rates(table, PAIR[0]) == "1e-3"
            found[table.about.task].append(table)
    return {task: sorted(tables, key=factor_of) for task, tables in found.items()}


def factor_of(table: Table) -> float:
    """Return the factor of the learning rate of the encoding's weights."""
    return float(table.about.settings["train"].get("encoding_lr_factor", 1))


def read_settings() -> dict[str, Table]:
    """Return the tables of `mqar` with TAPE and RoPE, by the setting that distinguishes them."""
    ablations = read_ablations()
    tables = [*read_sizes("mqar"), *ablations[BY_LAYER]]
    tables.sort(key=lambda table: (layers_of(table), table.about.settings["model"]["width"]))
    found = {}
    for table in [*tables, *ablations[EQUAL_RATES]]:
        settings = table.about.settings
        name = describe_model(table)
        if not settings.get("tune"):
            name += f", both at {show_rate(settings['train']['lr'])}"
        found[name] = table
    return found


def read_addition_settings() -> dict[str, Table]:
    """Return the tables of `addition` with TAPE and RoPE, by the size of the models."""
    return {describe_model(table): table for table in read_sizes("addition")}


def read_perplexity_settings() -> dict[str, Table]:
    """Return the tables of `perplexity` with TAPE and RoPE, by the size of the models."""
    return {describe_model(table): table for table in read_sizes("perplexity")}


def read_sizes(task: str) -> list[Table]:
    """Return the tables of a task by width, and then those with more layers."""
    tables = [t for t in read_tables(ROOT / "results" / "sizes") if t.about.task == task]
    tables.sort(key=lambda table: table.parameters)
    for table in read_tables(ROOT / "results" / "tape"):
        if table.about.task == task and is_deeper(table):
            tables.append(table)
    return tables


def is_deeper(table: Table) -> bool:
    """Return whether the models have more layers than those of the preset."""
    return layers_of(table) in DEEPER.get(table.about.task, ())


def describe_model(table: Table) -> str:
    """Return the width and the number of layers, and the steps if they are not the preset's."""
    settings = table.about.settings
    said = f"width {settings['model']['width']}, {layers_of(table)} layers"
    steps = settings["train"]["steps"]
    preset = plugins.load("task", table.about.task).cls.presets[table.about.preset]
    return said if steps == preset.train.steps else f"{said}, {steps:,} steps"


def read_extension() -> list[Table]:
    """Return the tables of perplexity and passkeys of results/extension."""
    tables = {table.about.task: table for table in read_tables(ROOT / "results" / "extension")}
    return [tables["perplexity"], tables["passkey"]]


def read_cost() -> dict[str, Table]:
    """Return the tables of results/efficiency, by preset."""
    return {table.about.preset: table for table in read_tables(ROOT / "results" / "efficiency")}


def layers_of(table: Table) -> int:
    """Return the number of layers of the models."""
    return int(table.about.settings["model"]["layers"])


def compose(found: Sequence[Verdicts], main_set: Mean) -> str:
    """Return the table, and the means over the first folder's tasks and over the main set."""
    rows = [cells(verdict) for verdicts in found for verdict in verdicts.tasks]
    mean = found[0].mean
    assert mean is not None
    tables = [verdict.table for verdict in found[0].tasks]
    over = differences_over_families(summary_of(tables).tasks, PAIR[1])[PAIR[0]]
    every = [verdict.table for verdicts in found for verdict in verdicts.tasks]
    other_rates, partly = [], []
    for table in every:
        chosen = [rates(table, name) for name in PAIR]
        if chosen[0] != chosen[1]:
            has_models = any(" and " in one for one in chosen)  # one for each subset
            (partly if has_models else other_rates).append(f"`{table.about.task}`")
    sentences = (
        f"For `{PAIR[0]}` and `{PAIR[1]}`, the searches chose different learning rates in "
        f"{in_words(other_rates)}, and for one of two models in {in_words(partly)}. This may "
        "explain differences on these tasks.",
        f"In the mean score over the families of the [main set](tasks.md#the-main-set), from 0 to "
        f"1, the difference is {main_set.value:+.2f}; its 95 % interval, over families and "
        f"not corrected, is {main_set.low:+.2f} to {main_set.high:+.2f}. We also compared the "
        f"mean over the {count_families(tables)} families of the {len(tables)} tasks of "
        f"`results/quick`, post hoc. {describe_mean(mean, 1)} This interval and the test are over "
        f"seeds and items. {describe_largest(tables)} {describe_other_means(tables)} Over the "
        f"families, the 95 % interval is {over.low:+.3f} to {over.high:+.3f}.",
    )
    shown = markdown_table(HEADER, rows, COLUMNS)
    filled = [textwrap.fill(part, WIDTH, break_on_hyphens=False) for part in sentences]
    return "\n\n".join([shown, *filled])


def describe_largest(tables: Sequence[Table]) -> str:
    """Return which family contributes most to the mean, and how much."""
    gains: dict[str, list[float]] = {}
    for task in summary_of(tables).tasks:
        scores = task.normalise()
        means = np.nanmean(scores.values, axis=1)
        of = dict(zip(scores.encodings, means, strict=True))
        gains.setdefault(task.family, []).append(of[PAIR[0]] - of[PAIR[1]])
    parts = {family: fmean(gain) / len(gains) for family, gain in gains.items()}
    largest = max(parts, key=lambda family: abs(parts[family]))
    return f"The largest part, {parts[largest]:+.3f}, comes from the task family *{largest}*."


def describe_other_means(tables: Sequence[Table]) -> str:
    """Return the mean over the tasks with equal learning rates, and the mean without a limit."""
    tasks = [task_scores(table, PAIR) for table in tables]
    equal = []
    for table, task in zip(tables, tasks, strict=True):
        if rates(table, PAIR[0]) == rates(table, PAIR[1]):
            equal.append(task)
    (of_equal,) = compare(average_over(equal), [PAIR])
    (uncut,) = compare(average_over(tasks, cut=False), [PAIR])
    return (
        f"Over the {len(equal)} tasks with equal learning rates, the mean is {_with_p(of_equal)}. "
        "A score below the best baseline counts as 0; if it counts as it is, the mean "
        f"is {_with_p(uncut)}."
    )


def _with_p(one: Difference) -> str:
    """Return a difference of mean scores with its interval and p-value."""
    interval = f"{one.low:+.3f} to {one.high:+.3f}"
    return f"{one.value:+.3f} ({interval}; p = {show_p(one.p_alone)})"


def cells(verdict: Verdict) -> list[str]:
    """Return a row of the table."""
    table, difference = verdict.table, verdict.difference
    digits = _decimals(table)
    floor = table.ranking.best_baseline
    better = "better" if verdict.first_is_better else "worse"
    return [
        f"{table.about.task} ({table.ranking.metric.label})",
        "" if floor is None else f"{floor:.{digits}f}",
        f"{verdict.first:.{digits}f}",
        f"{verdict.second:.{digits}f}",
        f"{difference.value:+.{digits}f}",
        f"{difference.low:+.{digits}f} to {difference.high:+.{digits}f}",
        Markdown(show_p(difference.p_alone)),  # mkdocs would show the backslash of an escaped "<"
        Markdown(show_p(difference.p_value)),
        better if difference.significant else "not significant",
        str(difference.seeds),
        learned(table),
        ", ".join(rates(table, name) for name in PAIR),
    ]


def compose_ablations(tables: Sequence[Table]) -> str:
    """Return the table of the ablations: scores, and differences to TAPE."""
    header: list[str] = ["encoding"]
    for table in tables:
        settings = table.about.settings
        rate = "" if settings.get("tune") else f" at {show_rate(settings['train']['lr'])}"
        unit = "%"
        if not table.ranking.metric.is_percent:
            unit = f"{table.headline.subset}, {table.ranking.metric.label}"
        header += [f"{table.about.task}{rate}, {unit}", Markdown("minus `tape`"), *ABLATED]
    compared = [compare_table(table, "tape").to_reference for table in tables]
    rows = []
    for name in sorted({name for table in tables for name in table.encodings}):
        row: list[str] = [Markdown(f"`{name}`")]
        for table, differences in zip(tables, compared, strict=True):
            row += _ablation(table, differences, name)
        rows.append(row)
    floors: list[str] = [Markdown("*best baseline*")]
    for table in tables:
        floor = table.ranking.best_baseline
        floors += [ABSENT if floor is None else f"{floor:.{_decimals(table)}f}", *[ABSENT] * 4]
    return markdown_table(header, [*rows, floors], "l" + "r" * 5 * len(tables))


def _ablation(table: Table, differences: Sequence[Difference], name: str) -> list[str]:
    """Return the cells of an encoding on a task."""
    if name not in table.encodings:
        return [ABSENT] * 5
    scores = table.ranking.scores
    mean = float(scores["mean"][scores["encoding"] == name].iloc[0])
    count = f"{table.learned(name)} of {table.seeds(name)}"
    digits = _decimals(table)
    for found in differences:
        if found.first == name:
            values = [f"{value:+.{digits}f}" for value in (found.value, found.low, found.high)]
            interval = f"{values[0]} ({values[1]} to {values[2]})"
            p_values = [Markdown(show_p(p)) for p in (found.p_alone, found.p_value)]
            return [f"{mean:.{digits}f}", interval, *p_values, count]
    return [f"{mean:.{digits}f}", *[ABSENT] * 3, count]


def compare_factors(tables: Mapping[str, Sequence[Table]]) -> dict[tuple[str, float], Difference]:
    """Return each factor minus the factor 1, by task and factor, corrected for all of them."""
    asked = []
    for task, (base, *others) in tables.items():
        for table in others:
            scores = join_scores(base, table, f"factor {factor_of(table):g}")
            asked.append(((task, factor_of(table)), (scores, scores.encodings[-1], PAIR[0])))
    found = compare_asked([question for _, question in asked])
    return dict(zip([key for key, _ in asked], found, strict=True))


def join_scores(base: Table, table: Table, label: str) -> SeedScores:
    """Return the scores of TAPE and RoPE in one table, and of TAPE in another one as `label`.

    Both have the same seeds and items, so their items are resampled equally.
    """
    one, other = scores_of(base, PAIR), scores_of(table, PAIR[:1])
    assert one.seeds == other.seeds and one.item_degrees == other.item_degrees
    assert one.resampled is not None and other.resampled is not None
    return replace(
        one,
        encodings=[*PAIR, label],
        values=np.concatenate([one.values, other.values]),  # (3, S)
        resampled=np.concatenate([one.resampled, other.resampled], axis=1),  # (B, 3, S)
    )


def compose_factors(tables: Mapping[str, Sequence[Table]]) -> str:
    """Return the scores of TAPE by the factor of the learning rate of its weights."""
    differences = compare_factors(tables)
    rows = []
    for task, of_task in tables.items():
        base = of_task[0]
        for table in of_task:
            factor = factor_of(table)
            score = f"{table.ranking.means[PAIR[0]]:.1f}"
            seeds = f"{table.learned(PAIR[0])} of {table.seeds(PAIR[0])}"
            row: list[str] = [task, f"{factor:g}", score, *[ABSENT] * 3, seeds]
            if factor != 1:
                found = differences[task, factor]
                row[3] = f"{found.value:+.1f} ({found.low:+.1f} to {found.high:+.1f})"
                row[4:6] = [Markdown(show_p(p)) for p in (found.p_alone, found.p_value)]
            rows.append(row)
        seeds = f"{base.learned(PAIR[1])} of {base.seeds(PAIR[1])}"
        score = f"{base.ranking.means[PAIR[1]]:.1f}"
        rows.append([task, Markdown("`rope`"), score, *[ABSENT] * 3, seeds])
    header = ["task", "factor", "score, %", "minus factor 1", "p", "p (Holm)", "learned"]
    return markdown_table(header, rows, "l" + "r" * 6)


def _decimals(table: Table) -> int:
    """Return how many decimals the scores of a table have."""
    return 1 if table.ranking.metric.is_percent else 3


def compose_settings(tables: Mapping[str, Table]) -> str:
    """Return the difference of TAPE and RoPE on `mqar` in each setting.

    The differences by length are from rows with the same numbers of pairs.
    """
    rows = []
    for setting, table in tables.items():
        means = table.ranking.means
        rows.append(
            [
                setting,
                *(f"{means[name]:.1f}" for name in PAIR),
                _difference(table),
                _difference(_ranked_by(table, LONGER)),
                _difference(_ranked_by(table, FAR)),
                ", ".join(f"{number:.1f}" for number in after_gap(table)),
                ", ".join(rates(table, name) for name in PAIR),
                ", ".join(filter(None, (tuned(table, name) for name in PAIR))) or ABSENT,
                learned(table),
            ]
        )
    columns = [
        "models",
        "tape, %",
        "rope, %",
        "difference",
        "up to 8 pairs, 64 to 256 tokens",
        "up to 8 pairs, 512 and 1,024 tokens",
        f"{GAP} tokens later (tape, rope), %",
        HEADER[-1],
        "tuned option",
        HEADER[-2],
    ]
    return markdown_table(columns, rows, "l" + "r" * (len(columns) - 1))


def compose_addition(tables: Mapping[str, Table]) -> str:
    """Return the difference of TAPE and RoPE on `addition` in each setting."""
    rows = []
    for setting, table in tables.items():
        floor = table.ranking.best_baseline
        assert floor is not None
        rows.append(
            [
                setting,
                *(f"{table.ranking.means[name]:.1f}" for name in PAIR),
                _difference(table),
                f"{floor:.1f}",
                ", ".join(rates(table, name) for name in PAIR),
                learned(table),
            ]
        )
    columns = ["models", "tape, %", "rope, %", "difference", "best baseline, %"]
    columns += [HEADER[-1], HEADER[-2]]
    return markdown_table(columns, rows, "l" + "r" * (len(columns) - 1))


def compose_perplexity(tables: Mapping[str, Table]) -> str:
    """Return the losses of TAPE and RoPE with the trained and the longer context, by size."""
    rows = []
    for setting, table in tables.items():
        cells = [setting]
        for one in (_ranked_by(table, TRAINED_CONTEXT), table):
            cells += [f"{one.ranking.means[name]:.3f}" for name in PAIR]
            cells.append(_difference(one, 3))
        cells.append(", ".join(rates(table, name) for name in PAIR))
        cells.append(", ".join(filter(None, (tuned(table, name) for name in PAIR))) or ABSENT)
        rows.append([*cells, learned(table)])
    columns = ["models", "tape, trained context ↓", "rope ↓", "difference"]
    columns += ["tape, 4 times this context ↓", "rope ↓", "difference"]
    columns += [HEADER[-1], "tuned option", HEADER[-2]]
    return markdown_table(columns, rows, "l" + "r" * (len(columns) - 1))


def after_gap(table: Table) -> list[float]:
    """Return the scores of TAPE and RoPE in rows with a single query, `GAP` tokens later."""
    points = table.numbers("gap", "accuracy").set_index(["encoding", "length"])["mean"]
    return [float(points[name, GAP]) for name in PAIR]


def _ranked_by(table: Table, headline: Headline) -> Table:
    """Return a table with another headline."""
    return replace(
        table, records=tuple(replace(record, headline=headline) for record in table.records)
    )


def _difference(table: Table, digits: int = 1) -> str:
    """Return TAPE minus RoPE with its 95 % interval."""
    differences = compare_table(table, PAIR[1]).to_reference
    (found,) = [one for one in differences if one.first == PAIR[0]]
    low, high = f"{found.low:+.{digits}f}", f"{found.high:+.{digits}f}"
    return f"{found.value:+.{digits}f} ({low} to {high})"


EXTENSIONS = {
    "the model itself": "rope",
    "`rope` trained further": "rope [TRAINED]",
    "`tape` trained further": "tape [TRAINED]",
    "only the weights of `tape`": "tape [encoding, TRAINED]",
    "`rope` with LoRA": "rope [lora, TRAINED]",
    "`rope` with LongLoRA": "rope [longlora, TRAINED]",
    "`rope` with a base of 100,000": "rope:base=100000 [TRAINED]",
    "YaRN": "rope:scaling=yarn,factor=4 [TRAINED]",
}
"""Rows of the table of extensions, and their labels in results/extension after the arrow."""


def compose_extension(tables: Sequence[Table]) -> str:
    """Return the losses and passkeys of a model of RoPE that was trained further."""
    perplexity, passkey = tables
    columns = [
        (perplexity, "1x-context", "bits_per_byte", None, 3),
        (perplexity, "4x-context", "bits_per_byte", None, 3),
        (passkey, "out-of-distribution", "exact_match", None, 1),
        (passkey, "passkey-length", "exact_match", 768, 1),
        (passkey, "passkey-length", "exact_match", 1024, 1),
    ]
    rows = []
    names = {row: f"rope -> {of}" for row, of in EXTENSIONS.items()}
    for row, name in names.items():
        label = name.replace("TRAINED", "100 steps, batch_size 8, length 512")
        cells = [_score(*column[:4], label, column[4]) for column in columns]
        rows.append([Markdown(row), *cells, f"{passkey.learned(label)} of {passkey.seeds(label)}"])
    floors = []
    for table, subset, metric, _, digits in columns[:3]:
        floor = _ranked_by(table, Headline(metric, subset)).ranking.best_baseline
        floors.append(f"{floor:.{digits}f}")
    rows.append([Markdown("*trigram table; random candidate*"), *floors, *[ABSENT] * 3])
    headings = [
        *("trained weights", "bits per byte, 128 tokens ↓", "512 tokens ↓"),
        *("passkeys, 192 to 1,024 tokens, % ↑", "768 tokens ↑", "1,024 tokens ↑", "learned"),
    ]
    return markdown_table(headings, rows, "l" + "r" * 6)


def _score(
    table: Table, subset: str, metric: str, length: int | None, encoding: str, digits: int
) -> str:
    """Return the mean of an encoding in a subset, at a length or over all lengths."""
    found = table.numbers(subset, metric)
    found = found[found["encoding"] == encoding]
    at_length = found["length"].isna() if length is None else found["length"] == length
    return f"{float(found[at_length]['mean'].iloc[0]):.{digits}f}"


BOTH = ("quick", "operator", "forward_backward_time", 2048)
COSTS = {
    "attention alone, 2048 tokens: forward": ("quick", "operator", "forward_time", 2048),
    "forward, PyTorch's kernel": ("quick", "operator-sdpa", "forward_time", 2048),
    "forward and backward": BOTH,
    "forward and backward, PyTorch's kernel": (BOTH[0], "operator-sdpa", *BOTH[2:]),
    "memory": ("quick", "operator", "forward_backward_memory", 2048),
    "training step, 1024 tokens": ("cpu", "training", "training_step_time", 1024),
    "training step, 4096 tokens": ("cpu-long", "training", "training_step_time", 4096),
    "training step, 1024 tokens: memory": ("cpu", "training", "training_step_memory", 1024),
    "prefill of 1024 tokens": ("cpu", "inference", "prefill_time", 1024),
    "decoding after 1024 tokens": ("cpu", "inference", "decoding_time", 1024),
}
"""Rows of the table of costs: preset, subset, metric without `_ratio`, tokens."""


def compose_cost(tables: Mapping[str, Table]) -> str:
    """Return the costs in multiples of RoPE, times with their quartiles."""
    rows = []
    for row, (preset, subset, metric, length) in COSTS.items():
        found = tables[preset].numbers(subset, f"{metric}_ratio")
        found = found[found["length"] == length].set_index("encoding")
        cells = []
        for name in ("tape", "fire", "t5"):
            mean, low, high = found.loc[name, ["mean", "ci_low", "ci_high"]]
            spread = "" if math.isnan(low) else f" ({low:.2f} to {high:.2f})"
            cells.append(f"{mean:.2f}{spread}")
        rows.append([row, *cells])
    return markdown_table(["multiples of rope", "tape", "fire", "t5"], rows, "lrrr")


def compose_states() -> str:
    """Return the table of `benchmarks/state_norms.py`."""
    script = runpy.run_path(str(ROOT / "benchmarks" / "state_norms.py"))
    found: str = script["show"](script["read"](ROOT / "results" / "tape" / "state_norms.jsonl"))
    return found


def rates(table: Table, name: str) -> str:
    """Return the learning rates of an encoding, one for each model of a run."""
    tuning = next(one.tuning for one in table.records if one.encoding == name)
    if tuning is None:
        return show_rate(table.about.settings["train"]["lr"])
    return " and ".join(dict.fromkeys(map(show_rate, tuning["task"]["lr"].values())))


def tuned(table: Table, name: str) -> str:
    """Return the tuned option of an encoding; empty if it has its default."""
    tuning = next(one.tuning for one in table.records if one.encoding == name)
    if tuning is None:
        return ""
    values = [str(value) for value in tuning["task"].get("values", {}).values() if value]
    return f"{name}:{tuning['task']['option']}={values[0]}" if values else ""


def learned(table: Table) -> str:
    """Return the number of seeds of each encoding that learned the training task."""
    return ", ".join(f"{table.learned(name)} of {table.seeds(name)}" for name in PAIR)


if __name__ == "__main__":
    main()
