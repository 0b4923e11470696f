"""The record of a run, `run.json`: how its numbers came about."""

import types
from collections.abc import Mapping
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
        status: "done", "skipped" (the task cannot be run with the encoding) or "failed"; in no
            file: "damaged", the run's files cannot be read.
        task, encoding: labels, the canonical specs.
        encoding_version: of the encoding's code.
        adaptation: where it goes on from a model that another encoding trained, its own spec as
            "encoding", the other one's (or the name of a checkpoint) as "from", the `AdaptConfig`
            as "config", and "unchanged" where it is that model itself; else None.
        seed: of weights, batches and evaluation.
        preset, protocol: names.
        data: provenance of the data, with a short name under "label".
        settings: everything that decides a number except encoding and seed.
        sources: where the run has found what is not shipped: plugins, data, tokenizer; not in
            exports, as these are paths of one machine.
        settings_digest: eight characters that stand for `settings`; tables never mix two of them.
        tuning: the chosen learning rates and what they were chosen from, of the "task" and of the
            "start"; None: they are the preset's.
        models: what decides the weights of its models, a digest by the subset that a model is for,
            "" where it serves all; two searches may lead to the same models.
        reused: name of the run of another search that has measured the numbers, if one has.
        headline: the number by which a table is sorted.
        views: columns, panels and maps of the report.
        metrics: the task's own metrics, beside those that are known.
        axes: meaning of the columns `length` and `second_axis`, by "length" and "second".
        measures_time: whether the numbers are times of the machine, see `Task.measures_time`.
        gate: per cent in distribution from which on what was trained counts as learned; None: any.
        max_train_axis: largest value of the axis `length` in training.
        train_length: tokens of the longest training sequence.
        fine_tune_length: the same of the second phase where the task starts from another one.
        unavailable: subsets that cannot be evaluated, each with the reason.
        described: what the "encoding" and the "task" say of themselves: "summary", "text", and of
            the encoding "facts" and the backends that it "runs_on".
        environment: device, versions of packages, commit of the code.
        finished: time of the record, ISO 8601, UTC.
        order: higher than that of every run of this encoding on this task that was asked for
            before; clocks may be wrong.
        subsets: those that have been measured.
        notes: remarks of the task on its evaluation.
        reason: why the run was skipped or failed, one sentence a line, the first cause first.
        traceback: Python's own account of each failure.
        parameters, encoding_parameters: of the whole model, and of its encoding.
        seconds: wall time of training and evaluation, in all calls together; without pretraining.
        peak_memory_bytes: most memory in use, in all calls.
        pretraining: cost of the phase that the task starts from.
        costs: by subset, cost of its training and evaluation.
        folder: of the run, or of the export that it is in; like what follows no part of the file.
        name: of the run, that of its own folder.
        exported: whether other runs lie in the same files.
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
        """What sorts records, the one asked for last at the end."""
        return self.order, self.finished

    def to_json(self) -> dict[str, Any]:
        """Return the content of run.json."""
        content = asdict(self)
        content["views"] = [to_json(view) for view in self.views]
        return {name: value for name, value in content.items() if name not in NOT_IN_FILE}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], folder: Path | None = None) -> "RunRecord":
        """Return the record that a run.json holds; keys that this version lacks are ignored.

        Raises:
            ValueError: a key is missing, or the content is no object.
        """
        if not isinstance(content, Mapping):
            raise ValueError("it is not a JSON object")
        known = {f.name: f for f in fields(cls) if f.name not in NOT_IN_FILE}
        absent = [n for n, f in known.items() if _is_required(f) and n not in content]
        if absent:
            raise ValueError(f"it lacks {', '.join(absent)}")
        if content["status"] == "done" and not content.get("headline"):
            raise ValueError("it lacks a headline, as in an earlier version")
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
    """Return the types of the fields, which Python works out anew each time it is asked."""
    return get_type_hints(RunRecord)


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a value is of a field's type, parts of it not looked at."""
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
