"""Time the training steps of two checkouts, or of two settings, against each other.

    python benchmarks/step.py --other HEAD~3                      # a commit
    python benchmarks/step.py --other ../elsewhere                # a folder
    python benchmarks/step.py --set train.clip=0 --task mqar      # this checkout, other settings

Each side trains in a separate process with one thread, by the same loop as `pe-bench run`. The two
alternate after blocks of a few steps, so that a slow machine affects both. Seconds are processor
time, so other processes do not count. A ratio is the median over pairs of neighbouring blocks, and
its interval is a 95 % bootstrap interval over blocks.
"""

import argparse
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parents[1]
TASKS = ["mqar", "addition", "passkey", "copying", "perplexity"]
WARM_UP = 10  # steps before the first block
DRAWS = 2000  # of the bootstrap


class Side:
    """One side of the comparison: a process that trains, and waits after each block.

    Args:
        checkout: folder of the code.
        settings: changed fields of the preset, as in "train.clip=0".
        encoding, task: specs.
        args: number and length of the blocks.
    """

    def __init__(
        self,
        checkout: Path,
        settings: list[str],
        encoding: str,
        task: str,
        args: argparse.Namespace,
    ) -> None:
        work = {
            "encoding": encoding,
            "task": task,
            "settings": settings,
            "block": args.block,
            "steps": WARM_UP + args.block * args.blocks,
        }
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child", json.dumps(work)],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()  # the warm-up is over

    def block(self) -> float:
        """Run a block; return its seconds per step."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()

    def _read(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process {self.process.args!r} has ended, see its output above")
        return float(line)


def child(work: dict[str, Any]) -> None:
    """Train; after the warm-up and after each block, write seconds per step and wait for a line."""
    from dataclasses import replace

    from pe_bench.batch import Batch
    from pe_bench.registry import plugins
    from pe_bench.runs.options import RunOptions
    from pe_bench.runs.resolve import resolve
    from pe_bench.train.loop import train
    from pe_bench.train.training_setup import Training

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of other code is not an answer
    changed: dict[str, dict[str, Any]] = {"train": {}, "model": {}}
    for setting in work["settings"]:
        name, _, value = setting.partition("=")
        group, _, field = name.partition(".")
        changed[group][field] = json.loads(value)
    resolved = resolve(RunOptions(**changed), work["task"])
    if (
        resolved.start
    ):  # the phase that the task starts from has the same shape, and takes longer to train
        resolved = replace(resolved, start=None)
    task = resolved.batches
    subset = task.subsets[0] if task.trains_each_subset else None
    model = resolved.make_model(plugins.load("encoding", work["encoding"]), 0)
    started = time.process_time()

    def batch(step: int) -> Batch:
        nonlocal started
        done = step - WARM_UP
        if done >= 0 and done % work["block"] == 0:
            print((time.process_time() - started) / work["block"], file=answers, flush=True)
            sys.stdin.readline()
            started = time.process_time()
        return task.batch(subset, 0, step)

    config = replace(resolved.train, steps=work["steps"] + 1)  # the last one ends the last block
    train(Training(model, batch, config, 0, "cpu", "fp32", work["task"]))


@contextmanager
def checkout_of(name: str) -> Iterator[Path]:
    """Yield the folder of a checkout, or a temporary folder with the files of a commit."""
    if Path(name).is_dir():
        yield Path(name).resolve()
        return
    archive = subprocess.run(["git", "archive", name], cwd=HERE, capture_output=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="tar")
        yield Path(folder)


def compare(
    other: Path, encoding: str, task: str, args: argparse.Namespace
) -> tuple[list[float], list[float]]:
    """Return the seconds per step of each block, for this checkout and the other one."""
    here = Side(HERE, args.set, encoding, task, args)
    there = Side(other, [], encoding, task, args)
    ours, theirs = [], []
    for number in range(args.blocks):
        first, second = (here, ours), (there, theirs)
        if number % 2:
            first, second = second, first
        for side, seconds in (first, second):
            seconds.append(side.block())
    here.close()
    there.close()
    return ours, theirs


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median ratio."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    return medians[DRAWS // 40], medians[-DRAWS // 40]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--other", default=str(HERE), help="folder or commit to compare with")
    parser.add_argument("--set", nargs="+", default=[], help="settings here: train.clip=0")
    parser.add_argument("--encoding", nargs="+", default=["rope", "tape"])
    parser.add_argument("--task", nargs="+", default=TASKS)
    parser.add_argument("--blocks", type=int, default=21, help="of each side")
    parser.add_argument("--block", type=int, default=10, help="steps of a block")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return
    print("| encoding | task | ms here | ms there | ratio | 95 % |\n|---|---|---|---|---|---|")
    with checkout_of(args.other) as other:
        for encoding in args.encoding:
            for task in args.task:
                ours, theirs = compare(other, encoding, task, args)
                ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
                low, high = interval(ratios)
                numbers = f"{1e3 * median(ours):.1f} | {1e3 * median(theirs):.1f}"
                numbers += f" | {median(ratios):.3f} | {low:.3f} to {high:.3f}"
                print(f"| {encoding} | {task} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
