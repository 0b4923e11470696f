"""The grid: plan, then one cell after the other; whatever fails, the rest goes on."""

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from pe_bench.errors import InputError, SavingError
from pe_bench.registry import plugins
from pe_bench.registry.plugins import Plugin
from pe_bench.running.cell import Cell, Outcome
from pe_bench.running.stage import Request, Stage, check_used, resolve
from pe_bench.system.console import info, warn


def run_grid(
    request: Request,
    encodings: list[str],
    tasks: list[str],
    seeds: list[int],
    *,
    results: Path,
    device: str,
) -> list[Outcome]:
    """Runs every combination; what fails is recorded and the rest goes on.

    Args:
        request: settings common to all.
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
    stages: list[Stage] = []
    for spec in encodings:
        with _complaining(spec, outcomes):
            loaded.append(plugins.load("encoding", spec))
    for spec in tasks:
        with _complaining(spec, outcomes):
            stages.append(resolve(request, spec))
    if len(stages) == len(tasks):
        check_used(request, stages)
    for stage in stages:
        for part, why in stage.task.missing.items():
            title = f"{stage.label} · {part}"
            outcomes.append(Outcome(title, "skipped", (warn(f"{title}: {why}"),)))
    cells = [
        Cell(stage, encoding, seed, results, device, request.precision)
        for stage in stages
        for seed in seeds
        for encoding in loaded
    ]
    for number, cell in enumerate(cells, 1):
        info(f"[{number}/{len(cells)}] {cell.title}")
        with _complaining(cell.title, outcomes):
            outcomes.append(cell.run())
    return outcomes


@contextlib.contextmanager
def _complaining(title: str, outcomes: list[Outcome]) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        outcomes.append(Outcome(title, "failed", (warn(f"{title}: {error}"),)))
    except SavingError:
        raise
    except Exception as error:  # a plugin's constructor, say; where it happened is what helps
        at = traceback.extract_tb(error.__traceback__)[-1]
        warn(f"{title} failed, {type(error).__name__}: {error} ({at.filename}:{at.lineno})")
        outcomes.append(Outcome(title, "failed"))
