"""The time of evaluations without training, before they begin."""

import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from pe_bench.config import ModelConfig
from pe_bench.grid.cost import Costs, Phase
from pe_bench.grid.display import show_duration
from pe_bench.runs.run import Run
from pe_bench.train.threads import using_threads

ROWS = 512
"""Tokens of the measured product; more are hardly faster on a CPU."""

MEASURED = 0.5
"""Seconds of the measurement, of which the fastest product counts."""

SHORTEST = 10.0
"""Evaluations of fewer seconds are not announced."""


def only_evaluates(run: Run) -> bool:
    """Return whether a run trains nothing, as with `--from DIR` alone."""
    resolved = run.resolved
    return not resolved.train.steps and not (resolved.start and resolved.start.train.steps)


def describe_evaluation(runs: Sequence[Run], threads: int, lanes: int) -> str | None:
    """Return a line with operations and a lower bound of the time; None for short evaluations.

    Operations are those of matrix products. Only the first encoding of each task is counted, since
    counting takes seconds. The speed is measured with a product of the model's MLP.

    Args:
        runs: runs that train nothing.
        threads: threads of a run.
        lanes: number of runs at the same time.
    """
    operations = 0.0
    seconds = 0.0
    for label in dict.fromkeys(run.resolved.label for run in runs):
        of_task = [run for run in runs if run.resolved.label == label]
        first = of_task[0]
        resolved = first.resolved
        rows = resolved.task.evaluation_rows()
        if not rows:
            continue
        phase = Phase(resolved.label, resolved.train, resolved.model)
        cost = Costs(first.precision).of_model(first.encoding, phase)
        of_run = sum(count * cost.prefill(length) for length, count in rows.items())
        speed = _measure_speed(resolved.model, first.device, first.precision, threads)
        operations += of_run * len(of_task)
        seconds += of_run * len(of_task) / speed
    seconds /= lanes
    if seconds < SHORTEST:
        return None
    return (
        f"evaluation: {operations / 1e12:,.0f} TFLOP in matrix products, at least "
        f"{show_duration(seconds)} at the {operations / seconds / lanes / 1e9:,.0f} GFLOP/s that "
        "they reach here"
    )


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
