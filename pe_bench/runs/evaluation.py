"""Evaluation of a trained model on a subset of a task."""

import time

import torch

from pe_bench.decoder.model import Decoder
from pe_bench.results.items import average_draws
from pe_bench.runs.run_folder import RunFolder
from pe_bench.system.time_limit import TimeLimit
from pe_bench.task import Evaluation, Task


def evaluate(
    model: Decoder,
    task: Task,
    subset: str,
    seed: int,
    files: RunFolder,
    precision: str,
    limit: TimeLimit | None = None,
) -> tuple[Evaluation, float]:
    """Measure a model on a subset, averaged over the draws of an encoding with random choices.

    Args:
        model: a trained model.
        task: the task.
        subset: name of the subset.
        seed: seed of the run.
        files: files of the run; their journals store the measurements.
        precision: "fp32" or "bf16".
        limit: time limit of the run; None: no limit.

    Returns:
        The rows, items and notes, and the seconds of the evaluation in all calls.

    Raises:
        TimedOut: the time limit is over. The next call resumes the evaluation.
    """
    started = time.monotonic()
    seconds = 0.0  # seconds of earlier calls
    model.eval()
    device = model.lm_head.weight.device.type
    autocast = torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")
    draws: list[Evaluation] = []
    for sample in range(1 if task.measures_time else model.encoding.eval_samples):
        model.use_eval_sample(sample)
        journal = files.journal(subset, sample, limit)
        seconds += journal.seconds
        with torch.inference_mode(), autocast:
            draws.append(task.evaluate(model, subset, seed, journal))
    keys = set()
    for draw in draws:
        keys.add(tuple(point.key for point in draw.items))
    if len(keys) > 1:
        raise FloatingPointError(
            "different draws of position ids have non-finite logits at different points, so "
            "there is no mean over draws"
        )
    rows_of_draws = [draw.rows for draw in draws]
    items_of_draws = [draw.items for draw in draws]
    rows, items = average_draws(rows_of_draws, items_of_draws)
    return Evaluation(rows, draws[0].notes, items), seconds + time.monotonic() - started
