"""`pe-bench run`: train and evaluate encodings on tasks."""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pe_bench.commands import summary
from pe_bench.commands.device import find_device, find_precision
from pe_bench.commands.parser import BAD_INPUT
from pe_bench.commands.run_options import OVERRIDES
from pe_bench.errors import InputError, suggest
from pe_bench.registry import plugins
from pe_bench.system.console import info, warn

if TYPE_CHECKING:
    from pe_bench.runs.run import Outcome
    from pe_bench.runs.tuning import Tuning

FAILED = 1
Answer = TypeVar("Answer")


def main(args: argparse.Namespace) -> int:
    """Run the grids of a command and print their tables; return the exit code."""
    import torch

    from pe_bench.grid.grid import run_grid

    # Gradients of a model that has learned its task are denormal, which halves a CPU's speed.
    torch.set_flush_denormal(True)
    grids = [args, *getattr(args, "_more", ())]
    file = getattr(args, "_file", None)
    like = (file.parent,) if file else ()  # a grid may stand beside its results
    if len(grids) > 1:
        _show_all(grids, like)
        if args.dry_run:
            return 0
    started = time.monotonic()
    outcomes: list[Outcome] = []
    for grid in grids:
        outcomes += do(run_grid, grid, like)
    folders = [outcome.folder for outcome in outcomes if outcome.folder]
    if folders:
        seconds = time.monotonic() - started
        summary.end(folders, args.results, seconds=seconds, wide=args.wide, report=args.report)
    return _close(outcomes)


def _show_all(grids: Sequence[argparse.Namespace], like: Sequence[Path]) -> None:
    """Show the plans of several grids before anything of them is run.

    Raises:
        InputError: bad input in any of them.
    """
    from pe_bench.grid.display import show_duration
    from pe_bench.grid.grid import prepare_grid

    seconds = 0.0
    for number, grid in enumerate(grids, 1):
        info(f"grid {number} of {len(grids)}: {' '.join(grid.task)}")
        seconds += do(prepare_grid, grid, like).seconds
        info("")
    info(f"time of all {len(grids)} grids, as far as it is known: about {show_duration(seconds)}\n")


def do(call: Callable[..., Answer], args: argparse.Namespace, like: Sequence[Path]) -> Answer:
    """Call `run_grid` or `prepare_grid` with what a command says."""
    from pe_bench.grid.execution import ExecutionOptions
    from pe_bench.grid.shard import Shard
    from pe_bench.runs.options import RunOptions
    from pe_bench.system import environment

    data = dict(parse_data(entry) for entry in args.data)
    device = find_device(args.device, args.preset)
    precision = find_precision(args.precision, device, args.preset)
    options = RunOptions(
        preset=args.preset,
        protocol=args.protocol,
        tokenizer=args.tokenizer,
        precision=precision,
        data=data,
        subsets=tuple(args.subsets) if args.subsets else None,
        train=read_overrides(args, "train"),
        pretrain=read_overrides(args, "pretrain"),
        model=read_overrides(args, "model"),
        origin=args.origin,
        adapt=read_overrides(args, "adapt"),
        tune=_tuning(args),
        keep=args.keep,
    )
    info(f"{environment.name_of(device)}, {precision}")
    how = ExecutionOptions(
        jobs=args.jobs,
        executor=args.executor,
        devices=args.devices,
        strategy=args.strategy,
        shard=Shard(*args.shard) if args.shard else None,
        dry_run=args.dry_run,
    )
    return call(
        options,
        args.encoding,
        args.task,
        args.seeds,
        results=args.results,
        device=device,
        how=how,
        like=like,
    )


def read_overrides(args: argparse.Namespace, prefix: str) -> dict[str, Any]:
    """Return the fields of a config that the command line sets."""
    config, _ = OVERRIDES[prefix]
    names = [field.name for field in fields(config)]
    return {n: getattr(args, f"{prefix}.{n}") for n in names if hasattr(args, f"{prefix}.{n}")}


def _tuning(args: argparse.Namespace) -> "Tuning | None":
    """Return how learning rates are chosen, None where they are the presets'.

    Raises:
        InputError: options that have no effect, or rates that cannot be tried.
    """
    from pe_bench.runs.tuning import SEEDS, Tuning

    given = {name: getattr(args, f"tune.{name}") for name in ("lr", "seeds")}
    if args.tune:
        return Tuning(tuple(given["lr"] or ()), tuple(given["seeds"] or SEEDS))
    for name, values in given.items():
        if values:
            raise InputError(f"--tune.{name} has no effect without --tune")
    return None


def parse_data(entry: str) -> tuple[str, Path]:
    """Return a task's name and its folder; "" stands for all tasks of the command line.

    Raises:
        InputError: there is no such task.
    """
    task, equals, folder = entry.partition("=")
    if not equals or Path(entry).exists():
        return "", Path(entry)
    known = plugins.names("task")
    if task not in known and not task.endswith(".py") and "/" not in task:
        raise InputError(
            f"--data {entry}: there is no task '{task}'{suggest(task, known)}; "
            "write --data DIR or --data task=DIR"
        )
    return Path(task).name, Path(folder)


def _close(outcomes: Sequence["Outcome"]) -> int:
    """Repeat what went wrong, which may be hours and many lines ago; return the exit code."""
    complaints = dict.fromkeys(line for outcome in outcomes for line in outcome.complaints)
    failed = [outcome for outcome in outcomes if outcome.status == "failed" and outcome.cause]
    for line in complaints:
        warn(line)
    for outcome in failed:
        see = f"; see {outcome.folder}/run.json" if outcome.folder else ""
        warn(f"{outcome.title} failed, {outcome.cause}{see}")
    return BAD_INPUT if complaints else FAILED if failed else 0
