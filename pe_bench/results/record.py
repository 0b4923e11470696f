"""The record of a run, `run.json`: settings, data, environment and costs."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pe_bench.results.metrics import Metric
from pe_bench.results.views import Headline, View, from_json, to_json

Status = Literal["done", "skipped", "failed", "damaged"]

NOT_IN_FILE = ("folder", "name", "exported")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The content of run.json.

    Attributes:
        status: "done", "skipped" (the task does not support the encoding) or "failed"; and
            "damaged", which is in no file: the files of the run cannot be read.
        task, encoding: labels, the canonical specs.
        encoding_version: version of the code of the encoding.
        adaptation: of a run that starts from trained weights: its spec as "encoding", the spec or
            checkpoint of the weights as "from", the `AdaptConfig` as "config", and "unchanged" if
            the model is evaluated without adaptation; else None.
        seed: seed of weights, batches and evaluation.
        preset, protocol: their names.
        data: provenance of the data, with a short name under "label".
        settings: everything that determines results, except encoding and seed.
        options: words of the command that change the settings, see `runs.command_words`; None: the
            record is of an earlier version.
        sources: paths of plugins, data and tokenizers that are not shipped; not in exports, since
            the paths are those of one machine.
        settings_digest: digest of `settings`; a table has runs of one digest only.
        tuning: the chosen learning rates and their candidates, of the "task" and of the "start";
            None: the learning rates of the preset.
        models: digests of everything that determines the weights, by the subset that a model is
            for, "" for all; two searches may lead to the same models.
        reused: name of the run of another search whose results were copied; None: none.
        headline: the number that sorts a table.
        views: columns, panels and maps of the report.
        metrics: metrics that the task defines itself.
        axes: meaning of the columns `length` and `second_axis`, by "length" and "second".
        measures_time: whether the results are times, see `Task.measures_time`.
        gate: score in distribution, in per cent, from which on a task counts as learned; None: no
            gate.
        max_train_axis: largest value of the axis `length` in training.
        train_length: tokens of the longest training sequence.
        fine_tune_length: the same for the second phase, if the task starts from another task.
        unavailable: subsets that cannot be evaluated, each with the reason.
        described: docstrings of the "encoding" and the "task" as "summary" and "text"; of the
            encoding also "facts" and the backends that it "runs_on".
        environment: device, versions of packages, commit of the code.
        finished: time of the record, ISO 8601, UTC.
        order: number of the request; higher than that of all earlier runs of this encoding on this
            task, since clocks may be wrong.
        subsets: measured subsets.
        notes: remarks of the task on its evaluation.
        reason: why the run was skipped or failed, one sentence per line, the first cause first.
        traceback: Python traceback of each failure.
        parameters, encoding_parameters: number of parameters of the model and of its encoding.
        seconds: wall time of training and evaluation over all calls, without pretraining.
        peak_memory_bytes: peak memory over all calls.
        pretraining: cost of the phase that the task starts from.
        costs: cost of training and evaluation by subset.
        folder: folder of the run, or of the export that contains it. This and the following fields
            are not in the file.
        name: name of the run, which is that of its folder.
        exported: whether the run is part of an export.
    """

    status: Status
    task: str
    encoding: str
    seed: int
    settings_digest: str
    encoding_version: str = ""
    adaptation: Mapping[str, Any] | None = None
    preset: str = ""
    protocol: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Sequence[str] | None = None
    sources: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, Any] | None = None
    models: Mapping[str, str] = field(default_factory=dict)
    reused: str | None = None
    headline: Headline | None = None
    views: tuple[View, ...] = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)
    measures_time: bool = False
    gate: float | None = None
    max_train_axis: float | None = None
    train_length: int | None = None
    fine_tune_length: int | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    described: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    finished: str = ""
    order: int = 0
    subsets: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str | None = None
    traceback: str | None = None
    parameters: int | None = None
    encoding_parameters: int | None = None
    seconds: float | None = None
    peak_memory_bytes: int | None = None
    pretraining: Mapping[str, Any] | None = None
    costs: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    name: str = ""
    exported: bool = False

    @property
    def age(self) -> tuple[int, str]:
        """Sort key: by order of request, then by time of completion."""
        return self.order, self.finished

    def to_json(self) -> dict[str, Any]:
        """Return the content of run.json."""
        content = asdict(self)
        content["views"] = [to_json(view) for view in self.views]
        return {name: value for name, value in content.items() if name not in NOT_IN_FILE}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], folder: Path | None = None) -> "RunRecord":
        """Return the record from the content of a run.json; unknown keys are ignored.

        Raises:
            ValueError: a key is missing, or the content is not an object.
        """
        if not isinstance(content, Mapping):
            raise ValueError("it is not a JSON object")
        known = {f.name: f for f in fields(cls) if f.name not in NOT_IN_FILE}
        absent = [n for n, f in known.items() if _is_required(f) and n not in content]
        if absent:
            raise ValueError(f"it lacks {', '.join(absent)}")
        if content["status"] == "done" and not content.get("headline"):
            raise ValueError("it lacks a headline")
        given = {name: value for name, value in content.items() if name in known}
        if given.get("headline"):
            given["headline"] = Headline(**given["headline"])
        given["views"] = tuple(from_json(view) for view in given.get("views", ()))
        metrics = given.get("metrics", {})
        given["metrics"] = {name: Metric(**metric) for name, metric in metrics.items()}
        given["subsets"] = tuple(given.get("subsets", ()))
        given["notes"] = tuple(given.get("notes", ()))
        hints = _types()
        wrong = [name for name, value in given.items() if not _fits(value, hints[name])]
        if wrong:
            raise ValueError(f"its {', '.join(wrong)} cannot be what they say")
        return cls(**given, folder=folder, name=folder.name if folder else "")


@cache
def _types() -> dict[str, Any]:
    """Return the types of the fields; cached, because Python evaluates them at each call."""
    return get_type_hints(RunRecord)


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value has the type of a field; elements are not checked."""
    origin = get_origin(hint) or hint
    if origin is types.UnionType:
        return any(_fits(value, one) for one in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if origin is float:
        return isinstance(value, int | float)
    return origin is Any or isinstance(value, origin)


def _is_required(one: Any) -> bool:
    return one.default is MISSING and one.default_factory is MISSING
