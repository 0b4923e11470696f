"""The commands. `--help`, `list` and `report` never import torch."""

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from pe_bench.commands.parser import BAD_INPUT, OVERRIDES, make_parser
from pe_bench.errors import InputError, SavingError, suggest
from pe_bench.registry import catalog as cards
from pe_bench.registry import plugins

FAILED = 1
INTERRUPTED = 130


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of `pe-bench`. Returns the exit code: 0 fine, 1 a run failed, 2 bad input."""
    parsed = make_parser().parse(sys.argv[1:] if args is None else args)
    try:
        return COMMANDS[parsed.command](parsed)
    except InputError as error:
        print(f"pe-bench: {error}", file=sys.stderr)
        return BAD_INPUT
    except SavingError as error:
        print(f"pe-bench: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("\npe-bench: stopped; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe, say head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _expand(specs: list[str], kind: plugins.Kind) -> list[str]:
    return [s for spec in specs for s in (plugins.names(kind) if spec == "all" else [spec])]


def _list(args: argparse.Namespace) -> int:
    kinds: tuple[plugins.Kind, ...] = ("encoding", "task")
    if args.what == "encodings":
        print(cards.table(plugins.names("encoding")))
        return 0
    if args.what not in (None, "tasks"):
        found = [kind for kind in kinds if args.what in plugins.names(kind)]
        if not found:
            known = ["encodings", "tasks", *(n for kind in kinds for n in plugins.names(kind))]
            raise InputError(
                f"there is no encoding or task '{args.what}'{suggest(args.what, known)}; "
                "see pe-bench list"
            )
        print(cards.manual(found[0], args.what))
        return 0
    for kind in kinds:
        if args.what in (None, f"{kind}s"):
            print(f"{kind}s")
            for name in plugins.names(kind):
                print(f"  {name:14s} {plugins.describe(kind, name)}")
    return 0


def _report(args: argparse.Namespace) -> int:
    from pe_bench.reporting.report import write_report

    for path in write_report(args.results):
        print(path)
    return 0


def _check(args: argparse.Namespace) -> int:
    from pe_bench.checks.table import check_encodings

    return 0 if check_encodings(_expand(args.encoding, "encoding"), _device(args.device)) else 1


def _run(args: argparse.Namespace) -> int:
    _check_writable(args.results)
    # Threads that spin while they wait make tiny models ten times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    overrides = {
        prefix: {
            field.name: getattr(args, f"{prefix}.{field.name}")
            for field in fields(config)
            if hasattr(args, f"{prefix}.{field.name}")
        }
        for prefix, (config, _) in OVERRIDES.items()
    }
    data = dict(_data(entry) for entry in args.data)
    # What imports torch comes after everything that can be refused without it.
    import torch

    from pe_bench.reporting.report import summary
    from pe_bench.running.grid import run_grid
    from pe_bench.running.options import RunOptions
    from pe_bench.system.console import warn

    # Gradients of a model that has learned its task are denormal, which halves a CPU's speed.
    torch.set_flush_denormal(True)
    options = RunOptions(
        preset=args.preset,
        protocol=args.protocol,
        tokenizer=args.tokenizer,
        precision=args.precision,
        data=data,
        subsets=tuple(args.subsets) if args.subsets else None,
        train=overrides["train"],
        pretrain=overrides["pretrain"],
        model=overrides["model"],
    )
    outcomes = run_grid(
        options,
        list(dict.fromkeys(_expand(args.encoding, "encoding"))),
        list(dict.fromkeys(_expand(args.task, "task"))),
        list(dict.fromkeys(args.seeds)),
        results=args.results,
        device=_device(args.device),
    )
    folders = [outcome.folder for outcome in outcomes if outcome.folder]
    if folders:
        print(f"\n{summary(args.results, folders)}")
    complaints = [line for outcome in outcomes for line in outcome.complaints]
    if folders:  # said before, but that may be hours and many lines ago
        for line in dict.fromkeys(complaints):
            warn(line)
    failed = [o for o in outcomes if o.status == "failed" and not o.complaints]
    for outcome in (outcome for outcome in failed if outcome.folder):
        print(f"pe-bench: {outcome.title} failed, see {outcome.folder}/run.json", file=sys.stderr)
    return BAD_INPUT if complaints else FAILED if failed else 0


def _check_writable(folder: Path) -> None:
    probe = folder / f".writable-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"cannot write to {folder} ({error.strerror}): give another folder with --results"
        ) from None


def _data(entry: str) -> tuple[str, Path]:
    """A folder, and the task that it is for; "" stands for those named on the command line."""
    task, equals, folder = entry.partition("=")
    if not equals or Path(entry).exists():
        return "", Path(entry)
    known = plugins.names("task")
    if task not in known and not task.endswith(".py"):
        raise InputError(
            f"--data {entry}: there is no task '{task}'{suggest(task, known)}; "
            "write --data DIR or --data task=DIR"
        )
    return Path(task).name, Path(folder)


def _device(wanted: str) -> str:
    if importlib.util.find_spec("torch") is None:
        raise InputError("torch is not installed: run pip install torch")
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no CUDA device here: use --device cpu or auto")
    return ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted


COMMANDS = {"run": _run, "list": _list, "report": _report, "check": _check}
