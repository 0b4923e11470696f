"""The options of all commands."""

from pathlib import Path

from pe_bench import __version__
from pe_bench.commands.parser import Parser
from pe_bench.commands.run_options import AddParser, add_device, add_overrides, add_results, add_run
from pe_bench.commands.values import device, value

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

COMPARE = """\
Compare two encodings on every task that both were run on, seed by seed and item by item: a sentence
for each task, one for all of them, and a picture. With --all, the ranks of all encodings."""


def make_parser() -> Parser:
    """Return the parser of `pe-bench`; a command's name is under `command` in its result."""
    parser = Parser("pe-bench", description="Compare positional encodings for transformers.")
    parser.add_argument("--version", action="version", version=f"pe-bench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for add_command in (
        add_run,
        _add_cost,
        _add_list,
        _add_report,
        _add_export,
        _add_merge,
        _add_rerun,
        _add_checkpoint,
        _add_compare,
        _add_check,
    ):
        add_command(commands.add_parser)
    return parser


def _add_cost(add: AddParser) -> None:
    parser = add(
        "cost",
        help="operations, memory and hours of training, before anything runs",
        usage="pe-bench cost --encoding SPEC ... --task SPEC ... [options]",
        description="Count what the training of each cell takes; no text is read or loaded.",
    )
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
        type=value(float),
        metavar="X",
        help="10^12 operations a second that the device does in training; default: an assumption",
    )
    add_overrides(parser, ("train", "pretrain", "model"))


def _add_list(add: AddParser) -> None:
    listing = add("list", help="what there is to run", description="List plugins.")
    listing.add_argument(
        "what", nargs="?", help="encodings, tasks, or one of them by name, file or folder"
    )
    listing.add_argument("--wide", action="store_true", help="all columns of `list encodings`")


def _add_report(add: AddParser) -> None:
    report = add(
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
    add_results(report)
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


def _add_export(add: AddParser) -> None:
    export = add(
        "export",
        help="all numbers as one table, or all runs in a few files to send",
        usage="pe-bench export (FILE.parquet | FILE.csv | DIR) [options]",
        description=EXPORT,
    )
    export.add_argument("target", type=Path, metavar="FILE", help="what to write, or a folder")
    add_results(export)


def _add_merge(add: AddParser) -> None:
    merge = add(
        "merge",
        help="bring the runs of other results folders into one",
        description=MERGE,
    )
    merge.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="results folders, or exports of them"
    )
    add_results(merge, "where to bring them; default: ./results")


def _add_rerun(add: AddParser) -> None:
    rerun = add(
        "rerun",
        help="repeat a run from its record: are the numbers the same?",
        usage="pe-bench rerun RUN [options]",
        description=RERUN,
    )
    rerun.add_argument("run", metavar="RUN", help="folder of a run, or encoding/task/seed")
    add_results(rerun, "where to look for encoding/task/seed; default: ./results")
    rerun.add_argument(
        "--device", type=device, help="auto, cpu, cuda or cuda:1; default: that of the record"
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


def _add_checkpoint(add: AddParser) -> None:
    checkpoint = add(
        "checkpoint",
        help="a trained model as a folder of transformers",
        usage="pe-bench checkpoint RUN DIR [options]",
        description=CHECKPOINT,
    )
    checkpoint.add_argument("run", metavar="RUN", help="folder of a run, or encoding/task/seed")
    checkpoint.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    checkpoint.add_argument("--subset", metavar="NAME", help="whose model, where each has its own")
    add_results(checkpoint, "where to look for encoding/task/seed; default: ./results")


def _add_compare(add: AddParser) -> None:
    compare = add(
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
    add_results(compare)
    compare.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="where the picture goes, a .png, .svg or .pdf; "
        "default: plots/compare-ENCODING-ENCODING.png in --results",
    )


def _add_check(add: AddParser) -> None:
    check = add(
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
        type=value(int),
        default=0,
        metavar="N",
        help="check encodings with fewer key heads than the four query heads: 1 or 2",
    )
    add_device(check, "cpu")
