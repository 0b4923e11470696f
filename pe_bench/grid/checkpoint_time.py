"""Estimates how long it takes to evaluate a checkpoint or to train it further."""

import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from pe_bench.config import AdaptConfig, ModelConfig
from pe_bench.grid.cost import CostCounter, TrainingShape, phases_of
from pe_bench.runs.rate_search import TRAININGS
from pe_bench.runs.run import Run, pending_search_key
from pe_bench.system.console import show_duration
from pe_bench.train.threads import using_threads

ROWS = 512
"""Tokens of the measured product; more are hardly faster on a CPU."""

MEASURED = 0.5
"""Seconds of the measurement, of which the fastest product counts."""

SHORTEST = 10.0
"""Work of fewer seconds is not announced."""

WITHOUT_WEIGHTS = 2 / 3
"""Fraction of a training step without the products for gradients of weights.

Methods other than full training need few of these.
"""


def uses_checkpoint(run: Run) -> bool:
    """Return whether the model of a run is a checkpoint, or is not trained at all."""
    steps = [phase.train.steps for phase in phases_of(run.resolved)]
    return run.encoding.starts_from_checkpoint or not any(steps)


def describe_work(runs: Sequence[Run], threads: int, parallel_runs: int) -> str | None:
    """Return a line with operations and a lower bound of the time; None for short work.

    Operations are those of matrix products. Only the first run of each task and method is counted,
    since counting takes seconds. The speed is measured with a product of the model's MLP.

    Args:
        runs: runs of checkpoints.
        threads: threads of a run.
        parallel_runs: number of runs at the same time.
    """
    trained = 0.0
    evaluated = 0.0
    seconds = 0.0
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.resolved.label, _method(run)), []).append(run)
    for (_, method), group in groups.items():
        first = group[0]
        resolved = first.resolved
        costs = CostCounter(first.precision)
        training = costs.of_run(first.encoding, phases_of(resolved)).operations
        if method != "full":
            training *= WITHOUT_WEIGHTS
        evaluation = 0.0
        sequences = resolved.task.evaluation_sequences()
        if sequences:
            phase = TrainingShape(resolved.label, resolved.train, resolved.model)
            cost = costs.of_model(first.encoding, phase)
            evaluation = sum(count * cost.prefill(length) for length, count in sequences.items())
        if training or evaluation:
            searches = {pending_search_key(run) for run in group} - {None}
            training *= len(group) + TRAININGS * len(searches)
            evaluation *= len(group)
            trained += training
            evaluated += evaluation
            speed = _measure_speed(resolved.model, first.device, first.precision, threads)
            seconds += (training + evaluation) / speed
    seconds /= parallel_runs
    if seconds < SHORTEST:
        return None
    speed = (trained + evaluated) / seconds / parallel_runs
    parts = {"training": trained, "evaluation": evaluated}
    amounts = [f"{name} {amount / 1e12:.3g} TFLOP" for name, amount in parts.items() if amount]
    return (
        f"matrix products: {', '.join(amounts)}; at least {show_duration(seconds)} at the "
        f"{speed / 1e9:,.0f} GFLOP/s that they reach here"
    )


def _method(run: Run) -> str:
    """Return the method of further training."""
    config = run.resolved.train
    return config.method if isinstance(config, AdaptConfig) else "full"


def _measure_speed(model: ModelConfig, device: str, precision: str, threads: int) -> float:
    """Return the operations per second of the product in an MLP of the model.

    On a CPU, time that other programs take does not count.
    """
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    x = torch.randn(ROWS, model.width, device=device, dtype=dtype)  # (T, C)
    weight = torch.randn(model.mlp_width, model.width, device=device, dtype=dtype)  # (F, C)
    best = float("inf")
    end = time.perf_counter() + MEASURED
    with using_threads(threads):
        while best == float("inf") or time.perf_counter() < end:
            started = _clock(device, threads)
            F.linear(x, weight)
            best = min(best, _clock(device, threads) - started)
    return 2 * ROWS * model.width * model.mlp_width / best


def _clock(device: str, threads: int) -> float:
    """Return seconds of a GPU that has finished its work, or of each thread of this process."""
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time() / threads
