"""The options of the command line, and the sentences about wrong ones."""

import argparse
import re
import typing
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from pe_bench import __version__
from pe_bench.commands.grid_file import SUFFIX, read_grid
from pe_bench.config import AdaptConfig, ModelConfig, TrainConfig
from pe_bench.errors import InputError, suggest
from pe_bench.registry.options import convert

BAD_INPUT = 2
OVERRIDES = {
    "train": (TrainConfig, "training of the tasks named here"),
    "pretrain": (TrainConfig, "training of the model that a task starts from"),
    "model": (ModelConfig, "shape of the decoder"),
    "adapt": (AdaptConfig, "training under another encoding, after --from"),
}

RUN = """\
Train and evaluate every encoding on every task under every seed. GRID.toml has options as keys,
without their dashes; options of the command line replace its."""

RUN_EXAMPLES = """\
examples:
  pe-bench run --encoding tape --task scrolls
  pe-bench run --encoding tape rope:base=500000 ./mine.py --task scrolls perplexity --seeds 0 1 2
  pe-bench run --encoding alibi --task scrolls --data path/to/scrolls perplexity=path/to/texts
  pe-bench run --encoding all --task all --seeds 0-4 --dry-run
  pe-bench run --encoding all --task mqar flipflop --seeds 0-4 --jobs 2
  pe-bench run grid.toml --shard 2/8
"""


COMPARE = """\
Compare two encodings on every task that both were run on, seed by seed and item by item: a sentence
for each task, one for all of them, and a picture. With --all, the ranks of all encodings."""

EXPORT = """\
Write the rows of all finished runs as one tidy table (docs/results.md has its columns). A name
without .parquet or .csv is a folder: all runs with their items and records in three files, which
report, compare and merge read like runs. `report --export DIR` writes the same with a report."""

MERGE = """\
Bring runs of results folders and exports, with references and tuning, into one results folder. A
run that is there with the same numbers is passed over. One with other numbers is named, changes
nothing, and makes the exit code 1."""

RERUN = """\
Train and measure a run again, from its record alone, beside the results: with its settings, seed,
learning rates and threads. Says which numbers differ, by how much, and what differs in machine and
code. Exit code 0: all numbers are the same, digit by digit; 1: some are not."""

CHECKPOINT = """\
Copy the model of a run that was given --keep to a folder that transformers loads: a plain Llama
where the encoding is RoPE or a scaling that transformers has; elsewhere with code that needs
trust_remote_code=True, and pe-bench installed."""

LARGEST_SEED = 2**63 - 1
MOST_SEEDS = 1000  # of a range
INSTEAD = {
    "--resume": "runs go on where they stopped by themselves: leave it out",
    "--gpu": "write --device cuda, or --device cuda:1 for the second one",
    "--workers": "write --jobs N, which runs N cells at once",
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence and exit code 2. Abbreviated options are errors."""

    def __init__(self, prog: str | None = None, **kwargs: Any) -> None:
        super().__init__(prog, allow_abbrev=False, **kwargs)
        self.formatter_class = argparse.RawDescriptionHelpFormatter
        self.register("action", None, _StoreOnce)

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse(self, args: Sequence[str]) -> argparse.Namespace:
        """Return the values of all options; exit with a suggestion for what does not exist."""
        commands = _subparsers(self)
        command = next((word for word in args if not word.startswith("-")), "")
        if command and command not in commands:
            there = ", ".join(commands)
            hint = suggest(command, list(commands))
            self.error(f"there is no command '{command}'{hint}; there are {there}")
        chosen = commands.get(command, self)
        known = [*self._option_string_actions, *chosen._option_string_actions]
        for word in args:  # before argparse, which would complain of what is missing instead
            name = word.partition("=")[0]
            if re.match("--?[A-Za-z]", name) and name not in known:
                chosen.error(_unknown_option(name, known))
        parsed, rest = self.parse_known_args(self._with_file(args, chosen))
        if rest:
            chosen.error(f"'{rest[0]}' is one argument too many")
        return parsed

    def _with_file(self, args: Sequence[str], chosen: argparse.ArgumentParser) -> list[str]:
        """Return words in which the options of a grid's file stand in the place of its name."""
        command, *words = args or [""]
        if command != "run" or not words or not words[0].endswith(SUFFIX):
            return list(args)
        given = [word.partition("=")[0] for word in words[1:]]
        try:
            found = read_grid(Path(words[0]), chosen._option_string_actions, given)
        except InputError as error:
            self.exit(BAD_INPUT, f"{chosen.prog}: {error}\n")
        return [command, *found, *words[1:]]


class _StoreOnce(argparse.Action):
    """Stores a value; a second one would silently take the place of the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given: set[str] = vars(namespace).setdefault("_given", set())
        if self.dest in given:
            several = ", or write all values behind one" if self.nargs == "+" else ""
            parser.error(f"{option_string} is given twice: leave one of them out{several}")
        given.add(self.dest)
        setattr(namespace, self.dest, self.stored(values))

    def stored(self, values: Any) -> Any:
        """Return what is stored of the values given."""
        return values


class _StoreSeeds(_StoreOnce):
    """Stores the seeds of several numbers and ranges as one list."""

    def stored(self, values: Any) -> list[int]:
        """Return one list of several."""
        return [seed for part in values for seed in part]


def make_parser() -> Parser:
    """Return the parser of `pe-bench`; a command's name is under `command` in its result."""
    parser = Parser("pe-bench", description="Compare positional encodings for transformers.")
    parser.add_argument("--version", action="version", version=f"pe-bench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    run = commands.add_parser(
        "run",
        help="train and evaluate encodings on tasks",
        usage="pe-bench run (--encoding SPEC ... --task SPEC ... | GRID.toml) [options]",
        description=RUN,
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
    run.add_argument(
        "--from",
        dest="origin",
        metavar="SPEC",
        help="encoding whose trained models the others go on from, see --adapt.*",
    )
    run.add_argument(
        "--seeds",
        nargs="+",
        type=_seeds,
        action=_StoreSeeds,
        default=[0],
        metavar="N",
        help="such as 0 1 2, or 0-4 for five; default: 0",
    )
    run.add_argument(
        "--preset",
        default="quick",
        help="quick (two CPU cores, minutes, no download; default), small, mid (one GPU), paper",
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
        "--tokenizer", help="bytes, bpe:8192, or a tokenizer.json; default: the preset's"
    )
    _device_option(run, "auto")
    run.add_argument(
        "--precision",
        default="auto",
        choices=("auto", "fp32", "bf16"),
        help="auto (default): bf16 on a GPU, but fp32 on a CPU and for the preset quick",
    )
    _results_option(run)
    run.add_argument("--wide", action="store_true", help="print all columns of the tables")
    run.add_argument(
        "--keep",
        action="store_true",
        help="keep trained models in the folders of their runs, see pe-bench checkpoint",
    )
    run.add_argument(
        "--no-report",
        dest="report",
        action="store_false",
        help="leave index.html, leaderboard.md, plots/ as they are; default: they show new runs",
    )
    grid = run.add_argument_group("the grid", "how it is worked through; no number depends on it")
    grid.add_argument(
        "--dry-run", action="store_true", help="print what is done, to do and skipped; do nothing"
    )
    grid.add_argument(
        "--jobs",
        type=_value(int),
        metavar="N",
        help="run N cells at once, each in a process with one thread; default: one after the other",
    )
    grid.add_argument(
        "--shard",
        type=_shard,
        metavar="I/N",
        help="run the share I of N, from 1/N to N/N: the others are for other machines",
    )
    grid.add_argument(
        "--executor",
        default="local",
        choices=("local", "ray"),
        help="ray: send cells to the Ray cluster of RAY_ADDRESS, or of this machine",
    )
    grid.add_argument(
        "--devices",
        type=_value(int),
        default=1,
        metavar="N",
        help="train each cell in N processes, each on a GPU or CPU of its own; default: 1",
    )
    grid.add_argument(
        "--strategy",
        default="auto",
        choices=("auto", "ddp", "fsdp"),
        help="of --devices: fsdp shares out weights as well as rows; auto (default): ddp",
    )
    tuning = run.add_argument_group(
        "--tune", "an equal search for every encoding, on draws that are neither trained nor scored"
    )
    tuning.add_argument(
        "--tune",
        action="store_true",
        help="choose the learning rate of each encoding; each rate is a training more",
    )
    tuning.add_argument(
        "--tune.lr",
        nargs="+",
        type=_value(float),
        metavar="X",
        help="learning rates to try; default: a third, one and three times the preset's",
    )
    tuning.add_argument(
        "--tune.seeds",
        nargs="+",
        type=_seeds,
        action=_StoreSeeds,
        metavar="N",
        help="seeds of the models that are tried, none of --seeds; default: 1000",
    )
    _override_options(run, OVERRIDES)

    _cost_options(
        commands.add_parser(
            "cost",
            help="operations, memory and hours of training, before anything runs",
            usage="pe-bench cost --encoding SPEC ... --task SPEC ... [options]",
            description="Count what the training of each cell takes; no text is read or loaded.",
        )
    )

    listing = commands.add_parser("list", help="what there is to run", description="List plugins.")
    listing.add_argument(
        "what", nargs="?", help="encodings, tasks, or one of them by name, file or folder"
    )
    listing.add_argument("--wide", action="store_true", help="all columns of `list encodings`")

    report = commands.add_parser(
        "report",
        help="leaderboard and plots of what has been run",
        description="Write index.html, leaderboard.md and .csv, and plots/ from the runs.",
    )
    report.add_argument(
        "folders",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="results folders, in one report that is written to the first; default: that of "
        "--results",
    )
    _results_option(report)
    report.add_argument(
        "--reference",
        metavar="ENCODING",
        help="encoding that others are compared with (default: rope)",
    )
    report.add_argument(
        "--export",
        type=Path,
        metavar="DIR",
        help="write there instead, with all runs in small files that can be committed",
    )

    export = commands.add_parser(
        "export",
        help="all numbers as one table, or all runs in a few files to send",
        usage="pe-bench export (FILE.parquet | FILE.csv | DIR) [options]",
        description=EXPORT,
    )
    export.add_argument("target", type=Path, metavar="FILE", help="what to write, or a folder")
    _results_option(export)

    merge = commands.add_parser(
        "merge",
        help="bring the runs of other results folders into one",
        description=MERGE,
    )
    merge.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="results folders, or exports of them"
    )
    _results_option(merge, "where to bring them; default: ./results")

    rerun = commands.add_parser(
        "rerun",
        help="repeat a run from its record: are the numbers the same?",
        usage="pe-bench rerun RUN [options]",
        description=RERUN,
    )
    rerun.add_argument("run", metavar="RUN", help="folder of a run, or encoding/task/seed")
    _results_option(rerun, "where to look for encoding/task/seed; default: ./results")
    rerun.add_argument(
        "--device", type=_device, help="auto, cpu, cuda or cuda:1; default: that of the record"
    )
    for kind in ("encoding", "task"):
        rerun.add_argument(f"--{kind}", metavar="FILE", help=f"where the file of the {kind} is now")
    rerun.add_argument(
        "--data", nargs="+", default=[], metavar="DIR", help="where the data are now, as in run"
    )
    rerun.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="keep what is made there; default: a scratch folder",
    )

    checkpoint = commands.add_parser(
        "checkpoint",
        help="a trained model as a folder of transformers",
        usage="pe-bench checkpoint RUN DIR [options]",
        description=CHECKPOINT,
    )
    checkpoint.add_argument("run", metavar="RUN", help="folder of a run, or encoding/task/seed")
    checkpoint.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    checkpoint.add_argument("--subset", metavar="NAME", help="whose model, where each has its own")
    _results_option(checkpoint, "where to look for encoding/task/seed; default: ./results")

    compare = commands.add_parser(
        "compare",
        help="is one encoding better than another one? which can be told apart?",
        usage="pe-bench compare (ENCODING ENCODING | --all) [options]",
        description=COMPARE,
    )
    compare.add_argument("encoding", nargs="*", metavar="ENCODING", help="a label as in tables")
    compare.add_argument("--all", action="store_true", help="rank all encodings instead of two")
    compare.add_argument(
        "--task", nargs="+", metavar="TASK", help="on these tasks only; default: all in common"
    )
    _results_option(compare)
    compare.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="where the picture goes, a .png, .svg or .pdf; "
        "default: plots/compare-ENCODING-ENCODING.png in --results",
    )

    check = commands.add_parser(
        "check",
        help="verify that encodings and tasks do what they declare",
        description="Run the checks on encodings and tasks; exit code 1 where one fails.",
    )
    check.add_argument(
        "spec",
        nargs="+",
        metavar="SPEC",
        help="as in run; 'all' or 'encodings' for every shipped encoding, 'tasks' for every task",
    )
    check.add_argument(
        "-v", "--verbose", action="store_true", help="print every finding with its reason"
    )
    check.add_argument(
        "--wide", action="store_true", help="print a column for each check of an encoding"
    )
    check.add_argument(
        "--kv-heads",
        type=_value(int),
        default=0,
        metavar="N",
        help="check encodings with fewer key heads than the four query heads: 1 or 2",
    )
    _device_option(check, "cpu")
    return parser


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return {name: sub for action in actions for name, sub in action.choices.items()}


def _unknown_option(name: str, known: list[str]) -> str:
    """Return a sentence about an option that does not exist."""
    if name in INSTEAD:
        return f"there is no option '{name}': {INSTEAD[name]}"
    hint = suggest(name, known)
    if not name.startswith("--"):  # short options do not exist
        long = [option for option in known if option.startswith(f"-{name[:2]}")]
        hint = f" (did you mean '{long[0]}'?)" if long else ""
    return f"there is no option '{name}'{hint}"


def _override_options(parser: argparse.ArgumentParser, prefixes: Iterable[str]) -> None:
    """Add an option for each field of some configs."""
    for prefix in prefixes:
        config, about = OVERRIDES[prefix]
        group = parser.add_argument_group(f"--{prefix}.*", f"{about}; default: the preset's")
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


def _cost_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--encoding", nargs="+", required=True, metavar="SPEC", help="as in run")
    parser.add_argument("--task", nargs="+", required=True, metavar="SPEC", help="as in run")
    parser.add_argument("--preset", default="quick", help="quick (default), small, mid or paper")
    parser.add_argument("--subsets", nargs="+", metavar="NAME", help="as in run")
    parser.add_argument("--tokenizer", help="as in run")
    parser.add_argument(
        "--precision",
        default="auto",
        choices=("auto", "fp32", "bf16"),
        help="auto (default): bf16, but fp32 for the preset quick",
    )
    parser.add_argument(
        "--speed",
        type=_value(float),
        metavar="X",
        help="10^12 operations a second that the device does in training; default: an assumption",
    )
    _override_options(parser, ("train", "pretrain", "model"))


def _results_option(parser: argparse.ArgumentParser, text: str = "default: ./results") -> None:
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help=text)


def _device_option(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--device",
        default=default,
        type=_device,
        help=f"auto, cpu, cuda or cuda:1; default: {default}",
    )


def _value(annotation: Any) -> Any:
    def parse(text: str) -> Any:
        try:
            return convert(text, annotation)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"must be {error}, not '{text}'") from None

    return parse


def _device(text: str) -> str:
    if text not in ("auto", "cpu", "cuda") and not re.fullmatch(r"cuda:\d{1,3}", text):
        raise argparse.ArgumentTypeError(f"must be auto, cpu, cuda or cuda:1, not '{text}'")
    return text


def _shard(text: str) -> tuple[int, int]:
    """Return the number of a share, from 1 on, and the number of all shares."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"must be a share such as 2/8, from 1/8 to 8/8, not '{text}'"
        )
    return int(match[1]), int(match[2])


def _seeds(text: str) -> list[int]:
    """Return a single seed, or those of a range with both of its ends."""
    if span := re.fullmatch(r"(\d+)-(\d+)", text):
        first, last = _seed(span[1]), _seed(span[2])
        if not first <= last < first + MOST_SEEDS:
            raise argparse.ArgumentTypeError(
                f"must rise to at most {MOST_SEEDS} seeds, such as 0-4, not '{text}'"
            )
        return list(range(first, last + 1))
    return [_seed(text)]


def _seed(text: str) -> int:
    seed: int = _value(int)(text)
    if not 0 <= seed <= LARGEST_SEED:
        raise argparse.ArgumentTypeError(
            f"must not be negative and at most {LARGEST_SEED}, not {text}"
        )
    return seed
