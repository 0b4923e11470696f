"""Captions of tables and figures for papers."""

from collections.abc import Collection, Sequence

from pe_bench.reporting.display_names import display_name
from pe_bench.reporting.same_data import describe_other_data
from pe_bench.reporting.tables import Table
from pe_bench.results.baselines import find_chance
from pe_bench.results.views import Column, Curve
from pe_bench.system.commit import UP_TO_ROUNDING

CHANCE = "Chance"
STRONGEST = "Best baseline"
MOST_COMMITS = 3  # maximum number of commits in a caption


def describe_table(
    tables: Sequence[Table], *, has_letters: bool, has_best: bool, baselines: Collection[str]
) -> str:
    """Return the caption of a table.

    Args:
        tables: the tables of results in it.
        has_letters: whether it has a compact letter display.
        has_best: whether the best number of each score is bold.
        baselines: names of the rows of baselines.
    """
    parts = [describe_settings(tables)]
    if len(tables) > 1:
        parts.append(f"Part of the task: {_subsets(tables)}.")
    parts.append(_describe_intervals(tables))
    if has_best:
        parts.append("Bold: the best.")
    if has_letters:
        parts.append(
            "Encodings that share a letter do not differ significantly in this score (5 %; "
            "differences paired by seed, p-values corrected by Holm's method)."
        )
    parts += describe_learned(tables)
    parts += _describe_baselines(tables, baselines)
    parts += describe_given(tables)
    for table in tables:
        parts += describe_other_data(table.records)
    parts.append(describe_commits(tables))
    return " ".join(filter(None, parts))


def describe_figure(table: Table, title: str) -> str:
    """Return the caption of a figure.

    Args:
        table: the table of results that it shows.
        title: its content.
    """
    parts = [f"{title[0].upper()}{title[1:]}.", describe_settings([table])]
    if table.has_seeds:
        parts.append(f"Means over {describe_seeds([table])}, with standard deviations.")
    elif table.about.measures_time:
        parts.append("Medians over repetitions, with quartiles.")
    else:
        parts.append("One seed, with 95 % intervals over items.")
    if any(table.learned(name) == 0 for name in table.encodings):
        parts.append("Hollow and dashed: no seed learned the training task.")
    if table.ranking.shown_baselines:
        parts.append(f"Best baseline: {table.ranking.shown_baselines[-1]}.")
    shown = [view.metric for view in table.views(Curve)]
    given = table.describe_given(shown or [view.metric for view in table.views(Column)])
    parts += [f"{given[0].upper()}{given[1:]}."] if given else []
    parts += [*describe_other_data(table.records), describe_commits([table])]
    return " ".join(parts)


def describe_settings(tables: Sequence[Table]) -> str:
    """Return tasks, preset, protocol, adaptation, learning rates and other settings."""
    about = tables[0].about
    tasks = ", ".join(dict.fromkeys(table.about.task for table in tables))
    parts = [f"preset {about.preset}", f"protocol {about.protocol}"]
    if len(tables) == 1 and about.data.get("label"):
        parts.append(f"data {about.data['label']}")
    if tables[0].origin:
        parts.append(f"adapted from models with {display_name(tables[0].origin)}")
    parts += _describe_sizes(tables)
    if (about.settings.get("train") or {}).get("steps"):
        tuned = about.settings.get("tune")
        parts.append("learning rates tuned for each encoding" if tuned else "one learning rate")
    changes = [_changed_options(table) for table in tables]
    common = changes[0] if len(set(changes)) == 1 else ""
    if common:
        parts.append(f"changed: {common}")
    for table, words in zip(tables, changes, strict=True):
        changed = [f"{key}={value}" for key, value in table.differences.items()]
        if words != common:
            changed.append(words)
        if changed:
            where = f"{table.about.task}: " if len(tables) > 1 else ""
            parts.append(where + ", ".join(changed))
    return f"Positional encodings on {tasks} ({'; '.join(parts)})."


def _describe_sizes(tables: Sequence[Table]) -> list[str]:
    """Return the size of the models and the length of their training."""
    settings = [table.about.settings for table in tables]
    models = [one.get("model") or {} for one in settings]
    layers = sorted({model["layers"] for model in models if "layers" in model})
    widths = sorted({model["width"] for model in models if "width" in model})
    steps = [(one.get("train") or {}).get("steps") or 0 for one in settings]
    if not layers or not widths or not any(steps):
        return []
    shown = f"{min(steps):,}" if min(steps) == max(steps) else f"{min(steps):,} to {max(steps):,}"
    return [
        f"models of {' or '.join(map(str, layers))} layers of width "
        f"{' or '.join(map(str, widths))}",
        f"{shown} training steps",
    ]


def _changed_options(table: Table) -> str:
    """Return the options that differ from the preset, except those of the search; "": unknown."""
    shown: list[str] = []
    is_search = False
    for word in table.about.options or ():
        if word.startswith("--"):
            is_search = word.partition(".")[0] == "--tune"
        if not is_search:
            shown.append(word)
    return " ".join(shown)


def describe_seeds(tables: Sequence[Table]) -> str:
    """Return the number of seeds, such as "5 to 8 seeds"."""
    counts = {table.seeds(name) for table in tables for name in table.encodings}
    low, high = min(counts), max(counts)
    if low < high:
        return f"{low} to {high} seeds"
    return f"{low} seed{'s' if low > 1 else ''}"


def describe_learned(tables: Sequence[Table]) -> list[str]:
    """Explain the fraction of seeds that learned, if it is shown."""
    shown = any(
        table.is_gated and table.learned(name) < table.seeds(name)
        for table in tables
        for name in table.encodings
    )
    return ["(k/n): k of n seeds learned the training task, if not all did."] if shown else []


def describe_given(tables: Sequence[Table]) -> list[str]:
    """Return the input of the model when headlines are measured."""
    given = dict.fromkeys(table.describe_given([table.headline.metric]) for table in tables)
    return [f"{text[0].upper()}{text[1:]}." for text in given if text]


def describe_commits(tables: Sequence[Table]) -> str:
    """Return the commits that the runs were measured at."""
    commits = sorted(set().union(*(table.commits for table in tables)))
    if not commits:
        return "Measured with pe-bench."
    if len(commits) > MOST_COMMITS:
        return f"Measured with pe-bench at {len(commits)} commits."
    plural = "s" if len(commits) > 1 else ""
    return f"Measured with pe-bench at commit{plural} {', '.join(commits)}."


def describe_source(table: Table) -> str:
    """Return a line on the runs of a table: heading, settings, device and all commits."""
    commits = table.commits
    text = (
        f"{table.heading}: {describe_seeds([table])}, settings {table.about.settings_digest}, "
        f"measured on {', '.join(table.devices)}"
    )
    if commits:
        text += f" at {', '.join(commits)}"
    if len(commits) > 1 and not table.about.measures_time:
        text += f"; numbers of these commits are {UP_TO_ROUNDING}"
    return f"{text}."


def _describe_intervals(tables: Sequence[Table]) -> str:
    if tables[0].about.measures_time:
        return "Medians over repetitions with [quartiles]."
    seeds = describe_seeds(tables)
    if not any(table.has_seeds for table in tables):
        return f"{seeds}; [a, b]: 95 % interval over the items of one trained model."
    text = f"Means over {seeds}; ±: half of the 95 % interval of the mean over seeds (Student's t)"
    if any(table.seeds(name) == 1 for table in tables for name in table.encodings):
        text += "; [a, b]: one seed, 95 % interval over its items"
    return f"{text}."


def _describe_baselines(tables: Sequence[Table], rows: Collection[str]) -> list[str]:
    """Explain the rows of baselines."""
    if not rows:
        return []
    if len(tables) == 1:
        return [f"Baselines without a model: {', '.join(rows)}."]
    chance: dict[str, list[str]] = {}
    strongest: dict[str, list[str]] = {}
    for table in tables:
        names = table.ranking.shown_baselines
        if names:
            chance.setdefault(find_chance(names), []).append(table.about.task)
            strongest.setdefault(names[-1], []).append(table.about.task)
    parts = [f"{CHANCE}: {_by_task(chance)}"]
    if STRONGEST in rows:
        parts.append(f"{STRONGEST.lower()} without a model: {_by_task(strongest)}")
    return ["; ".join(parts) + "."]


def _subsets(tables: Sequence[Table]) -> str:
    found: dict[str, list[str]] = {}
    for table in tables:
        found.setdefault(table.headline.subset, []).append(table.about.task)
    return _by_task(found)


def _by_task(names: dict[str, list[str]]) -> str:
    """Return names with their tasks, the most frequent one without."""
    most = max(names, key=lambda name: len(names[name]))
    others = [f"{', '.join(tasks)}: {name}" for name, tasks in names.items() if name != most]
    return f"{most} ({'; '.join(others)})" if others else most
