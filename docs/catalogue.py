"""Write the catalogue of encodings: a page for each, an index, and figures.

    python docs/catalogue.py DIR [NAME ...]

Everything on a page is read from the encoding or from committed results: the formula, its source
and the options from docstrings and signatures, the facts and the figure from an instance, costs
and scores from `results/`. `mkdocs build` writes the catalogue of all encodings into the site.
"""

import inspect
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from pe_bench.commands import encoding_table
from pe_bench.config import ModelConfig
from pe_bench.decoder.model import Decoder
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.options import option_of, plugin_options, show, show_type
from pe_bench.registry.plugins import Plugin
from pe_bench.reporting import known_problems
from pe_bench.reporting.frames import read_results
from pe_bench.reporting.panels import STYLE
from pe_bench.reporting.styles import family_of, styles
from pe_bench.reporting.tables import Table, read_tables
from pe_bench.results.labels import split_label

ROOT = Path(__file__).parents[1]
INTRODUCTION = ROOT / "docs" / "catalogue" / "index.md"
SCORES = ("quick", "scrolls")  # folders of results/ with scores
COSTS = {  # rows of results/efficiency: name in the table, settings, subset, metric
    "training step, 1024 tokens": ("cpu", "training", "training_step"),
    "training step, 4096 tokens": ("cpu-long", "training", "training_step"),
    "reading a prompt": ("cpu", "inference", "prefill"),
    "decoding a token": ("cpu", "inference", "decoding"),
}
FAMILIES = {  # headings of the families of encodings, in the order of the index
    "none": "No positions",
    "absolute": "Absolute positions",
    "rotary": "Rotary",
    "bias": "Bias by distance",
    "content": "By content",
    "structure": "By the structure of the text",
    "hybrid": "Different layers",
    "softmax": "Changes of the softmax",
    "ids": "Changes of the position ids",
    "extension": "For a trained model",
    "other": "Other",
}
DIGITS, SEPARATOR = tuple(range(10)), 10
MODEL = ModelConfig(
    layers=2,
    heads=8,
    width=256,
    mlp_width=512,
    vocab_size=64,
    train_length=64,
    digit_ids=DIGITS,
    separator_ids=(SEPARATOR,),
)
LENGTH = 4 * MODEL.train_length  # tokens of the figure
SENTENCE = 16  # tokens, the last one a separator, as in the task `properties`
FIGURE = (
    "figure shows the attention logit of an untrained model between a query and an equal key, "
    f"by the distance between them. Thin lines are the {MODEL.heads} heads of the first layer, the "
    f"thick line is their mean, and the dashed line is the training length, {MODEL.train_length} "
    "tokens."
)
ARGUMENT = re.compile(r"^ {4}(?P<name>\w+):(?P<text>.*(?:\n {8}.*)*)", re.MULTILINE)


@dataclass(frozen=True)
class Score:
    """The result of an encoding in one table, with the values to compare it with.

    Attributes:
        encoding: label of the row.
        task: name of the task.
        what: the headline, with its unit and direction.
        mean: over all seeds, in the unit of the headline.
        learned: number of seeds that learned the training task.
        seeds: number of seeds.
        baseline: best score without a model; None: the task has no baselines.
        best: best mean of an encoding in the table.
        rank: position among the encodings of the table, from 1; `count`: how many there are.
        problems: known problems of the table.
    """

    encoding: str
    task: str
    what: str
    mean: float
    learned: int
    seeds: int
    baseline: float | None
    best: float
    rank: int
    count: int
    problems: tuple[str, ...]


def main() -> None:
    """Write the catalogue into a folder."""
    folder, *names = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    write(Path(folder), names)


def write(folder: Path, names: Sequence[str] = ()) -> dict[str, list[str]]:
    """Write pages and figures of encodings; without names, of all shipped ones.

    Returns:
        The names of each family, under its heading.
    """
    scores = list(read_scores())
    costs = read_costs()
    families: dict[str, list[str]] = {}
    for name in names or catalogue.names("encoding"):
        plugin = plugins.load("encoding", name)
        draw(plugin).savefig(folder / f"{name}.png", dpi=110)
        families.setdefault(FAMILIES.get(family_of(name), family_of(name)), []).append(name)
        own_scores = [score for score in scores if split_label(score.encoding)[0] == name]
        page = compose(plugin, own_scores, costs.get(name, {}))
        (folder / f"{name}.md").write_text(page, encoding="utf-8")
    order = [*FAMILIES.values(), *families]
    families = dict(sorted(families.items(), key=lambda item: order.index(item[0])))
    (folder / "index.md").write_text(compose_index(families), encoding="utf-8")
    return families


def compose(plugin: Plugin, scores: Sequence[Score], costs: Mapping[str, Sequence[str]]) -> str:
    """Return the page of an encoding as Markdown."""
    parts = [
        f"# {plugin.label}",
        prose(catalogue.describe("encoding", plugin.label)),
        describe_class(plugin.cls),
        f"![Logits of {plugin.label} by distance]({plugin.label}.png)",
        f"The {FIGURE} Gaps are distances that no query sees.",
        "## Options",
        describe_options(plugin.cls),
        "## Properties",
        describe_facts(plugin),
        "## Cost",
        describe_costs(costs),
        "## Scores",
        describe_scores(scores),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def compose_index(families: Mapping[str, Sequence[str]]) -> str:
    """Return the index as Markdown: for each family a gallery, and a line for each encoding."""
    parts = [INTRODUCTION.read_text(encoding="utf-8").strip(), f"Each {FIGURE}"]
    for family, names in families.items():
        links = [f"[![]({name}.png){{ loading=lazy }} {name}]({name}.md)" for name in names]
        parts += [f"## {family}", '<div class="gallery" markdown="1">']
        parts += [*links, "</div>"]
        rows = [[f"[`{name}`]({name}.md)", *_first_line(name)] for name in names]
        parts.append(_table(["encoding", "what it does", "source"], rows, "lll"))
    return "\n\n".join(parts) + "\n"


def describe_class(cls: type[Any]) -> str:
    """Return the docstring of a class without its arguments, with the formula first."""
    body, _, _ = inspect.cleandoc(cls.__doc__ or "").partition("Args:\n")
    first, _, more = body.strip().partition("\n\n")
    if re.search(r" [-+]?= ", first) and "\n" not in first:
        first = f"``` {{.text .formula}}\n{first.removesuffix('.')}\n```"
    else:
        first = prose(first)
    return f"{first}\n\n{prose(more)}".strip()


def describe_options(cls: type[Any]) -> str:
    """Return a list of options with default, type and description."""
    said = _arguments(cls)
    lines = []
    for option in plugin_options(cls):
        text = " ".join(said.get(option.name, "").split())
        lines.append(
            f"- **`{option_of(option.name)}={show(option.default)}`** "
            f"({show_type(option.annotation)}): {prose(text)}".removesuffix(": ")
        )
        for value, choice in _choices(cls).get(option.name, {}).items():
            first, _, _ = inspect.cleandoc(choice.__doc__ or "").partition("\n")
            lines.append(f"    - `{value}`: {prose(first)}")
    return "\n".join(lines) if lines else "It has no options."


def describe_facts(plugin: Plugin) -> str:
    """Return a table of the places where an encoding acts, and of its declarations."""
    values = encoding_table.card(plugin.label)
    named = dict(
        zip((*encoding_table.COLUMNS, *encoding_table.FACTS.values()), values, strict=True)
    )
    shown = [name for name in named if name not in ("name", "what it does", "paper", "year")]
    rows = [[name, prose(named[name]) or "0"] for name in shown]
    return _table(["property", "value"], rows, "ll")


def describe_costs(costs: Mapping[str, Sequence[str]]) -> str:
    """Return a table of times and memory."""
    if not costs:
        return "It has not been measured."
    rows = [[what, *values] for what, values in costs.items()]
    table = _table(["on two CPU cores", "time", "memory"], rows, "lrr")
    note = (
        "Multiples of `rope` in the same run; a model of four layers at 1024 tokens, of two at "
        "4096. All figures: [efficiency](../results/efficiency/leaderboard.md)."
    )
    return f"{table}\n\n{note}"


def describe_scores(scores: Sequence[Score]) -> str:
    """Return a table of scores, each with the best baseline and the best encoding."""
    if not scores:
        return "It is in no committed table; `pe-bench run` measures it."
    rows = []
    for score in scores:
        floor = "" if score.baseline is None else _number(score.baseline)
        task = score.task + (" †" if score.problems else "")
        _, options = split_label(score.encoding)
        name = f"{task}, `{options}`" if options else task
        rank = f"{score.rank} of {score.count}"
        learned = f"{score.learned} of {score.seeds}"
        scored = [_number(score.mean), floor, _number(score.best)]
        rows.append([name, score.what, *scored, rank, learned])
    header = ["task", "metric", "mean", "best baseline", "best encoding", "rank", "seeds learned"]
    table = _table(header, rows, "llrrrrr")
    note = (
        "Out of distribution, preset `quick`: models are tiny, so scores show what differs between "
        "encodings, not what to use at scale. Token accuracy is given the correct tokens before. "
        "Intervals and tests: "
        "[tasks](../results/quick/leaderboard.md), [SCROLLS](../results/scrolls/leaderboard.md)."
    )
    if any(score.problems for score in scores):
        note += (
            " † This table has a known problem: see "
            "[known problems of committed tables]"
            "(../tasks.md#what-is-known-about-committed-tables)."
        )
    return f"{table}\n\n{note}"


def draw(plugin: Plugin) -> Figure:
    """Return the figure of an encoding: logits of equal queries and keys by distance."""
    colour = styles([plugin.label])[plugin.label].colour
    logits = measure_logits(plugin)  # (H, LENGTH)
    with rc_context(STYLE):
        figure = Figure(figsize=(4.2, 2.6), layout="constrained")
        axes = figure.subplots()
        for head in logits:
            axes.plot(head, color=colour, alpha=0.35, linewidth=0.8)
        axes.plot(logits.nanmean(0), color=colour, linewidth=2)
        axes.axvline(MODEL.train_length, color="gray", linestyle="--", linewidth=0.8)
        axes.set_xlabel("distance, tokens")
        axes.set_ylabel("logit")
        axes.set_xlim(0, LENGTH - 1)
        figure.canvas.draw()  # within STYLE
    return figure


def measure_logits(plugin: Plugin) -> torch.Tensor:
    """Return the mean attention logit of each head by distance, (H, LENGTH); NaN: never seen.

    Keys are made by the projection of the queries, and each sequence repeats one token, so content
    matches everywhere and only the encoding makes a difference. A separator ends every sentence,
    for encodings that count segments; half of the sequences are digits.
    """
    torch.manual_seed(0)
    model = Decoder(MODEL, plugin.make).eval()
    tokens = _tokens()  # (B, T)
    is_word = tokens != SEPARATOR
    of_layers: list[torch.Tensor] = []
    with torch.no_grad():
        attention: Any = model.layers[0].self_attn
        attention.k_proj.weight.copy_(attention.q_proj.weight)
        model.hidden(tokens, logits=of_layers)
    logits = of_layers[0].double()  # (B, H, T, S)
    means = []
    for distance in range(LENGTH):
        pairs = logits.diagonal(-distance, dim1=2, dim2=3)  # (B, H, pairs)
        counted = is_word[:, distance:] & is_word[:, : LENGTH - distance]  # (B, pairs)
        counted = counted[:, None] & (pairs > -math.inf)
        means.append(pairs.where(counted, math.nan).nanmean((0, 2)))
    return torch.stack(means, 1)


def _tokens() -> torch.Tensor:
    """Return rows of one repeated token, half of them digits, with separators: (4, LENGTH)."""
    words = torch.tensor([1, 2, SEPARATOR + 1, SEPARATOR + 2])
    tokens = words[:, None].repeat(1, LENGTH)
    tokens[:, SENTENCE - 1 :: SENTENCE] = SEPARATOR
    return tokens


def read_scores() -> Iterator[Score]:
    """Return the scores of all committed tables, task by task."""
    for folder in SCORES:
        for table in read_tables(ROOT / "results" / folder):
            yield from _scores_of(table)


def _scores_of(table: Table) -> Iterator[Score]:
    ranked = table.ranking.names
    headline = table.ranking.scores.set_index("encoding")["mean"]
    for rank, encoding in enumerate(ranked, 1):
        yield Score(
            encoding=encoding,
            task=table.task_name,
            what=table.ranking.metric.label,
            mean=float(headline[encoding]),
            learned=table.learned(encoding),
            seeds=table.seeds(encoding),
            baseline=table.ranking.best_baseline,
            best=float(headline[ranked[0]]),
            rank=rank,
            count=len(ranked),
            problems=tuple(known_problems.find(table.about.settings_digest)),
        )


def read_costs() -> dict[str, dict[str, list[str]]]:
    """Return time and memory of each encoding in multiples of `rope`, by measurement."""
    rows = read_results(ROOT / "results" / "efficiency")
    found: dict[str, dict[str, list[str]]] = {}
    for what, (preset, subset, name) in COSTS.items():
        part = rows[(rows["preset"] == preset) & (rows["subset"] == subset)]
        times = _means(part, f"{name}_time_ratio")
        memory = _means(part, f"{name}_memory_ratio")
        for encoding, value in times.items():
            values = [f"{value:.2f}", f"{memory[encoding]:.2f}" if encoding in memory else ""]
            found.setdefault(encoding, {})[what] = values
    return found


def _means(rows: pd.DataFrame, metric: str) -> dict[str, float]:
    means = rows[rows["metric"] == metric].groupby("encoding")["value"].mean()
    return {str(encoding): float(value) for encoding, value in means.items()}


def _arguments(cls: type[Any]) -> dict[str, str]:
    """Return the longest description of each argument among the classes."""
    found: dict[str, str] = {}
    choices = [choice for table in _choices(cls).values() for choice in table.values()]
    for part in (*cls.__mro__, *(part for choice in choices for part in choice.__mro__)):
        text = inspect.cleandoc(part.__doc__ or "")
        _, _, arguments = text.replace("Attributes:\n", "Args:\n").partition("Args:\n")
        for entry in ARGUMENT.finditer(arguments):
            found.setdefault(entry["name"], entry["text"])
    return found


def _choices(cls: type[Any]) -> Mapping[str, Mapping[str, type[Any]]]:
    """Return the values of options that have further options, such as RoPE's scalings."""
    choices: Mapping[str, Mapping[str, type[Any]]] = getattr(cls, "option_tables", {})
    return choices


def _first_line(name: str) -> list[str]:
    """Return the description of an encoding and its source, from the first docstring line."""
    line = catalogue.describe("encoding", name)
    what, bracket, source = line.removesuffix(".").rpartition(" (")
    return [prose(what), prose(source.removesuffix(")"))] if bracket else [prose(line), ""]


def prose(text: str) -> str:
    """Return text of a docstring as Markdown: links for papers, no accidental markup."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("    "):  # not a block of code
            pieces = re.split(r"(`[^`]*`)", line)
            pieces[::2] = [_escape(piece) for piece in pieces[::2]]
            line = "".join(pieces)
        lines.append(line)
    return "\n".join(lines)


def _escape(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("*", r"\*").replace("_", r"\_")
    return re.sub(r"arXiv (\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """Return a table of cells that are Markdown; `align` has "l" or "r" for each column."""
    rule = ["---:" if side == "r" else "---" for side in align]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def _number(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


if __name__ == "__main__":
    main()
