"""Compare the time of a training step of two checkouts, or with and without torch.compile.

    python benchmarks/step.py --other ../older                     # a checkout, or a commit
    python benchmarks/step.py --other HEAD~20 --tasks mqar addition --encodings rope tape
    python benchmarks/step.py --compile                            # this checkout, compiled or not

Each side trains in a process of its own with one thread. The two take turns, a block of steps at a
time, so that whatever else the machine does slows both alike. The ratio is the median over rounds
of (this side / other side), its interval the 95 % bootstrap of that median.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TASKS = ["mqar", "addition", "passkey", "copying", "perplexity"]
WARM_UP = 1  # blocks that are not counted


def main() -> None:
    options = parse_options()
    if options.child:
        train_in_blocks(*options.child, steps=options.steps, rounds=options.rounds)
        return
    if bool(options.other) == options.compile:
        sys.exit("give either --other CHECKOUT or --compile")
    with tempfile.TemporaryDirectory() as scratch:
        other = ROOT if options.compile else find_checkout(options.other, Path(scratch))
        print("| task | encoding | this, ms a step | other, ms a step | ratio | 95 % interval |")
        print("|---|---|---:|---:|---:|---|")
        for task in options.tasks:
            for encoding in options.encodings:
                times = measure(task, encoding, other, options)  # (rounds, 2)
                print(describe(task, encoding, times / options.steps), flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", help="folder of another checkout, or a commit of this one")
    parser.add_argument("--compile", action="store_true", help="torch.compile on this side")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--encodings", nargs="+", default=["rope", "tape"])
    parser.add_argument("--steps", type=int, default=25, help="steps of a block")
    parser.add_argument("--rounds", type=int, default=12, help="blocks of each side")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)  # task, encoding, compile
    return parser.parse_args()


def find_checkout(name: str, scratch: Path) -> Path:
    """Return the folder of a checkout; of a commit, one that is made now."""
    if Path(name).is_dir():
        return Path(name).resolve()
    archive = subprocess.run(["git", "-C", ROOT, "archive", name], capture_output=True)
    if archive.returncode:
        sys.exit(f"{name} is neither a folder nor a commit of this checkout")
    subprocess.run(["tar", "-x", "-C", scratch], input=archive.stdout, check=True)
    return scratch


def measure(task: str, encoding: str, other: Path, options: argparse.Namespace) -> np.ndarray:
    """Return the seconds of each block, (rounds, 2): this side and the other one."""
    sides = [start(ROOT, task, encoding, options, options.compile)]
    sides.append(start(other, task, encoding, options, False))
    times = np.zeros((options.rounds + WARM_UP, 2))
    for round_ in range(len(times)):
        order = (0, 1) if round_ % 2 else (1, 0)
        for side in order:
            times[round_, side] = run_block(sides[side])
    for side in sides:
        side.communicate()
    return times[WARM_UP:]


def start(
    root: Path, task: str, encoding: str, options: argparse.Namespace, compiled: bool
) -> subprocess.Popen[str]:
    """Start the training of one side, which waits before each block."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--steps", str(options.steps)]
    command += ["--rounds", str(options.rounds)]
    command += ["--child", task, encoding, "compiled" if compiled else "plain"]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    )


def run_block(side: subprocess.Popen[str]) -> float:
    """Let one side go through a block, and return the seconds that it took."""
    assert side.stdin and side.stdout
    side.stdin.write("go\n")
    side.stdin.flush()
    for line in side.stdout:
        if line.startswith("block "):
            return float(line.split()[1])
    sys.exit(
        f"a side has ended with exit code {side.wait()}: run its training by itself to see why"
    )


def describe(task: str, encoding: str, times: np.ndarray) -> str:
    """Return a row of the table, given seconds a step, (rounds, 2)."""
    ratios = times[:, 0] / times[:, 1]
    rng = np.random.default_rng(0)
    drawn = rng.choice(ratios, (5000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    milliseconds = 1000 * np.median(times, axis=0)
    return (
        f"| {task} | {encoding} | {milliseconds[0]:.1f} | {milliseconds[1]:.1f} "
        f"| {np.median(ratios):.3f} | {low:.3f} to {high:.3f} |"
    )


def train_in_blocks(task: str, encoding: str, mode: str, *, steps: int, rounds: int) -> None:
    """Train as a run does, and wait for a line of standard input before each block of steps."""
    import torch

    from pe_bench.registry import plugins
    from pe_bench.running.options import RunOptions
    from pe_bench.running.resolve import resolve
    from pe_bench.running.training import train
    from pe_bench.system import environment

    torch.set_num_threads(1)
    environment.set_up("cpu")
    resolved = resolve(RunOptions(), task)
    model = resolved.make_model(plugins.load("encoding", encoding), seed=2000)
    if mode == "compiled":
        for layer in model.layers:
            layer.compile()
    subset = resolved.task.subsets[0] if resolved.task.trains_each_subset else None
    begun = 0.0

    def batch(step: int) -> Any:
        nonlocal begun
        if step % steps == 0:
            if step:
                print(f"block {time.perf_counter() - begun}", flush=True)
            sys.stdin.readline()
            begun = time.perf_counter()
        return resolved.batches.batch(subset, 2000, step)

    planned = replace(resolved.train, steps=steps * (rounds + WARM_UP) + 1)
    with tempfile.TemporaryDirectory() as folder:
        train(
            model,
            batch,
            planned,
            folder=Path(folder),
            of="step",
            title="step",
            seed=2000,
            device="cpu",
            precision="fp32",
        )


if __name__ == "__main__":
    main()
