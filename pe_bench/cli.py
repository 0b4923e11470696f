"""The command line. `--help`, `list` and `report` never import torch."""

import argparse
import importlib.util
import os
import sys
import typing
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from pe_bench import __version__, plugins
from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.errors import InputError, SavingError

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130
OVERRIDES = {
    "train": (TrainConfig, "training of the tasks named here"),
    "pretrain": (TrainConfig, "training of the model that a task starts from"),
    "model": (ModelConfig, "shape of the decoder"),
}

RUN_EXAMPLES = """\
examples:
  pe-bench run --encoding tape --task scrolls
  pe-bench run --encoding tape rope:base=500000 ./mine.py --task scrolls perplexity --seeds 0 1 2
  pe-bench run --encoding alibi --task scrolls --data path/to/scrolls perplexity=path/to/texts
"""


class _Parser(argparse.ArgumentParser):
    """Errors are one sentence and exit code 2; abbreviated options are errors."""

    def __init__(self, prog: str | None = None, **kwargs: Any) -> None:
        super().__init__(prog, allow_abbrev=False, **kwargs)
        self.formatter_class = argparse.RawDescriptionHelpFormatter

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse(self, args: Sequence[str]) -> argparse.Namespace:
        """Parses, with a suggestion for an option that does not exist."""
        command = next((word for word in args if not word.startswith("-")), "")
        chosen = _subparsers(self).get(command, self)
        known = [*self._option_string_actions, *chosen._option_string_actions]
        for word in args:  # before argparse, which would complain of what is missing instead
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known:
                chosen.error(f"there is no option '{name}'{plugins.suggest(name, known)}")
        return self.parse_args(args)


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of `pe-bench`. Returns the exit code: 0 fine, 1 a run failed, 2 bad input."""
    parsed = _parser().parse(sys.argv[1:] if args is None else args)
    try:
        code: int = parsed.function(parsed)
        return code
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


def _parser() -> _Parser:
    parser = _Parser("pe-bench", description="Compare positional encodings for transformers.")
    parser.add_argument("--version", action="version", version=f"pe-bench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="train and evaluate encodings on tasks",
        usage="pe-bench run --encoding SPEC ... --task SPEC ... [options]",
        description="Train and evaluate every encoding on every task under every seed.",
        epilog=RUN_EXAMPLES,
    )
    run.set_defaults(function=_run)
    run.add_argument(
        "--encoding",
        nargs="+",
        required=True,
        metavar="SPEC",
        help="name:key=value,key=value or path/to/file.py; 'all' for every shipped one",
    )
    run.add_argument("--task", nargs="+", required=True, metavar="SPEC", help="as --encoding")
    run.add_argument("--seeds", nargs="+", type=_seed, default=[0], metavar="N", help="default: 0")
    run.add_argument(
        "--preset",
        default="quick",
        help="quick (two CPU cores, minutes, no download; default), small (one GPU), paper",
    )
    run.add_argument(
        "--protocol", default="strict", help="strict (default) or paper (as published)"
    )
    run.add_argument(
        "--data",
        nargs="+",
        default=[],
        metavar="DIR",
        help="folder with data for the tasks named here, or task=DIR",
    )
    run.add_argument(
        "--subsets",
        nargs="+",
        metavar="NAME",
        help="run these parts of the task only, as a run of its own",
    )
    run.add_argument(
        "--tokenizer", default="bytes", help="bytes (default), bpe:8192, or a tokenizer.json"
    )
    run.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    run.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    _results_option(run)
    for prefix, (config, about) in OVERRIDES.items():
        group = run.add_argument_group(f"--{prefix}.*", f"{about}; default: the preset's")
        hints = typing.get_type_hints(config)
        for field in fields(config):
            if "help" in field.metadata:
                group.add_argument(
                    f"--{prefix}.{field.name}",
                    type=_value(hints[field.name]),
                    default=argparse.SUPPRESS,  # absent unless given: None may be a value
                    metavar="X",
                    help=field.metadata["help"],
                )

    listing = commands.add_parser("list", help="what there is to run", description="List plugins.")
    listing.set_defaults(function=_list)
    listing.add_argument("kind", nargs="?", choices=("encodings", "tasks"))

    report = commands.add_parser(
        "report",
        help="leaderboard and plots of what has been run",
        description="Write leaderboard.csv, leaderboard.md and plots/ from the runs.",
    )
    report.set_defaults(function=_report)
    _results_option(report)

    check = commands.add_parser(
        "check",
        help="verify that encodings do what they declare",
        description="Run the conformance suite on encodings; exit code 1 where a check fails.",
    )
    check.set_defaults(function=_check)
    check.add_argument("encoding", nargs="+", metavar="SPEC", help="as in run")
    check.add_argument("--device", default="cpu", choices=("auto", "cpu", "cuda"))
    return parser


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return {name: sub for action in actions for name, sub in action.choices.items()}


def _results_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="default: ./results"
    )


def _value(annotation: Any) -> Any:
    def parse(text: str) -> Any:
        try:
            return plugins.convert(text, annotation)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"must be {error}, not '{text}'") from None

    return parse


def _seed(text: str) -> int:
    seed: int = _value(int)(text)
    if seed < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, not {seed}")
    return seed


def _expand(specs: list[str], kind: plugins.Kind) -> list[str]:
    return [s for spec in specs for s in (plugins.names(kind) if spec == "all" else [spec])]


def _list(args: argparse.Namespace) -> int:
    kinds: tuple[plugins.Kind, ...] = ("encoding", "task")
    for kind in kinds:
        if args.kind in (None, f"{kind}s"):
            print(f"{kind}s")
            for name in plugins.names(kind):
                print(f"  {name:14s} {plugins.describe(kind, name)}")
    return 0


def _report(args: argparse.Namespace) -> int:
    from pe_bench.report import write_report

    for path in write_report(args.results):
        print(path)
    return 0


def _check(args: argparse.Namespace) -> int:
    from pe_bench.conformance import check_encodings

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
    from pe_bench.environment import cache_folder
    from pe_bench.report import summary
    from pe_bench.runner import complain, run_grid
    from pe_bench.stage import Request

    request = Request(
        preset=args.preset,
        protocol=args.protocol,
        tokenizer=args.tokenizer,
        precision=args.precision,
        cache=cache_folder(),
        data=data,
        subsets=tuple(args.subsets) if args.subsets else None,
        **overrides,
    )
    outcomes = run_grid(
        request,
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
            complain(line)
    failed = [o for o in outcomes if o.status == "failed" and not o.complaints]
    for outcome in failed:
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
            f"--data {entry}: there is no task '{task}'{plugins.suggest(task, known)}; "
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


if __name__ == "__main__":
    sys.exit(main())
