"""The options of the command line, and what is said of wrong ones."""

import argparse
import typing
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from pe_bench import __version__
from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.errors import suggest
from pe_bench.registry import plugins

BAD_INPUT = 2
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


class Parser(argparse.ArgumentParser):
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
                chosen.error(f"there is no option '{name}'{suggest(name, known)}")
        return self.parse_args(args)


def make_parser() -> Parser:
    """The parser of `pe-bench`; what it returns has the command's name under `command`."""
    parser = Parser("pe-bench", description="Compare positional encodings for transformers.")
    parser.add_argument("--version", action="version", version=f"pe-bench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    run = commands.add_parser(
        "run",
        help="train and evaluate encodings on tasks",
        usage="pe-bench run --encoding SPEC ... --task SPEC ... [options]",
        description="Train and evaluate every encoding on every task under every seed.",
        epilog=RUN_EXAMPLES,
    )
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
    listing.add_argument(
        "what", nargs="?", help="encodings, tasks, or the name of one, for all that there is to it"
    )

    report = commands.add_parser(
        "report",
        help="leaderboard and plots of what has been run",
        description="Write leaderboard.csv, leaderboard.md and plots/ from the runs.",
    )
    _results_option(report)

    check = commands.add_parser(
        "check",
        help="verify that encodings do what they declare",
        description="Run the conformance suite on encodings; exit code 1 where a check fails.",
    )
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
