"""The options of `pe-bench run`, and those that other commands share with it."""

import argparse
import typing
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path

from pe_bench.commands.parser import Parser, StoreSeeds
from pe_bench.commands.values import device, seeds, shard, value
from pe_bench.config import AdaptConfig, ModelConfig, TrainConfig

AddParser = Callable[..., Parser]
"""Adds a command, given its name and what its help says; returns its parser."""

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


def add_run(add: AddParser) -> None:
    run = add(
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
        type=seeds,
        action=StoreSeeds,
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
    add_device(run, "auto")
    run.add_argument(
        "--precision",
        default="auto",
        choices=("auto", "fp32", "bf16"),
        help="auto (default): bf16 on a GPU, but fp32 on a CPU and for the preset quick",
    )
    add_results(run)
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
    _add_grid(run)
    _add_tuning(run)
    add_overrides(run, OVERRIDES)


def _add_grid(run: Parser) -> None:
    grid = run.add_argument_group("the grid", "how it is worked through; no number depends on it")
    grid.add_argument(
        "--dry-run", action="store_true", help="print what is done, to do and skipped; do nothing"
    )
    grid.add_argument(
        "--jobs",
        type=value(int),
        metavar="N",
        help="run N cells at once, each in a process with one thread; default: one after the other",
    )
    grid.add_argument(
        "--shard",
        type=shard,
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
        type=value(int),
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


def _add_tuning(run: Parser) -> None:
    tuning = run.add_argument_group(
        "--tune", "an equal search for every encoding, on draws that are neither trained nor scored"
    )
    tuning.add_argument(
        "--tune",
        action="store_true",
        help="choose the learning rate of each encoding, and a constant that it declares; a search "
        "costs about six trainings",
    )
    tuning.add_argument(
        "--tune.lr",
        nargs="+",
        type=value(float),
        metavar="X",
        help="learning rates to begin with; default: a third, one and three times the preset's",
    )
    tuning.add_argument(
        "--tune.seeds",
        nargs="+",
        type=seeds,
        action=StoreSeeds,
        metavar="N",
        help="seeds of the models that are tried, none of --seeds; default: 1000 1001 1002",
    )


def add_overrides(parser: argparse.ArgumentParser, prefixes: Iterable[str]) -> None:
    """Add an option for each field of some configs."""
    for prefix in prefixes:
        config, about = OVERRIDES[prefix]
        group = parser.add_argument_group(f"--{prefix}.*", f"{about}; default: the preset's")
        hints = typing.get_type_hints(config)
        for field in fields(config):
            if "help" in field.metadata:
                group.add_argument(
                    f"--{prefix}.{field.name}",
                    type=value(hints[field.name]),
                    default=argparse.SUPPRESS,  # absent unless given: None may be a value
                    metavar="X",
                    help=field.metadata["help"],
                )


def add_results(parser: argparse.ArgumentParser, text: str = "default: ./results") -> None:
    """Add the option that says where the results are."""
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help=text)


def add_device(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the option that says where a command computes."""
    parser.add_argument(
        "--device",
        default=default,
        type=device,
        help=f"auto, cpu, cuda or cuda:1; default: {default}",
    )
