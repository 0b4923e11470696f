"""Runs under equal settings, gathered into tables and ranked."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from pe_bench.reporting.degradation import DEGRADATION, add_degradation, describe_degradation
from pe_bench.reporting.frames import compute_means, finished_runs, read_baselines, read_rows
from pe_bench.reporting.incomplete import mark_incomplete
from pe_bench.reporting.ranking import Ranking
from pe_bench.results.identity import flatten_settings, setting_of
from pe_bench.results.items import Items
from pe_bench.results.labels import plugin_name, shorten_labels
from pe_bench.results.learning_curves import CurveKey, LearningCurve
from pe_bench.results.metrics import Metric, find_metric
from pe_bench.results.reading import read_or_report, reading
from pe_bench.results.record import RunRecord
from pe_bench.results.run_data import read_run_curves, read_run_items
from pe_bench.results.views import Column, Curve, Gallery, Headline, Heatmap
from pe_bench.system.commit import show_commit
from pe_bench.system.files import slug

MAX_DIFFERENCES = 60  # maximum characters of differences in a heading
MAX_SHORTENED = 90  # the same if the number of parameters stands for the size of the model

OTHER_FIGURES = ("quality", "training")  # names of figures without a view

AnyView = TypeVar("AnyView", Column, Curve, Heatmap, Gallery)


@dataclass(frozen=True)
class Table:
    """Runs under equal settings.

    Attributes:
        records: one per encoding and seed.
        rows: the numbers of all records, with those that `degradation.add_degradation` adds.
        means: one row per encoding or baseline and number, averaged over seeds, see
            `frames.compute_means`.
        differences: settings that distinguish it from other tables with the same title.
    """

    records: tuple[RunRecord, ...]
    rows: pd.DataFrame
    means: pd.DataFrame
    differences: Mapping[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without cached values, which drawing processes do not need."""
        return {one.name: self.__dict__[one.name] for one in fields(self)}

    @property
    def about(self) -> RunRecord:
        """An arbitrary record, for values that all records share."""
        return self.records[0]

    @property
    def title(self) -> str:
        """Task, preset, protocol, data, and the encoding of the source model if adapted."""
        about = self.about
        data = about.data.get("label", "")
        title = f"{about.task} · {about.preset} · {about.protocol} · data={data}"
        return f"{title} · from {self.origin}" if self.origin else title

    @property
    def origin(self) -> str:
        """The encoding or checkpoint that the models start from; empty: they start from scratch."""
        return str((self.about.settings.get("from") or {}).get("encoding") or "")

    @property
    def heading(self) -> str:
        """The title, and what distinguishes it from other tables with this title."""
        return f"{self.title} · {self.distinction}" if self.differences else self.title

    @property
    def distinction(self) -> str:
        """What distinguishes it from other tables with this title, on one short line."""
        found = self.differences
        every = ", ".join(f"{key}={value}" for key, value in found.items())
        if len(every) <= MAX_DIFFERENCES:
            return every
        others = [f"{key}={value}" for key, value in found.items() if not key.startswith("model.")]
        if self.parameters and len(others) < len(found):
            shortened = ", ".join([*others, f"{self.parameters:,} parameters"])
            if len(shortened) <= MAX_SHORTENED:
                return shortened
        return f"settings={self.about.settings_digest}"

    @property
    def name(self) -> str:
        """Stem of the file names of the figures."""
        title = self.title.replace(" · ", "-").replace("data=", "")
        return f"{slug(title)}-{self.about.settings_digest}"

    @property
    def task_name(self) -> str:
        """Name of the task, without options."""
        return plugin_name(self.about.task)

    @property
    def headline(self) -> Headline:
        """The number that ranks."""
        assert self.about.headline is not None
        return self.about.headline

    @property
    def parameters(self) -> int:
        """Number of parameters of the model without its encoding; 0: unknown."""
        for record in self.records:
            if record.parameters is not None:
                return record.parameters - (record.encoding_parameters or 0)
        return 0

    @property
    def commits(self) -> list[str]:
        """The known commits of its runs, in alphabetical order."""
        return sorted({show_commit(record.environment) for record in self.records} - {""})

    @property
    def devices(self) -> list[str]:
        """The devices of its runs, in alphabetical order."""
        return sorted({str(record.environment.get("device")) for record in self.records})

    @property
    def encodings(self) -> list[str]:
        """Labels of the encodings, in alphabetical order."""
        return sorted({record.encoding for record in self.records})

    def views(self, kind: type[AnyView]) -> list[AnyView]:
        """Return the views of a kind that have numbers with values on the view's axes."""
        found = []
        for view in self.about.views:
            if isinstance(view, kind):
                numbers = self.numbers(view.subset, view.metric)
                if not isinstance(view, Column):
                    numbers = numbers[numbers["length"].notna()]
                if isinstance(view, Heatmap | Gallery):
                    numbers = numbers[numbers["second_axis"] != ""]
                if not numbers.empty:
                    found.append(view)
        return found

    def maps(self) -> dict[str, Heatmap | Gallery]:
        """Return heatmaps and galleries by the names of their figures.

        The name is the subset, unless another figure of the table has this name.
        """
        found: dict[str, Heatmap | Gallery] = {}
        views: list[Heatmap | Gallery] = [*self.views(Heatmap), *self.views(Gallery)]
        for view in views:
            name = view.subset
            for more in (view.metric, type(view).__name__.lower()):
                if name in found or name in OTHER_FIGURES:
                    name = f"{name}-{more}"
            found[name] = view
        return found

    def axis(self, name: str) -> str:
        """Return the meaning of the axis "length" or "second"."""
        return self.about.axes.get(name) or name

    def metric(self, name: str) -> Metric:
        """Return title, unit and direction of a metric."""
        if name == DEGRADATION:
            return describe_degradation(self.about)
        return find_metric(name, self.about.metrics)

    def describe_given(self, names: Iterable[str]) -> str:
        """Return the input of the model when metrics are measured; may be empty."""
        metrics = {name: self.metric(name) for name in names}
        said = [f"{one.title}: given {one.given}" for one in metrics.values() if one.given]
        return "; ".join(dict.fromkeys(said))

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The means of encodings."""
        return self.means[~self.means["baseline"]].drop(columns="baseline")

    @cached_property
    def baselines(self) -> pd.DataFrame:
        """The means of baselines, such as guessing; may be empty."""
        return self.means[self.means["baseline"]].drop(columns="baseline")

    @cached_property
    def has_seeds(self) -> bool:
        """Whether any encoding has more than one seed."""
        return bool(self.scores["seeds"].max() > 1)

    def numbers(self, subset: str, metric: str) -> pd.DataFrame:
        """Return the scores of one metric of one subset."""
        found = self._by_number.get((subset, metric))
        return self.scores[:0] if found is None else found

    @cached_property
    def _by_number(self) -> dict[tuple[str, str], pd.DataFrame]:
        """The scores of each subset and metric, cached because a report needs them often."""
        groups = self.scores.groupby(["subset", "metric"], sort=False)
        return {(str(subset), str(metric)): part for (subset, metric), part in groups}

    @cached_property
    def ranking(self) -> Ranking:
        """Its encodings and baselines by the headline."""
        headline = self.headline
        scores = self.numbers(headline.subset, headline.metric)
        scores = scores[scores["status"] != "partial"]
        means = scores[scores["length"].isna()]
        baselines = select(self.baselines, headline.subset, headline.metric)
        baselines = baselines[baselines["length"].isna()]
        return Ranking(
            self.metric(headline.metric),
            scores if means.empty else means,
            dict(zip(baselines["encoding"], baselines["mean"].astype(float), strict=True)),
            self.encodings,
        )

    @cached_property
    def items(self) -> list[list[Items]]:
        """The scores of single items of each record."""
        return [read_or_report(read_run_items, record) or [] for record in self.records]

    @cached_property
    def learning_curves(self) -> list[dict[CurveKey, LearningCurve]]:
        """The learning curves of each record, by phase and subset."""
        return [read_or_report(read_run_curves, record) or {} for record in self.records]

    def seeds(self, encoding: str) -> int:
        """Return the number of seeds of an encoding."""
        return self._seeds[encoding]

    @cached_property
    def _seeds(self) -> Counter[str]:
        return Counter(record.encoding for record in self.records)

    def learned(self, encoding: str) -> int:
        """Return the number of seeds of an encoding that passed the gate of the task."""
        return self.seeds(encoding) - self._failures.get(encoding, 0)

    @cached_property
    def _failures(self) -> dict[str, int]:
        """Number of seeds of each encoding that did not pass the gate of the task."""
        scores = self.ranking.scores
        missing = (scores["seeds"] - scores["learned_seeds"]).groupby(scores["encoding"]).sum()
        return {str(encoding): int(count) for encoding, count in missing.items()}

    @property
    def is_gated(self) -> bool:
        """Whether the task says which seeds have learned."""
        return self.about.gate is not None or bool((self.rows["status"] == "not_learned").any())

    @cached_property
    def short(self) -> dict[str, str]:
        """The labels of the encodings with shortened values of options, see `shorten_labels`."""
        return shorten_labels(self.encodings)

    def describe(self, encoding: str) -> str:
        """Return the short label of an encoding, with a note if not all of its seeds learned."""
        learned, seeds = self.learned(encoding), self.seeds(encoding)
        label = self.short[encoding]
        if learned == seeds:
            return label
        return f"{label} ({f'{learned} of {seeds}' if learned else 'not'} learned)"


def select(scores: pd.DataFrame, subset: str, metric: str) -> pd.DataFrame:
    """Return the scores of one metric of one subset."""
    return scores[(scores["subset"] == subset) & (scores["metric"] == metric)]


def read_tables(results: Path | str) -> list[Table]:
    """Return the tables of a results folder, see `make_tables`.

    Raises:
        InputErrors: a file of the folder cannot be read.
    """
    with reading(Path(results)) as records:
        return make_tables(records)


def make_tables(records: Iterable[RunRecord]) -> list[Table]:
    """Return a table for each combination of settings, by title and then by size of the model.

    Raises:
        InputError: a file of a run cannot be read.
    """
    groups: dict[str, list[RunRecord]] = {}
    for record in finished_runs(records):
        groups.setdefault(record.settings_digest, []).append(record)
    tables = []
    for group in groups.values():
        rows = mark_incomplete(read_rows(group), group)
        rows = add_degradation(rows, group)
        means = compute_means(rows, read_baselines(group[0]), group[0].metrics)
        tables.append(Table(tuple(group), rows, means))
    tables.sort(key=lambda table: (table.title, table.parameters, table.about.settings_digest))
    tables = [replace(table, differences=_differences(table, tables)) for table in tables]
    headings = Counter(table.heading for table in tables)
    named = []
    for table in tables:
        if headings[table.heading] > 1:  # models of the same number of parameters
            digest = {"settings": table.about.settings_digest}
            table = replace(table, differences={**table.differences, **digest})
        named.append(table)
    return named


def _differences(table: Table, tables: list[Table]) -> dict[str, Any]:
    """Return the settings in which a table differs from others with the same title.

    If some have the same search for a learning rate and the others none, "tuned" stands for it.
    """
    own = flatten_settings(table.about.settings)
    namesakes = [other for other in tables if other.title == table.title]
    others = [flatten_settings(other.about.settings) for other in namesakes]
    differing: dict[str, Any] = {}
    for key, value in own.items():
        if any(setting_of(settings, key) != value for settings in others):
            differing[key] = value
    search = table.about.settings.get("tune")
    searches = [other.about.settings.get("tune") for other in namesakes]
    if search and None in searches and all(other in (None, search) for other in searches):
        differing = {key: differing[key] for key in differing if not key.startswith("tune.")}
        differing["train.lr"] = "tuned"
    if len(namesakes) > 1 and not differing:
        return {"settings": table.about.settings_digest}
    return differing
