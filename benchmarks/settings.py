"""Compare settings of presets on held-out samples, with seeds that no table reports.

    python benchmarks/settings.py --out settings.jsonl
    python benchmarks/settings.py --out settings.jsonl --device cuda --jobs 14
    python benchmarks/settings.py --out settings.jsonl --show

Every setting differs in one value from the first version of the preset `quick`. The score is the
percentage of correct tokens among the tokens with a loss, given the correct tokens before them, on
the batches that `--tune` uses. docs/quick-settings.md has the rule that chooses a setting from the
table of `--show`. Every training is stored when it ends, and an interrupted command can be
repeated.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from pe_bench.batch import Batch
from pe_bench.decoder.losses import scored_tokens
from pe_bench.decoder.model import Decoder
from pe_bench.registry import plugins
from pe_bench.reporting.markdown import markdown_table
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import ResolvedTask, resolve
from pe_bench.sequences.baselines import Baselines
from pe_bench.sequences.length_generalization import LengthGeneralizationTask
from pe_bench.system import environment
from pe_bench.task import Task
from pe_bench.train.loop import train
from pe_bench.train.training_setup import Training

ENCODINGS = ("rope", "alibi", "t5")
SEEDS = (2000, 2001)
BATCHES = 32  # held-out batches of a score
COUNTED = 400  # number of training batches that the baselines count
FIRST: dict[str, tuple[str, dict[str, Any]]] = {
    "ruler": ("ruler:curriculum=true", {"heads": 2}),
    "chained-facts": ("chained-facts", {"heads": 2}),
    "recall": ("recall", {"heads": 4}),
}
"""The first version of each task's preset: its spec, and changed values of the model."""

FIRST_VERSION = "first version"
NO_CURRICULUM = "no curriculum"
SETTINGS: dict[str, dict[str, Any]] = {
    FIRST_VERSION: {},
    NO_CURRICULUM: {},
    "2 heads": {"model.heads": 2},
    "4 heads": {"model.heads": 4},
    "init_std 0.02": {"model.init_std": 0.02},
    "a third of the rate": {"train.lr": 1 / 3},
    "three times the rate": {"train.lr": 3.0},
}
"""Changed values; `train.lr` is a factor."""


def options_of(task: str, setting: str) -> RunOptions:
    """Return the options of a setting."""
    train: dict[str, Any] = {}
    model = dict(FIRST[task][1])
    for name, value in SETTINGS[setting].items():
        group, field = name.split(".")
        if name == "train.lr":
            train["lr"] = value * plugins.load("task", task).cls.presets["quick"].train.lr
        else:
            (train if group == "train" else model)[field] = value
    return RunOptions(train=train, model=model)


def accuracy(model: Decoder, task: Task, subset: str | None, device: str) -> float:
    """Return the percentage of correct tokens on held-out batches."""
    model.eval()
    correct = total = 0
    for step in range(BATCHES):
        batch = task.held_out_batch(subset, step)
        where = scored_tokens(batch.targets)
        with torch.no_grad():
            logits = model(batch.tokens.to(device))  # (B, T, V)
        guesses = logits.argmax(-1).flatten().cpu()[where]
        correct += int((guesses == batch.targets.flatten()[where]).sum())
        total += len(where)
    return 100 * correct / total


def run(task: str, setting: str, encoding: str, seed: int, device: str) -> dict[str, Any]:
    """Train a model and return its score."""
    started = time.monotonic()
    spec = FIRST[task][0]
    resolved: ResolvedTask = resolve(options_of(task, setting), spec)
    drawn = resolved.task
    if setting == NO_CURRICULUM:  # a task without steps has none
        drawn = resolve(RunOptions(train={"steps": 0}), spec).task
    model = resolved.make_model(plugins.load("encoding", encoding), seed).to(device)

    def batch(step: int) -> Batch:
        return drawn.batch(None, seed, step)

    trained = train(Training(model, batch, resolved.train, seed, device, "fp32"))
    return {
        "task": task,
        "setting": setting,
        "encoding": encoding,
        "seed": seed,
        "accuracy": accuracy(model, resolved.task, None, device),
        "loss": trained.loss,
        "seconds": time.monotonic() - started,
    }


def floor(task: str) -> str:
    """Return the percentage of correct tokens of the strongest baseline on the held-out batches."""
    resolved = resolve(RunOptions(), task).task
    assert isinstance(resolved, LengthGeneralizationTask)
    counted = [resolved.baseline_batch(None, step) for step in range(COUNTED)]
    size = resolved.vocabulary.vocab_size
    baselines = Baselines(counted, size, consecutive=resolved.autoregressive)
    correct: dict[str, float] = {}
    total = 0
    for step in range(BATCHES):
        for name, scores in baselines.scores(resolved.held_out_batch(None, step)).items():
            assert scores.correct is not None
            correct[name] = correct.get(name, 0.0) + float(scores.correct.sum())
        total += int(scores.counts.sum())
    strongest = max(correct, key=correct.__getitem__)
    return f"{task} {100 * correct[strongest] / total:.1f} ({strongest})"


def describe_floors() -> str:
    """Return a sentence with the strongest baseline of each task."""
    return f"Strongest baselines on the same samples: {', '.join(map(floor, FIRST))}. Ceiling: 100."


def wanted(args: argparse.Namespace) -> Iterator[tuple[str, str, str, int]]:
    """Yield the trainings that are not in the file."""
    done = {key_of(row) for row in read(args.out)}
    for seed in args.seeds:
        for setting in args.settings:
            for task in args.tasks:
                if SETTINGS[setting].get("model.heads") == FIRST[task][1]["heads"]:
                    continue
                for encoding in args.encodings:
                    if (task, setting, encoding, seed) not in done:
                        yield task, setting, encoding, seed


def read(path: Path) -> list[dict[str, Any]]:
    """Return the stored scores."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def key_of(row: dict[str, Any]) -> tuple[str, str, str, int]:
    """Return the key of a training."""
    return row["task"], row["setting"], row["encoding"], row["seed"]


def show(rows: list[dict[str, Any]]) -> str:
    """Return the scores as a Markdown table, with the mean over encodings and seeds."""
    table = []
    for task in dict.fromkeys(row["task"] for row in rows):
        for setting in SETTINGS:
            cells = []
            for encoding in ENCODINGS:
                scores = [
                    row["accuracy"]
                    for row in sorted(rows, key=lambda row: row["seed"])
                    if (row["task"], row["setting"], row["encoding"]) == (task, setting, encoding)
                ]
                cells.append(", ".join(f"{score:.1f}" for score in scores))
            of_setting = [r for r in rows if (r["task"], r["setting"]) == (task, setting)]
            if of_setting:
                average = mean(row["accuracy"] for row in of_setting)
                table.append([task, setting, *cells, f"{average:.1f}"])
    return markdown_table(["task", "setting", *ENCODINGS, "mean"], table, "lllllr")


def parse() -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="file of the scores")
    parser.add_argument("--show", action="store_true", help="print the table of the file")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel trainings")
    parser.add_argument("--tasks", nargs="+", default=list(FIRST), choices=FIRST)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--encodings", nargs="+", default=ENCODINGS, choices=ENCODINGS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Run all missing trainings."""
    args = parse()
    if args.child:
        environment.set_up(args.device)
        task, setting, encoding, seed = args.child
        row = run(task, setting, encoding, int(seed), args.device)
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        return
    if not args.show:
        running: list[subprocess.Popen[bytes]] = []
        for work in wanted(args):
            while sum(process.poll() is None for process in running) >= args.jobs:
                time.sleep(0.2)
            command = [sys.executable, __file__, "--out", str(args.out), "--device", args.device]
            command += ["--child", *map(str, work)]
            running.append(subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}))
        for process in running:
            process.wait()
    print(f"{show(read(args.out))}\n\n{describe_floors()}")


if __name__ == "__main__":
    main()
