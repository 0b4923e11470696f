"""Planning of the runs of a grid; bad input is refused before anything is trained."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pe_bench.checks.depth import Depths
from pe_bench.checks.names import find_undefined
from pe_bench.errors import CRASHES, DataError, InputError, InputErrors, SavingError, describe_error
from pe_bench.grid.faults import find_faults
from pe_bench.grid.planned_run import PlannedRun
from pe_bench.grid.spec import GridSpec
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.importing import Kind
from pe_bench.registry.plugins import Plugin
from pe_bench.results.labels import plugin_name
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
from pe_bench.system.files import check_no_file, check_writable, real_path


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
        self._titles: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._titles)

    def add(self, title: str, error: InputError) -> None:
        self._titles.setdefault(str(error), []).append(title)

    @contextmanager
    def collect(self, title: str = "") -> Iterator[None]:
        """Add the input error that the body raises, and continue after the body."""
        try:
            yield
        except InputError as error:
            self.add(title, error)

    def sentences(self) -> list[str]:
        found = []
        for sentence, titles in self._titles.items():
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
    if spec.execution.dry_run:
        with problems.collect():
            check_no_file(spec.results, "--results")
    else:
        _check_folders(spec.results, options, problems)
    if options.tune:
        with problems.collect():
            options.tune.check_reported(spec.seeds)
    factory = _make_factory(options, spec.results, spec.device, problems)
    encodings = _load(spec.encodings, "encoding", factory.encoding, problems)
    load_task = partial(plugins.load, "task", preset=options.preset)
    tasks = _load(spec.tasks, "task", load_task, problems)
    resolved: list[ResolvedTask] = []
    failures: dict[str, BaseException] = {}
    # Without the origin, tasks have other lengths and another tokenizer, and thus other errors.
    if options.origin is None or factory.origin is not None:
        resolved, failures = _resolve(tasks, factory, problems)
        _check_data(failures, resolved, options, problems)
        if len(resolved) == len(catalogue.expand(spec.tasks, "task")):
            with problems.collect():
                check_used(options, resolved)
    plan = _plan_runs(spec, factory, encodings, resolved, problems)
    if not problems:
        to_do = [planned.run for planned in plan.runs if _is_to_do(planned)]
        for label, fault in find_faults(tasks, to_do):
            problems.add(label, InputError(fault))
    if problems:
        raise InputErrors(problems.sentences())
    named = [task.label for task in tasks if "all" not in spec.tasks or task.given in spec.tasks]
    plan.outcomes += _explain(failures, named)
    for note in plan.notes:
        warn(note)
    for task in resolved:
        for subset, why in task.task.unavailable.items():
            asked = subset in (options.subsets or ())
            plan.outcomes.append(_skipped(f"{task.label} · {subset}", why, asked=asked))
    return plan


def _check_folders(results: Path, options: RunOptions, problems: _Problems) -> None:
    """Check that results and cache can be written, and do not lie in a folder with data."""
    for folder, remedy in ((results, "--results"), (options.cache, "PE_BENCH_CACHE")):
        for data in options.data.values():
            if data.is_dir() and real_path(folder).is_relative_to(real_path(data)):
                sentence = f"{folder} is inside the folder with data {data}: give another folder"
                problems.add("", InputError(f"{sentence} with {remedy}"))
        if folder == options.cache and folder.is_dir():
            continue  # a read-only cache may contain all necessary files
        with problems.collect():
            check_writable(folder, remedy)


def _make_factory(
    options: RunOptions, results: Path, device: str, problems: _Problems
) -> RunFactory:
    """Return the factory of the runs, without the origin if it cannot be loaded."""
    with problems.collect("--from"):
        return RunFactory(options, results, device)
    return RunFactory(replace(options, origin=None, adapt={}), results, device)


def _load(
    specs: Sequence[str], kind: Kind, load: Callable[[str], Plugin], problems: _Problems
) -> list[Plugin]:
    """Return the plugins of the specs, one for each label."""
    loaded: dict[str, Plugin] = {}
    for spec in catalogue.expand(specs, kind):
        with problems.collect():
            plugin = load(spec)
            _check_label(plugin, loaded)
            loaded.setdefault(plugin.label, plugin)
    return list(loaded.values())


def _resolve(
    tasks: Sequence[Plugin], factory: RunFactory, problems: _Problems
) -> tuple[list[ResolvedTask], dict[str, BaseException]]:
    """Return the tasks that can be run, and why each of the others cannot.

    Bad input is added to the problems. The other errors are missing data and crashes.
    """
    resolved: list[ResolvedTask] = []
    failures: dict[str, BaseException] = {}
    for plugin in tasks:
        try:
            resolved.append(factory.task(plugin.given))
        except InputError as error:
            if isinstance(error, DataError):
                failures[plugin.label] = error
            else:
                problems.add(plugin.label, error)
        except SavingError:
            if not problems:  # otherwise `_check_folders` may have reported it
                raise
        except CRASHES as error:
            undefined = find_undefined(error, plugin.cls)
            if undefined:
                problems.add(plugin.label, InputError(undefined))
            else:
                failures[plugin.label] = error
    return resolved, failures


def _is_to_do(planned: PlannedRun) -> bool:
    run = planned.run
    return planned.skip is None and not run.files.looks_finished(run.resolved.task.subsets)


def _check_data(
    failures: Mapping[str, BaseException],
    resolved: Sequence[ResolvedTask],
    options: RunOptions,
    problems: _Problems,
) -> None:
    """Add missing data to the problems if no task has data, or a path of `--data` is wrong."""
    wrong_path = any(not path.exists() for path in options.data.values())
    if resolved and not wrong_path:
        return
    for label, error in failures.items():
        if isinstance(error, DataError):
            problems.add(label, error)


def _explain(failures: Mapping[str, BaseException], named: Sequence[str]) -> list[Outcome]:
    """Warn of the tasks that cannot be run, and return their outcomes.

    Args:
        failures: why a task cannot be run, by label.
        named: labels of the tasks that the user named, without those of "all".
    """
    outcomes = []
    for label, error in failures.items():
        if isinstance(error, DataError):
            outcomes.append(_skipped(label, str(error), asked=label in named))
        else:
            cause = describe_error(error)
            warn(f"{label} failed, {cause}")
            outcomes.append(Outcome(label, "failed", cause=cause))
    return outcomes


def _skipped(title: str, reason: str, *, asked: bool) -> Outcome:
    """Warn of a task or subset that is skipped, and return its outcome.

    Args:
        title: name of the task or subset.
        reason: why it is skipped.
        asked: whether the user named it; the command then fails.
    """
    sentence = warn(f"{title}: {reason}")
    return Outcome(title, "skipped", (sentence,) if asked else ())


def _plan_runs(
    spec: GridSpec,
    factory: RunFactory,
    encodings: Sequence[Plugin],
    tasks: Sequence[ResolvedTask],
    problems: _Problems,
) -> Plan:
    """Return the runs of the encodings on the tasks, with notes if there are no problems."""
    plan = Plan()
    depths = Depths()
    oversights: dict[str, None] = {}  # an ordered set: several tasks may find the same oversight
    for task in tasks:
        adapted = [factory.adapted(encoding, task) for encoding in encodings]
        pairs = _pair(task, adapted, spec, problems)
        if not problems:
            fit = [encoding for encoding, skip in pairs if not skip]
            plan.notes += describe_depths(task, fit, depths)
            oversights |= dict.fromkeys(describe_oversights(task, fit))
            oversights |= dict.fromkeys(describe_rotations(task, fit))
        for seed in dict.fromkeys(spec.seeds):
            for encoding, skip in pairs:
                named = "all" not in spec.encodings or encoding.given in spec.encodings
                plan.runs.append(PlannedRun(factory.make(encoding, task, seed), skip, named))
    plan.notes += oversights
    return plan


def _pair(
    task: ResolvedTask, encodings: Sequence[Plugin], spec: GridSpec, problems: _Problems
) -> list[tuple[Plugin, str | None]]:
    """Return the encodings that fit a task's model, each with a reason to skip it or None."""
    fits = False
    with problems.collect(task.label):
        check_task_fits(task, spec.device, spec.options.precision, spec.weight_shards)
        fits = True
    pairs = []
    for encoding in encodings:
        with problems.collect(f"{encoding.label} on {task.label}"):
            pairs.append((encoding, reason_to_skip(encoding, task, fits)))
    return pairs


def _check_label(plugin: Plugin, loaded: dict[str, Plugin]) -> None:
    """Refuse two plugins with the same name in one table."""
    name = plugin_name(plugin.label)
    for other in loaded.values():
        if plugin_name(other.label) == name and other.file != plugin.file:
            raise InputError(
                f"{other.file} and {plugin.file} have the same name '{name}' in tables: rename one"
                + (", or give its class another `name`" if plugin.kind == "encoding" else "")
            )
