"""From a command to runs: whatever cannot end well is refused before anything is trained."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pe_bench.checks.depth import Depths
from pe_bench.config import ModelConfig
from pe_bench.errors import CRASHES, DataError, InputError, InputErrors, SavingError, describe_error
from pe_bench.registry import plugins
from pe_bench.registry.plugins import Plugin
from pe_bench.runs.adaptation import adapt, go_on
from pe_bench.runs.fitting import describe_depths, reason_to_skip
from pe_bench.runs.initial_weights import Pretrained, load_origin, options_from
from pe_bench.runs.memory import check_task_fits
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import ResolvedTask, check_used, resolve
from pe_bench.runs.run import Outcome, Run
from pe_bench.runs.timing_context import find_conditions
from pe_bench.system.console import warn
from pe_bench.system.files import check_writable


@dataclass(frozen=True)
class PlannedRun:
    """A run, and what is known of it beforehand.

    Attributes:
        run: the run.
        skip: why the task cannot be run with the encoding, None if it can.
        named: False for an encoding that only "all" stands for; skipping it is no bad input.
    """

    run: Run
    skip: str | None
    named: bool


@dataclass
class Plan:
    """The runs of a command.

    Attributes:
        runs: in order.
        outcomes: tasks and subsets that cannot be run, for reasons that hurt nothing else.
        notes: what an encoding cannot do in a task's model, without being wrong.
    """

    runs: list[PlannedRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)


class _Problems:
    """Sentences about bad input, those that are equal said once for all whom they concern."""

    def __init__(self) -> None:
        self.titles: dict[str, list[str]] = {}

    def add(self, title: str, error: InputError) -> None:
        self.titles.setdefault(str(error), []).append(title)

    def sentences(self) -> list[str]:
        found = []
        for sentence, titles in self.titles.items():
            names = ", ".join(dict.fromkeys(filter(None, titles)))
            found.append(f"{names}: {sentence}" if names else sentence)
        return found


def make_plan(
    options: RunOptions,
    encodings: Sequence[str],
    tasks: Sequence[str],
    seeds: Sequence[int],
    *,
    results: Path,
    device: str,
    shards: int = 1,
    writes: bool = True,
) -> Plan:
    """Return the runs of every encoding on every task under every seed.

    Args:
        options: common to all runs.
        encodings, tasks: specs; "all" stands for every shipped one.
        seeds: of weights, batches and evaluation.
        results: folder to write to.
        device: "cpu" or "cuda".
        shards: see `check_task_fits`.
        writes: whether anything is going to be written.

    Raises:
        InputErrors: bad input, all of it. Data that are missing are no bad input as long as
            another task can be run.
    """
    problems = _Problems()
    plan = Plan()
    if writes:
        _check_folders(results, options.cache, problems)
    try:
        if options.tune:
            options.tune.check_reported(seeds)
    except InputError as error:
        problems.add("", error)
    origin = _load_origin(options.origin, problems)
    shape = None
    complete: Callable[[str], str] | None = None
    if isinstance(origin, Pretrained):
        shape = origin.checkpoint.model
        complete = origin.checkpoint.spec
        try:
            options = options_from(options, origin.checkpoint)
        except InputError as error:
            problems.add("", error)
    loaded = _load(encodings, problems, complete)
    conditions = find_conditions(device)
    resolved = [t.under(conditions) for t in _resolve(options, tasks, problems, plan, shape)]
    if origin:
        resolved = _go_on(resolved, origin, options, problems)
    depths = Depths()
    for task in resolved:
        fitting = [adapt(e, origin, task) for e in loaded] if origin else loaded
        pairs = _pair(task, fitting, device, options.precision, shards, problems)
        if not problems.titles:
            fit = [encoding for encoding, skip in pairs if not skip]
            plan.notes += describe_depths(task, fit, depths)
        for seed in dict.fromkeys(seeds):
            for encoding, skip in pairs:
                run = make_run(options, task, encoding, seed, results, device)
                named = "all" not in encodings or encoding.spec in encodings
                plan.runs.append(PlannedRun(run, skip, named))
    if problems.titles:
        raise InputErrors(problems.sentences())
    for note in plan.notes:
        warn(note)
    for task in resolved:
        for subset, why in task.task.unavailable.items():
            title = f"{task.label} · {subset}"
            sentence = warn(f"{title}: {why}")
            asked = subset in (options.subsets or ())
            plan.outcomes.append(Outcome(title, "skipped", (sentence,) if asked else ()))
    return plan


def make_run(
    options: RunOptions,
    task: ResolvedTask,
    encoding: Plugin,
    seed: int,
    results: Path,
    device: str,
) -> Run:
    """Return one run of a command."""
    return Run(task, encoding, seed, results, device, options.precision, options.keep)


def _check_folders(results: Path, cache: Path, problems: _Problems) -> None:
    folders = [(results, "--results")]
    if not cache.is_dir():  # one that is read-only may have all that is needed
        folders.append((cache, "PE_BENCH_CACHE"))
    for folder, remedy in folders:
        try:
            check_writable(folder, remedy)
        except InputError as error:
            problems.add("", error)


def _load(
    specs: Sequence[str], problems: _Problems, complete: Callable[[str], str] | None
) -> list[Plugin]:
    """Return the encodings of the specs, one for each label.

    Args:
        specs: of the command.
        problems: what is wrong is added to them.
        complete: spec -> the spec with what a checkpoint adds, None where there is none.
    """
    loaded: dict[str, Plugin] = {}
    for spec in plugins.expand(specs, "encoding"):
        try:
            plugin = _load_one(spec, complete)
            _check_label(plugin, loaded)
        except InputError as error:
            problems.add("", error)
        else:
            loaded.setdefault(plugin.label, plugin)
    return list(loaded.values())


def _load_origin(spec: str | None, problems: _Problems) -> Plugin | None:
    """Return the encoding whose trained models others go on from, if any."""
    if spec is None:
        return None
    try:
        return load_origin(spec)
    except InputError as error:
        problems.add("--from", error)
        return None


def _go_on(
    tasks: Sequence[ResolvedTask], origin: Plugin, options: RunOptions, problems: _Problems
) -> list[ResolvedTask]:
    """Return the tasks as they go on from a model that was trained with `origin`."""
    found = []
    for task in tasks:
        try:
            reason = reason_to_skip(origin, task, fits=True)
            if reason and not isinstance(origin, Pretrained):
                raise InputError(f"{origin.label} cannot be trained there: {reason}")
            found.append(go_on(task, origin, options))
        except InputError as error:
            problems.add(task.label, error)
    return found


def _resolve(
    options: RunOptions,
    specs: Sequence[str],
    problems: _Problems,
    plan: Plan,
    shape: ModelConfig | None,
) -> list[ResolvedTask]:
    """Return the tasks of the specs whose data are there; `shape` as in `resolve`."""
    loaded: dict[str, Plugin] = {}
    resolved: list[ResolvedTask] = []
    missing: list[tuple[str, DataError]] = []
    for spec in plugins.expand(specs, "task"):
        try:
            plugin = plugins.load("task", spec, options.preset)
            _check_label(plugin, loaded)
        except InputError as error:
            problems.add("", error)
            continue
        if plugin.label in loaded:
            continue
        loaded[plugin.label] = plugin
        try:
            resolved.append(resolve(options, spec, shape=shape))
        except DataError as error:
            missing.append((plugin.label, error))
        except InputError as error:
            problems.add(plugin.label, error)
        except SavingError:
            if not problems.titles:  # that a folder cannot be written to is among them
                raise
        except CRASHES as error:
            cause = warn(f"{plugin.label} failed, {describe_error(error)}")
            plan.outcomes.append(Outcome(plugin.label, "failed", cause=cause))
    wrong_path = any(not path.exists() for path in options.data.values())
    for label, reason in missing:
        if wrong_path or not resolved:
            problems.add(label, reason)
        elif not problems.titles:
            sentence = warn(f"{label}: {reason}")
            named = "all" not in specs or label in specs
            plan.outcomes.append(Outcome(label, "skipped", (sentence,) if named else ()))
    if len(resolved) == len(plugins.expand(specs, "task")):
        try:
            check_used(options, resolved)
        except InputError as error:
            problems.add("", error)
    return resolved


def _pair(
    task: ResolvedTask,
    encodings: Sequence[Plugin],
    device: str,
    precision: str,
    shards: int,
    problems: _Problems,
) -> list[tuple[Plugin, str | None]]:
    """Return the encodings that a task's model can hold, each with a reason to skip it or None."""
    fits = True
    try:
        check_task_fits(task, device, precision, shards)
    except InputError as error:
        problems.add(task.label, error)
        fits = False
    pairs = []
    for encoding in encodings:
        try:
            pairs.append((encoding, reason_to_skip(encoding, task, fits)))
        except InputError as error:
            problems.add(f"{encoding.label} on {task.label}", error)
    return pairs


def _load_one(spec: str, complete: Callable[[str], str] | None) -> Plugin:
    """Return an encoding with what a checkpoint adds, under a label that says what the user did."""
    plugin = plugins.load("encoding", spec)
    if complete is None:
        return plugin
    full = complete(spec)
    label = plugin.label
    shipped = label.partition(":")[0] in plugins.names("encoding")
    if shipped and complete(label) != full:
        label = spec  # a default of the encoding, where the checkpoint has another
    return replace(plugins.load("encoding", full), label=label)


def _check_label(plugin: Plugin, loaded: dict[str, Plugin]) -> None:
    """Refuse two plugins of one name in one table."""
    name = plugin.label.partition(":")[0]
    for other in loaded.values():
        if other.label.partition(":")[0] == name and other.file != plugin.file:
            raise InputError(
                f"{other.file} and {plugin.file} have the same name '{name}' in tables: rename one"
                + (", or give its class another `name`" if plugin.kind == "encoding" else "")
            )
