"""A small grid in a separate process, which tests may kill.

Apart from them, since a new process imports what it runs by name and tests have none.
"""

import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pe_bench.cli import main
from pe_bench.tasks.scrolls import miniature
from pe_bench.tasks.scrolls.documents import write_split
from pe_bench.tasks.scrolls.subsets import SUBSETS

BOTH = ("--subsets", "qasper", "quality")
RUN = [
    *("run", "--task", "scrolls", "--data", "documents"),
    *("--model.layers", "2", "--model.width", "32", "--model.heads", "2"),
    *("--model.mlp_width", "32", "--pretrain.steps", "30", "--pretrain.save_every", "0"),
    *("--train.steps", "15", "--train.save_every", "0"),
]


def prepare(folder: Path, items: int = 150) -> Path:
    """Write the documents of two subsets with `items` items of each to evaluate."""
    for name in BOTH[1:]:
        for split, n in (("train", 40), ("validation", items)):
            path = folder / "documents" / name / f"{split}.jsonl"
            write_split(path, miniature.rows(SUBSETS[name].miniature, split, n, 100))
    return folder


def work(folder: Path, options: tuple[str, ...]) -> None:
    """Run a grid and its report, unless an option refuses one, in a separate process."""
    with (folder / "log").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    # A process in the background ignores Ctrl-C, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["PE_BENCH_CACHE"] = str(folder / "cache")
    os.chdir(folder)
    code = main([*RUN, *options])
    if "--no-report" not in options:
        code = code or main(["report"])
    sys.exit(code)


def start(folder: Path, *options: str) -> Any:
    """Start a grid in a process that has already imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "pe_bench.grid.grid",
            "pe_bench.train.training",
            "pe_bench.reporting.report",
            "pe_bench.tasks.scrolls.evaluate_metric",
        ]
    )
    process = context.Process(target=work, args=(folder, options))
    process.start()
    return process
