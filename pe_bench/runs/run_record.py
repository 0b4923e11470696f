"""The record of a run: the origin of its numbers, and their cost."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pe_bench.errors import CRASHES
from pe_bench.pretrained.rotation import with_rotation
from pe_bench.registry.plugins import Plugin
from pe_bench.results.learning_curves import CurveKey, LearningCurve
from pe_bench.results.record import RunRecord, RunStatus
from pe_bench.runs.declared import declared_fields
from pe_bench.runs.describe import describe_encoding, describe_task
from pe_bench.runs.initial_weights import Adapted, Pretrained
from pe_bench.runs.phases import Phases, Start
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.runs.sources import find_user_paths
from pe_bench.system import environment
from pe_bench.task import Task
from pe_bench.train.checkpoint_store import CheckpointStore
from pe_bench.train.training_result import TrainingResult


def make_record(
    status: RunStatus, resolved: ResolvedTask, phases: Phases, seed: int, order: int, **more: Any
) -> RunRecord:
    """Return the record of a run that ends now.

    Args:
        status: status of the run.
        resolved: the task.
        phases: training phases of the encoding.
        seed: seed of the run.
        order: position among the runs of this encoding and task.
        **more: fields that only some runs have.
    """
    task = resolved.task
    return RunRecord(
        status=status,
        task=resolved.label,
        encoding=phases.encoding.label,
        encoding_version=phases.encoding.version,
        adaptation=_find_adaptation(phases.encoding),
        seed=seed,
        preset=task.context.preset,
        protocol=task.context.protocol,
        data=_find_data(task, status),
        settings_digest=resolved.digest(),
        settings=resolved.settings,
        options=resolved.words,
        sources=find_user_paths(resolved, phases.encoding),
        tuning=_find_tuning(resolved, phases),
        **declared_fields(task),
        train_length=resolved.model.train_length,
        fine_tune_length=resolved.train.length if resolved.start else None,
        described={
            "encoding": describe_encoding(resolved, phases.encoding),
            "task": describe_task(resolved),
        },
        environment=_describe_environment(phases),
        order=order,
        finished=as_text(datetime.now(UTC)),
        **more,
    )


def _describe_environment(phases: Phases) -> dict[str, Any]:
    if phases.ranks is None:
        return environment.describe(phases.device)
    return environment.describe(phases.device, phases.ranks.devices, phases.ranks.strategy)


def as_text(moment: datetime) -> str:
    """Return a time in UTC in the format of records; texts of later times are greater."""
    return moment.isoformat(timespec="milliseconds")


def _find_data(task: Task, status: RunStatus) -> dict[str, Any]:
    """Return the provenance of the data, or its label if it is not available for a failed run."""
    try:
        return task.provenance()
    except CRASHES:
        if status == "done":
            raise
        return {"label": task.data_label}


def total_costs(costs: Mapping[str, Mapping[str, Any]], *, each_subset: bool) -> dict[str, Any]:
    """Return the total cost of subsets over all calls.

    Args:
        costs: cost of each measured subset.
        each_subset: whether each subset had a separate training; False: all shared one training.
    """
    trainings = [cost["training"] for cost in costs.values()]
    if not each_subset:
        trainings = trainings[:1]
    seconds = [training["seconds"] for training in trainings]
    seconds += [cost["evaluation_seconds"] for cost in costs.values()]
    peaks = [part["peak_memory_bytes"] for part in (*trainings, *costs.values())]
    notes: dict[str, None] = {}  # an ordered set
    parts = {}
    for name, cost in costs.items():
        notes |= dict.fromkeys(cost["notes"])
        parts[name] = {key: value for key, value in cost.items() if key != "notes"}
    return {
        "subsets": tuple(costs),
        "seconds": round(sum(seconds), 3),
        "peak_memory_bytes": max(peaks, default=None),
        "notes": tuple(notes),
        "costs": parts,
    }


def find_pretraining(resolved: ResolvedTask, phases: Phases, seed: int) -> dict[str, Any] | None:
    """Return the cost of the phase that the task starts from; None: it is not known.

    If each model of the run starts from a different one, the result is the total of their costs,
    without a loss.
    """
    found: dict[str | None, TrainingResult] = {}  # by the subset of the earlier phase
    for subset in resolved.model_subsets:
        start = phases.find_start(resolved, subset)
        trained = _load_start_result(start, seed) if start else None
        if start is None or trained is None:
            return None
        found[start.subset] = trained
    results = list(found.values())
    if len(results) <= 1:
        return results[0].cost() if results else None
    total = {"steps": 0, "tokens": 0, "seconds": 0.0, "peak_memory_bytes": 0}
    for trained in results:
        total["steps"] += trained.steps
        total["tokens"] += trained.tokens
        total["seconds"] += trained.seconds
        total["peak_memory_bytes"] = max(total["peak_memory_bytes"], trained.peak_memory_bytes)
    return total


def find_curves(
    resolved: ResolvedTask, phases: Phases, subset: str | None, seed: int, trained: TrainingResult
) -> dict[CurveKey, LearningCurve]:
    """Return the learning curves of a model's phases, with keys as in `OF_A_RUN`.

    Args:
        resolved: the task.
        phases: training phases of the encoding.
        subset: subset that the model was trained for; None: all subsets.
        seed: seed of the run.
        trained: result of the model's last phase, called "task" in the keys. The phase that it
            starts from is called "start".
    """
    curves: dict[CurveKey, LearningCurve] = {}
    start = phases.find_start(resolved, subset)
    start_result = _load_start_result(start, seed) if start else None
    if start and start_result and start_result.curve:
        curves["start", start.subset or ""] = start_result.curve
    if trained.curve:
        curves["task", subset or ""] = trained.curve
    return curves


def _load_start_result(start: Start, seed: int) -> TrainingResult | None:
    """Load the result of the training that a phase starts from."""
    choice = start.choose()
    identity = start.phases.identity(start.task, start.subset, seed, choice)
    return CheckpointStore(start.checkpoint(seed, choice), identity).load_result()


def _find_adaptation(encoding: Plugin) -> dict[str, Any] | None:
    """Return the origin and the configuration of an adapted encoding; None for any other one."""
    if not isinstance(encoding, Adapted):
        return None
    origin = encoding.origin
    if isinstance(origin, Pretrained):
        full, _ = with_rotation(encoding.spec, origin.checkpoint.config)
        same = full == origin.checkpoint.encoding
    else:
        same = encoding.spec == origin.spec
    return {
        "encoding": encoding.spec,
        "from": origin.spec,
        "unchanged": same and not encoding.config.steps,
        "config": asdict(encoding.config),
    }


def _find_tuning(resolved: ResolvedTask, phases: Phases) -> dict[str, Any] | None:
    """Return the chosen learning rates of the task and of the phase that it starts from."""
    found = {}
    search = phases.read_search(resolved)
    if search:
        found["task"] = search
    if resolved.start is not None:
        search = phases.start_phases.read_search(resolved.start)
        if search:
            found["start"] = search
    return found or None
