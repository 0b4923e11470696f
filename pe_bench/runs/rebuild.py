"""The task and the encoding of a run, built from its record."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pe_bench.config import AdaptConfig, ModelConfig
from pe_bench.errors import DataError, InputError
from pe_bench.option_table import option_names
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.importing import Kind, trusting_only
from pe_bench.registry.options import split_spec
from pe_bench.registry.plugins import Plugin
from pe_bench.results.identity import flatten_settings, settings_of_phases
from pe_bench.results.labels import plugin_name
from pe_bench.results.record import RunRecord
from pe_bench.runs.factory import RunFactory
from pe_bench.runs.options import MovedPaths, RunOptions
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.runs.tuning import Tuning, default_rates
from pe_bench.system.files import cache_folder
from pe_bench.task import Preset, Task

NEEDED = {"task", "precision", "model", "train", "start"}  # required settings
TRAINED = ("checkpoints", "tuning")  # folders of the cache with results of training, not data


def rebuild(record: RunRecord, scratch: Path, moved: MovedPaths) -> tuple[ResolvedTask, Plugin]:
    """Return the task of a record under its settings, and its encoding.

    Code comes from the package and from `moved` only, whatever files the record names.

    Args:
        record: record of a run.
        scratch: folder for a cache without trained models.
        moved: current paths of files and data.

    Raises:
        InputError: plugins or data are missing or differ, or a setting differs here.
    """
    _check_complete(record.settings)
    with trusting_only(moved.encoding, moved.task):
        return _rebuild(record, scratch, moved)


def _rebuild(record: RunRecord, scratch: Path, moved: MovedPaths) -> tuple[ResolvedTask, Plugin]:
    _check_paths(record, moved)
    options = _make_options(record, scratch, moved)
    label = record.encoding
    if record.adaptation is not None:
        label = record.adaptation["encoding"]
        options = _options_to_continue(options, record, moved)
    elif moved.origin is not None:
        raise InputError("--from has no effect: the model of this run starts from no other one")
    spec = _spec("task", record.task, record, moved.task)
    factory = RunFactory(options)
    task = factory.task(spec)
    if {*task.task.subsets} != {*record.subsets}:
        factory = RunFactory(replace(options, subsets=record.subsets))
        task = factory.task(spec)
    _check_settings(record, task)
    encoding = factory.encoding(_spec("encoding", label, record, moved.encoding))
    _check_label(encoding, label)
    return task, factory.adapted(encoding, task)


def _check_paths(record: RunRecord, moved: MovedPaths) -> None:
    """Check that a given file belongs to a plugin of the run that is not shipped.

    Raises:
        InputError: all plugins of this kind are shipped.
    """
    encodings = [record.encoding]
    if record.adaptation:
        encodings = [record.adaptation["encoding"]]
        if not (moved.origin or record.sources.get("checkpoint")):
            encodings.append(record.adaptation["from"])
    of_kinds: dict[Kind, tuple[str | None, list[str]]] = {
        "task": (moved.task, [record.task]),
        "encoding": (moved.encoding, encodings),
    }
    for kind, (path, labels) in of_kinds.items():
        own = [plugin_name(label) for label in labels]
        if path is not None and {*own} <= {*catalogue.names(kind)}:
            raise InputError(f"--{kind} has no effect: the {kind} of the run, {own[0]}, is shipped")


def _options_to_continue(options: RunOptions, record: RunRecord, moved: MovedPaths) -> RunOptions:
    """Return the options of a run whose model starts from another one."""
    assert record.adaptation is not None
    adapt = _adaptation(record.adaptation)
    recorded = record.sources.get("checkpoint")
    folder = moved.origin or (Path(recorded) if recorded else None)
    if folder is None:
        origin = _load("encoding", record.adaptation["from"], record, moved.encoding)
        return replace(options, origin=origin.given, adapt=adapt)
    if not folder.is_dir():
        raise InputError(f"there is no checkpoint {folder}: give its folder with --from DIR")
    tune = options.tune
    if tune and "lr" in adapt:
        if tune.lr == default_rates(adapt["lr"]):
            tune = replace(tune, lr=())  # they follow from adapt.lr
        else:
            del adapt["lr"]  # has no effect on a search with given rates
    return replace(
        options,
        tune=tune,
        origin=str(folder),
        adapt=adapt,
        train={"length": record.settings["train"]["length"]},
        model={},  # the checkpoint determines the model and its tokenizer
        tokenizer=RunOptions.tokenizer,
    )


def _check_complete(settings: Mapping[str, Any] | None) -> None:
    """Check that the settings of a task, and of the task that it starts from, are complete.

    Raises:
        InputError: they are not.
    """
    phases = list(settings_of_phases(settings))
    if not phases or any(not phase.keys() >= NEEDED for phase in phases):
        raise InputError("the record has no settings, as in an earlier version: run it again")


def _load(kind: Kind, label: str, record: RunRecord, path: str | None) -> Plugin:
    """Return the plugin of a label.

    Raises:
        InputError: the plugin is missing, or has another label.
    """
    spec = _spec(kind, label, record, path)
    plugin = plugins.load(kind, spec, record.preset if kind == "task" else "")
    _check_label(plugin, label)
    return plugin


def _check_label(plugin: Plugin, label: str) -> None:
    if plugin.label != label:
        raise InputError(f"the run has {label}, but {plugin.given} has {plugin.label}")


def _spec(kind: Kind, label: str, record: RunRecord, path: str | None) -> str:
    """Return the spec that loads a plugin: its label, with the path of the user's file if any."""
    name, colon, options = label.partition(":")
    if name in catalogue.names(kind):
        return label
    if path is None:
        recorded = record.sources.get(kind)
        known = f" (it was {recorded})" if recorded else ""
        if record.adaptation and name == record.adaptation["from"]:
            known = f", or its folder with --from DIR if it is a checkpoint{known}"
        raise InputError(f"{name} is not shipped: give its file with --{kind} FILE{known}")
    where, given = split_spec(path)
    if given:
        raise InputError(f"give {where} without options: those of the run are in its record")
    return f"{path}{colon}{options}"


def _make_options(record: RunRecord, scratch: Path, moved: MovedPaths) -> RunOptions:
    """Return the options of a command that would execute the run."""
    cls: type[Task] = _load("task", record.task, record, moved.task).cls
    data = {name: Path(folder) for name, folder in record.sources.get("data", {}).items()}
    data |= moved.data
    if record.preset not in cls.presets:
        raise InputError(f"{record.task} has no preset '{record.preset}' in this version")
    preset = cls.preset(record.preset, data.get(""))
    pretrain, model = _changes_of_start(record, preset, data)
    return RunOptions(
        preset=record.preset,
        protocol=record.protocol,
        tokenizer=record.sources.get("tokenizer", RunOptions.tokenizer),
        precision=record.settings["precision"],
        data=data,
        tune=_read_tuning(record.settings, preset),
        cache=_make_cache(scratch / "cache"),
        train=_changed(record.settings["train"], preset.train),
        pretrain=pretrain,
        model=model,
    )


def _adaptation(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a recorded adaptation; none if nothing is trained."""
    config = recorded.get("config") or {}
    if not config.get("steps"):
        return {}
    return {name: config[name] for name in option_names(AdaptConfig) if name in config}


def _check_settings(record: RunRecord, task: ResolvedTask) -> None:
    """Check that settings equal those of a record; versions of code may differ.

    Raises:
        InputError: a setting differs.
    """
    now = flatten_settings(task.settings)
    for name, before in flatten_settings(record.settings).items():
        if ".versions." in f".{name}" or now.get(name) == before:
            continue
        if name.rpartition(".")[2] == "data":
            raise DataError(
                f"the data ({now.get(name)}) differ from those of the run ({before}): "
                "give the data of the run with --data"
            )
        raise InputError(
            f"this version of pe-bench cannot repeat the run: {name} was {before}, and would be "
            f"{now.get(name, 'absent')}"
        )


def _changes_of_start(
    record: RunRecord, preset: Preset, data: Mapping[str, Path]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the changes to the presets of the phase to start from, and of the model."""
    pretrain: dict[str, Any] = {}
    shape = preset.model
    if preset.starts_from and record.settings["start"]:
        start: str = record.settings["start"]["task"]
        cls: type[Task] = plugins.load("task", start, record.preset).cls
        first = cls.preset(record.preset, data.get(plugin_name(start)))
        pretrain = _changed(record.settings["start"]["train"], first.train)
        shape = first.model
    return pretrain, _changed(record.settings["model"], shape or ModelConfig())


def _changed(recorded: Mapping[str, Any], config: Any) -> dict[str, Any]:
    names = option_names(type(config))
    return {n: recorded[n] for n in names if n in recorded and recorded[n] != getattr(config, n)}


def _read_tuning(settings: Mapping[str, Any], preset: Preset) -> Tuning | None:
    """Return the search that chose the run's learning rates.

    If the user gave a learning rate, the search derived its candidates from it. The result then
    has no candidates, so that they are derived again.
    """
    tune = settings.get("tune")
    if not tune:
        return None
    rates = () if settings["train"]["lr"] != preset.train.lr else tune["lr"]
    known = {field.name: tune[field.name] for field in fields(Tuning) if field.name in tune}
    return Tuning.from_settings({**known, "lr": rates})


def _make_cache(folder: Path) -> Path:
    """Return a cache that has all data of the user's cache, and no results of training."""
    folder.mkdir(parents=True, exist_ok=True)
    user = cache_folder()
    if not user.is_dir():
        return folder
    for path in sorted(user.iterdir()):
        link = folder / path.name
        if path.name not in TRAINED and not link.exists():
            link.symlink_to(path.resolve())
    return folder
