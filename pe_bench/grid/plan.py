"""Planning of the runs of a grid; bad input is refused before anything is trained."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pe_bench.checks.depth import Depths
from pe_bench.errors import CRASHES, DataError, InputError, InputErrors, SavingError, describe_error
from pe_bench.grid.planned_run import PlannedRun
from pe_bench.grid.spec import GridSpec
from pe_bench.registry import plugins
from pe_bench.registry.plugins import Plugin
from pe_bench.runs.factory import RunFactory
from pe_bench.runs.fitting import (
    describe_depths,
    describe_oversights,
    describe_rotations,
    reason_to_skip,
)
from pe_bench.runs.memory import check_task_fits
from pe_bench.runs.options import RunOptions
from pe_bench.runs.outcome import Outcome
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.runs.unused_options import check_used
from pe_bench.system.console import warn
from pe_bench.system.files import check_writable, resolved


@dataclass
class Plan:
    """The runs of a command.

    Attributes:
        runs: the runs in order.
        outcomes: outcomes of tasks and subsets that cannot be run, without effect on other runs.
        notes: limits of an encoding in a task's model, and likely mistakes in its code.
    """

    runs: list[PlannedRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)


class _Problems:
    """Collection of input errors; equal errors are reported once, with all names they apply to."""

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


def make_plan(spec: GridSpec) -> Plan:
    """Return the runs of a grid.

    Raises:
        InputErrors: all errors of the input. Missing data are not an error if another task can be
            run.
    """
    options = spec.options
    problems = _Problems()
    plan = Plan()
    if not spec.execution.dry_run:
        _check_folders(spec.results, options, problems)
    try:
        if options.tune:
            options.tune.check_reported(spec.seeds)
    except InputError as error:
        problems.add("", error)
    factory = _make_factory(options, spec.results, spec.device, problems)
    loaded = _load(spec.encodings, problems, factory)
    # Without the origin, tasks have other lengths and another tokenizer, and thus other errors.
    known = options.origin is None or factory.origin is not None
    resolved = _resolve(spec.tasks, problems, plan, factory, known=known)
    depths = Depths()
    oversights: dict[str, None] = {}  # an ordered set: several tasks may find the same oversight
    for task in resolved:
        adapted = [factory.adapted(encoding, task) for encoding in loaded]
        pairs = _pair(task, adapted, spec, problems)
        if not problems.titles:
            fit = [encoding for encoding, skip in pairs if not skip]
            plan.notes += describe_depths(task, fit, depths)
            oversights |= dict.fromkeys(describe_oversights(task, fit))
            oversights |= dict.fromkeys(describe_rotations(task, fit))
        for seed in dict.fromkeys(spec.seeds):
            for encoding, skip in pairs:
                named = "all" not in spec.encodings or encoding.spec in spec.encodings
                plan.runs.append(PlannedRun(factory.make(encoding, task, seed), skip, named))
    if problems.titles:
        raise InputErrors(problems.sentences())
    plan.notes += oversights
    for note in plan.notes:
        warn(note)
    for task in resolved:
        for subset, why in task.task.unavailable.items():
            title = f"{task.label} · {subset}"
            sentence = warn(f"{title}: {why}")
            asked = subset in (options.subsets or ())
            plan.outcomes.append(Outcome(title, "skipped", (sentence,) if asked else ()))
    return plan


def _check_folders(results: Path, options: RunOptions, problems: _Problems) -> None:
    """Check that results and cache can be written, and do not lie in a folder with data."""
    for folder, remedy in ((results, "--results"), (options.cache, "PE_BENCH_CACHE")):
        for data in options.data.values():
            if data.is_dir() and resolved(folder).is_relative_to(resolved(data)):
                sentence = f"{folder} is inside the folder with data {data}: give another folder"
                problems.add("", InputError(f"{sentence} with {remedy}"))
        if folder == options.cache and folder.is_dir():
            continue  # a read-only cache may contain all necessary files
        try:
            check_writable(folder, remedy)
        except InputError as error:
            problems.add("", error)


def _make_factory(
    options: RunOptions, results: Path, device: str, problems: _Problems
) -> RunFactory:
    """Return the factory of the runs, without the origin if it cannot be loaded."""
    try:
        return RunFactory(options, results, device)
    except InputError as error:
        problems.add("--from", error)
        return RunFactory(replace(options, origin=None, adapt={}), results, device)


def _load(specs: Sequence[str], problems: _Problems, factory: RunFactory) -> list[Plugin]:
    """Return the encodings of the specs, one for each label."""
    loaded: dict[str, Plugin] = {}
    for spec in plugins.expand(specs, "encoding"):
        try:
            plugin = factory.encoding(spec)
            _check_label(plugin, loaded)
        except InputError as error:
            problems.add("", error)
        else:
            loaded.setdefault(plugin.label, plugin)
    return list(loaded.values())


def _resolve(
    specs: Sequence[str], problems: _Problems, plan: Plan, factory: RunFactory, *, known: bool
) -> list[ResolvedTask]:
    """Return the tasks of the specs whose data are available.

    Args:
        specs: names or files of the tasks, with options.
        problems, plan: receive the errors and the outcomes.
        factory: factory of the runs.
        known: whether the origin of the runs is known; otherwise only the specs are checked.
    """
    options = factory.options
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
        if not known:
            continue
        try:
            resolved.append(factory.task(spec))
        except DataError as error:
            missing.append((plugin.label, error))
        except InputError as error:
            problems.add(plugin.label, error)
        except SavingError:
            if not problems.titles:  # otherwise `_check_folders` may have reported it
                raise
        except CRASHES as error:
            cause = describe_error(error)
            warn(f"{plugin.label} failed, {cause}")
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
    task: ResolvedTask, encodings: Sequence[Plugin], spec: GridSpec, problems: _Problems
) -> list[tuple[Plugin, str | None]]:
    """Return the encodings that fit a task's model, each with a reason to skip it or None."""
    fits = True
    try:
        check_task_fits(task, spec.device, spec.options.precision, spec.shards)
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


def _check_label(plugin: Plugin, loaded: dict[str, Plugin]) -> None:
    """Refuse two plugins with the same name in one table."""
    name = plugin.label.partition(":")[0]
    for other in loaded.values():
        if other.label.partition(":")[0] == name and other.file != plugin.file:
            raise InputError(
                f"{other.file} and {plugin.file} have the same name '{name}' in tables: rename one"
                + (", or give its class another `name`" if plugin.kind == "encoding" else "")
            )
