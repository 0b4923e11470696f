"""Repeat a run from its record, in a scratch place, and compare the numbers."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from pe_bench.config import AdaptConfig, ModelConfig
from pe_bench.errors import DataError, InputError
from pe_bench.registry import plugins
from pe_bench.registry.importing import Kind
from pe_bench.registry.plugins import Plugin
from pe_bench.results.identity import tuning_path
from pe_bench.results.reading import read_record, read_run_rows
from pe_bench.results.record import RunRecord
from pe_bench.running.adaptation import adapt, go_on
from pe_bench.running.options import RunOptions
from pe_bench.running.resolve import ResolvedTask, resolve
from pe_bench.running.run import Outcome, Run
from pe_bench.running.tuning import Tuning
from pe_bench.system import environment
from pe_bench.system.console import info
from pe_bench.system.files import cache_folder
from pe_bench.system.sealed import write_sealed
from pe_bench.task import Preset, Task

MADE_ANEW = ("checkpoints", "tuning")  # in the cache; the rest of it is data
PLACE = ("subset", "metric", "length", "second_axis")
FLOATING = ("clock",)  # in the environment


@dataclass(frozen=True)
class Places:
    """Where to find what a record names only; None: where it was.

    Attributes:
        encoding, task: file or folder of a plugin.
        data: folders by name of a task, "" for the run's own.
    """

    encoding: str | None = None
    task: str | None = None
    data: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Number:
    """A number that is another one now. Either is None where that run has no such row."""

    place: str
    before: str | None
    now: str | None

    @property
    def difference(self) -> float:
        """How far apart they are; infinite where one is missing."""
        if self.before is None or self.now is None:
            return float("inf")
        return abs(float(self.before or "nan") - float(self.now or "nan"))


@dataclass(frozen=True)
class Repetition:
    """What a repeated run has led to.

    Attributes:
        outcome: of the repeated run.
        rows: number of rows that were recorded.
        numbers: those that differ, the largest difference first.
        conditions: what differs in settings and environment: name, before and now.
    """

    outcome: Outcome
    rows: int
    numbers: list[Number]
    conditions: list[tuple[str, str, str]]


def repeat(
    record: RunRecord,
    scratch: Path,
    *,
    device: str,
    places: Places | None = None,
) -> Repetition:
    """Train and measure again what a record describes; nothing is read but data.

    Args:
        record: of a finished run.
        scratch: folder for results and checkpoints.
        device: where to run.
        places: where files and data are now.

    Raises:
        InputError: the record cannot be repeated here.
    """
    _check_repeatable(record)
    places = places or Places()
    threads = record.environment.get("threads")
    if device == "cpu" and threads and threads <= (os.cpu_count() or 1):
        torch.set_num_threads(threads)  # the order of sums depends on it
    task, encoding = _rebuild(record, scratch, places)
    _write_choices(record, task, encoding, scratch)
    run = Run(task, encoding, record.seed, scratch / "results", device, task.settings["precision"])
    info(f"{run.title}: again, in {scratch}")
    outcome = run.execute()
    conditions = _changed_conditions(record, task, encoding, device)
    if outcome.status != "done" or outcome.folder is None:
        return Repetition(outcome, 0, [], conditions)
    again = read_record(outcome.folder)
    rows, numbers = _changed_numbers(record, again)
    return Repetition(outcome, rows, numbers, conditions)


def _check_repeatable(record: RunRecord) -> None:
    if record.status != "done":
        raise InputError(
            f"the run has no numbers to compare with, it is {record.status} "
            f"({record.reason or 'no reason recorded'}): pe-bench run repeats it"
        )
    if record.measures_time:
        raise InputError(
            f"{record.task} measures time, which is never the same twice: use pe-bench run with "
            "another --results, and compare"
        )
    if not record.settings:
        raise InputError("the record has no settings, it is of an earlier version: run it again")


def _rebuild(record: RunRecord, scratch: Path, places: Places) -> tuple[ResolvedTask, Plugin]:
    """Return the task of a record under its settings, and its encoding.

    Raises:
        InputError: plugins or data are not there, others are, or a setting is another one here.
    """
    options = _make_options(record, scratch, places)
    spec = _spec("task", record.task, record, places.task)
    task = resolve(options, spec)
    if {*task.task.subsets} != {*record.subsets}:
        task = resolve(replace(options, subsets=record.subsets), spec)
    going_on = record.adaptation
    label = record.encoding if going_on is None else going_on["encoding"]
    encoding = _load("encoding", label, record, places.encoding)
    if going_on is not None:
        origin = _load("encoding", going_on["from"], record, None)
        adapted = going_on["config"] if going_on["config"]["steps"] else {}
        known = [f.name for f in fields(AdaptConfig) if "help" in f.metadata]
        changes = {name: value for name, value in adapted.items() if name in known}
        task = go_on(task, origin, replace(options, origin=origin.label, adapt=changes))
        encoding = adapt(encoding, origin, task)
    _check_settings(record, task)
    return task, encoding


def _load(kind: Kind, label: str, record: RunRecord, place: str | None) -> Plugin:
    """Return the plugin of a label.

    Raises:
        InputError: it is not there, or another one is.
    """
    spec = _spec(kind, label, record, place)
    plugin = plugins.load(kind, spec, record.preset if kind == "task" else "")
    if plugin.label != label:
        raise InputError(f"{spec} is {plugin.label}, and the run is of {label}")
    return plugin


def _spec(kind: Kind, label: str, record: RunRecord, place: str | None) -> str:
    """Return what loads a plugin: its label, with the path of a file."""
    name, colon, options = label.partition(":")
    if name not in plugins.names(kind):
        place = place or record.sources.get(kind)
        if place is None:
            raise InputError(f"{name} is not shipped: say where it is with --{kind} FILE")
        if not Path(place).exists():
            raise InputError(f"{name} is no longer at {place}: say where it is with --{kind} FILE")
    return f"{place or name}{colon}{options}"


def _make_options(record: RunRecord, scratch: Path, places: Places) -> RunOptions:
    """Return the options of a command that would do the run."""
    cls: type[Task] = _load("task", record.task, record, places.task).cls
    data = {name: Path(folder) for name, folder in record.sources.get("data", {}).items()}
    data |= places.data
    preset = cls.preset(record.preset, data.get(""))
    pretrain, model = _changes_of_start(record, preset, data)
    return RunOptions(
        preset=record.preset,
        protocol=record.protocol,
        tokenizer=record.sources.get("tokenizer", RunOptions.tokenizer),
        precision=record.settings["precision"],
        data=data,
        tune=_tuning(record.settings, preset),
        cache=_make_cache(scratch / "cache"),
        train=_changed(record.settings["train"], preset.train),
        pretrain=pretrain,
        model=model,
    )


def _check_settings(record: RunRecord, task: ResolvedTask) -> None:
    """Check that settings are those of a record; versions of code may be others.

    Raises:
        InputError: they are not.
    """
    now = _flat(task.settings)
    for name, before in _flat(record.settings).items():
        if ".versions." in f".{name}" or now.get(name) == before:
            continue
        if name.rpartition(".")[2] == "data":
            raise DataError(
                f"the data are others here ({now.get(name)}) than those of the run ({before}): "
                "give its own with --data"
            )
        raise InputError(
            f"this version of pe-bench cannot repeat the run: {name} was {before}, and would be "
            f"{now.get(name, 'absent')}"
        )


def _changes_of_start(
    record: RunRecord, preset: Preset, data: Mapping[str, Path]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what differs from presets in the phase that the task starts from, and in the model."""
    pretrain: dict[str, Any] = {}
    shape = preset.model
    if preset.starts_from and record.settings["start"]:
        start: str = record.settings["start"]["task"]
        cls: type[Task] = plugins.load("task", start, record.preset).cls
        first = cls.preset(record.preset, data.get(start.partition(":")[0]))
        pretrain = _changed(record.settings["start"]["train"], first.train)
        shape = first.model
    return pretrain, _changed(record.settings["model"], shape or ModelConfig())


def _changed(recorded: Mapping[str, Any], config: Any) -> dict[str, Any]:
    names = [field.name for field in fields(config) if "help" in field.metadata]
    return {n: recorded[n] for n in names if n in recorded and recorded[n] != getattr(config, n)}


def _tuning(settings: Mapping[str, Any], preset: Preset) -> Tuning | None:
    """Return how the run's learning rates were chosen.

    Rates that follow from a learning rate of its own are left to follow again.
    """
    tune = settings.get("tune")
    if not tune:
        return None
    rates = () if settings["train"]["lr"] != preset.train.lr else tuple(tune["lr"])
    return Tuning(rates, tuple(tune["seeds"]), tune["batches"])


def _make_cache(folder: Path) -> Path:
    """Return a cache that has all data of the user's own, and nothing that was trained."""
    folder.mkdir(parents=True, exist_ok=True)
    user = cache_folder()
    for path in sorted(user.iterdir()) if user.is_dir() else ():
        link = folder / path.name
        if path.name not in MADE_ANEW and not link.exists():
            link.symlink_to(path.resolve())
    return folder


def _write_choices(record: RunRecord, task: ResolvedTask, encoding: Plugin, scratch: Path) -> None:
    """Write the recorded learning rates where the run looks for them, so that none is tried."""
    for name, one in (("task", task), ("start", task.start)):
        content = (record.tuning or {}).get(name)
        if content and one is not None:
            identity = one.digest(encoding.label, encoding.version)
            path = tuning_path(scratch / "results", one.label, encoding.label, identity)
            write_sealed(path, content, of=path.stem)


def _changed_numbers(before: RunRecord, now: RunRecord) -> tuple[int, list[Number]]:
    """Return how many rows were recorded, and those whose values are not the same."""
    old = {_place(row): row["value"] for row in read_run_rows(before)}
    new = {_place(row): row["value"] for row in read_run_rows(now)}
    numbers = [
        Number(place, old.get(place), new.get(place))
        for place in dict.fromkeys([*old, *new])
        if old.get(place) != new.get(place)
    ]
    return len(old), sorted(numbers, key=lambda number: -number.difference)


def _place(row: Mapping[str, str]) -> str:
    return " ".join(filter(None, (row[name] for name in PLACE)))


def _changed_conditions(
    record: RunRecord, task: ResolvedTask, encoding: Plugin, device: str
) -> list[tuple[str, str, str]]:
    """Return what differs between a record and now, of all that may change numbers."""
    old = _flat({**record.environment, "encoding_version": record.encoding_version})
    new = _flat({**environment.describe(device), "encoding_version": encoding.version})
    old |= {n: v for n, v in _flat(record.settings).items() if "versions." in n}
    new |= _flat(task.settings)
    return [
        (name, str(old[name]), str(new[name]))
        for name in old
        if name in new and old[name] != new[name] and name not in FLOATING
    ]


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the leaves of a tree by their paths, as JSON has them."""
    found: dict[str, Any] = {}
    for name, value in json.loads(json.dumps(tree, default=str)).items():
        if isinstance(value, dict):
            found |= _flat(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = value
    return found
