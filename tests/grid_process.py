"""A small grid in a separate process, which tests may kill.

Apart from them, since a new process imports what it runs by name and tests have none.
"""

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

from pe_bench.cli import main

RUN = [
    *("run", "--task", "scrolls", "--data", "documents"),
    *("--model.layers", "2", "--model.width", "32", "--model.heads", "2"),
    *("--model.mlp_width", "32", "--pretrain.steps", "30", "--pretrain.save_every", "0"),
    *("--train.steps", "15", "--train.save_every", "0"),
]


def work(folder: Path, options: tuple[str, ...]) -> None:
    """Run a grid and its report in a folder, in a separate process."""
    with (folder / "log").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ["PE_BENCH_CACHE"] = str(folder / "cache")
    os.chdir(folder)
    sys.exit(main([*RUN, *options]) or main(["report"]))


def start(folder: Path, *options: str) -> Any:
    """Start a grid in a process that has already imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "pe_bench.grid.grid",
            "pe_bench.train.training",
            "pe_bench.reporting.report",
            "datasets",
        ]
    )
    process = context.Process(target=work, args=(folder, options))
    process.start()
    return process
