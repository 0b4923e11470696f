"""The record of a run, `run.json`: settings, data, environment and costs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pe_bench.results import record_parts as parts
from pe_bench.results.metrics import Metric
from pe_bench.results.views import Headline, View, to_json
from pe_bench.system.schema import Count, FileName, Label, Line, WrongError, read_as
from pe_bench.system.text import printable

RunStatus = Literal["done", "skipped", "failed", "damaged"]

NOT_IN_FILE = ("folder", "name", "exported")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The content of run.json.

    Attributes:
        status: "done", "skipped" (the task does not support the encoding) or "failed"; or "damaged"
            (the files of the run cannot be read), which is never stored in a file.
        task, encoding: labels, the canonical specs.
        encoding_version: version of the code of the encoding.
        adaptation: for a run that starts from trained weights: spec of the encoding as "encoding",
            spec or checkpoint of the weights as "from", the `AdaptConfig` as "config", and
            "unchanged" if the model is evaluated without adaptation; for other runs None.
        seed: seed of weights, batches and evaluation.
        preset, protocol: names of preset and protocol.
        data: provenance of the data, with a short name under "label".
        settings: everything that determines results, except encoding and seed.
        options: words of the command that change the settings, see `runs.command_words`; None: an
            earlier version has written the record.
        sources: paths of plugins, data and tokenizers that are not shipped; not in exports, since
            paths are valid on one machine only.
        settings_digest: digest of `settings`; all runs of a table have the same digest.
        tuning: the chosen learning rates and the candidates, for the phase of the "task" and for
            the phase that it starts from, "start"; None: the learning rates of the preset.
        models: digests of everything that determines the weights, by the subset of a model, "" for
            all subsets; two searches may lead to the same models.
        reused: name of the run of another search whose results were copied; None: measured here.
        headline: the number that sorts a table.
        views: columns, panels and maps of the report.
        metrics: metrics that the task defines itself.
        axes: meaning of the columns `length` and `second_axis`, by "length" and "second".
        measures_time: whether the results are times, see `Task.measures_time`.
        gate: minimum in-distribution score, in per cent, of a model that has learned the task;
            None: no gate.
        max_train_axis: largest value of the axis `length` in training.
        train_length: tokens of the longest training sequence.
        fine_tune_length: the same for the second phase, if the task starts from another task.
        unavailable: subsets that cannot be evaluated, each with the reason.
        described: docstrings of the "encoding" and the "task" as "summary" and "text"; of the
            encoding also "facts" and the backends that it "runs_on".
        environment: device, versions of packages, commit of the code.
        finished: time of the record, ISO 8601, UTC.
        order: sequence number, higher than in all earlier runs of this encoding on this task. It
            does not depend on clocks, which may be wrong.
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
        name: name of the run, equal to the name of its folder.
        exported: whether the run is part of an export.
    """

    status: RunStatus
    task: Label
    encoding: Label
    seed: Count
    settings_digest: FileName
    encoding_version: Line = ""
    adaptation: Annotated[Mapping[str, Any], parts.Adaptation] | None = None
    preset: Line = ""
    protocol: Line = ""
    data: Annotated[Mapping[str, Any], parts.Data] = field(default_factory=dict)
    settings: Annotated[Mapping[str, Any], parts.Settings] = field(default_factory=dict)
    options: tuple[Line, ...] | None = None
    sources: Annotated[Mapping[str, Any], parts.Sources] = field(default_factory=dict)
    tuning: Annotated[Mapping[str, Any], parts.Searches] | None = None
    models: Mapping[str, str] = field(default_factory=dict)
    reused: str | None = None
    headline: Headline | None = None
    views: tuple[View, ...] = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)
    measures_time: bool = False
    gate: float | None = None
    max_train_axis: float | None = None
    train_length: Count | None = None
    fine_tune_length: Count | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    described: Annotated[Mapping[str, Any], parts.Descriptions] = field(default_factory=dict)
    environment: Annotated[Mapping[str, Any], parts.Environment] = field(default_factory=dict)
    finished: Line = ""
    order: Count = 0
    subsets: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str | None = None
    traceback: str | None = None
    parameters: Count | None = None
    encoding_parameters: Count | None = None
    seconds: float | None = None
    peak_memory_bytes: Count | None = None
    pretraining: Annotated[Mapping[str, Any], parts.Training] | None = None
    costs: Mapping[str, Annotated[Mapping[str, Any], parts.Cost]] = field(default_factory=dict)
    folder: Path | None = None
    name: str = ""
    exported: bool = False

    @property
    def trainings(self) -> list[Mapping[str, Any]]:
        """The cost of each training; subsets that share a model have one training."""
        found = [cost["training"] for cost in self.costs.values() if cost.get("training")]
        if self.models:
            is_shared = "" in self.models
        else:  # a record of an earlier version
            is_shared = all(training == found[0] for training in found)
        return found[:1] if is_shared else found

    @property
    def age(self) -> tuple[int, str]:
        """Sort key: by `order`, then by time of completion."""
        return self.order, self.finished

    def to_json(self) -> dict[str, Any]:
        """Return the content of run.json, without control characters in its text."""
        content: dict[str, Any] = _make_printable(asdict(self))
        content["views"] = [to_json(view) for view in self.views]
        return {name: value for name, value in content.items() if name not in NOT_IN_FILE}

    @classmethod
    def from_json(
        cls,
        content: Mapping[str, Any],
        folder: Path | None = None,
        *,
        name: str = "",
        exported: bool = False,
    ) -> "RunRecord":
        """Return the record from the content of a run.json; unknown keys are ignored.

        Args:
            content: the content.
            folder: folder of the run, or of the export that contains it.
            name: name of the run; default: name of the folder.
            exported: whether the run is part of an export.

        Raises:
            WrongError: a key is missing, or a value is invalid.
        """
        name = name or (folder.name if folder else "")
        record: RunRecord = read_as(cls, content, folder=folder, name=name, exported=exported)
        if record.status == "done" and not record.headline:
            raise WrongError("lacks a headline")
        return record


def _make_printable(value: Any) -> Any:
    """Replace control characters in all text within a value."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_make_printable(name): _make_printable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_make_printable, value))
    return value
