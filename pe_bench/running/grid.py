"""The grid: plan, then one cell after the other; whatever fails, the rest goes on."""

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from pe_bench.errors import InputError, SavingError
from pe_bench.registry import plugins
from pe_bench.registry.plugins import Plugin
from pe_bench.running.options import RunOptions
from pe_bench.running.resolve import ResolvedTask, check_used, resolve
from pe_bench.running.run import Busy, Outcome, Run
from pe_bench.system.console import info, warn


def run_grid(
    options: RunOptions,
    encodings: list[str],
    tasks: list[str],
    seeds: list[int],
    *,
    results: Path,
    device: str,
) -> list[Outcome]:
    """Runs every combination; what fails is recorded and the rest goes on.

    Args:
        options: settings common to all.
        encodings, tasks: specs.
        seeds: of weights, batches and draws.
        results: folder to write to.
        device: "cpu" or "cuda".

    Returns:
        One outcome per cell that could be named, one per spec that could not be loaded, and one
        per part of a task whose data are missing.

    Raises:
        SavingError: a result could not be written.
    """
    outcomes: list[Outcome] = []
    loaded: list[Plugin] = []
    resolved: list[ResolvedTask] = []
    for spec in encodings:
        with _complaining(spec, outcomes):
            loaded.append(plugins.load("encoding", spec))
    for spec in tasks:
        with _complaining(spec, outcomes):
            resolved.append(resolve(options, spec))
    if len(resolved) == len(tasks):
        check_used(options, resolved)
    for task in resolved:
        for part, why in task.task.missing.items():
            title = f"{task.label} · {part}"
            outcomes.append(Outcome(title, "skipped", (warn(f"{title}: {why}"),)))
    runs = [
        Run(task, encoding, seed, results, device, options.precision)
        for task in resolved
        for seed in seeds
        for encoding in loaded
    ]
    for number, run in enumerate(runs, 1):
        info(f"[{number}/{len(runs)}] {run.title}")
        with _complaining(run.title, outcomes):
            outcomes.append(run.execute())
    return outcomes


@contextlib.contextmanager
def _complaining(title: str, outcomes: list[Outcome]) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        outcomes.append(Outcome(title, "failed", (warn(f"{title}: {error}"),)))
    except Busy:
        sentence = f"{title}: another process is working on it: wait for it or stop it"
        outcomes.append(Outcome(title, "failed", (warn(sentence),)))
    except SavingError:
        raise
    except Exception as error:  # a plugin's constructor, say; where it happened is what helps
        at = traceback.extract_tb(error.__traceback__)[-1]
        warn(f"{title} failed, {type(error).__name__}: {error} ({at.filename}:{at.lineno})")
        outcomes.append(Outcome(title, "failed"))
