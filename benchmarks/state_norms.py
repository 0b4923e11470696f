"""Record the size of TAPE's states during training, with and without orthogonal equivariance.

    python benchmarks/state_norms.py --out state_norms.jsonl
    python benchmarks/state_norms.py --out state_norms.jsonl --show

Zhu et al. 2025 (arXiv 2501.00712) say that training is unstable without equivariance. A model of
the preset `quick` of `mqar`, with six layers, is trained with each choice of mixed axes and with
several learning rates. Every 50 steps, the root mean square of a state is measured on one batch
that is not used for training. It is 0.71 for RoPE: its states are rotations. Each training is
stored when it ends. If the command is interrupted, the next call continues with the missing ones.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pe_bench.batch import Batch
from pe_bench.config import show_rate
from pe_bench.decoder.model import Decoder
from pe_bench.registry import plugins
from pe_bench.reporting.markdown import markdown_table
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import resolve
from pe_bench.train.loop import train
from pe_bench.train.training_setup import Training

TASK = "mqar"
VARIANTS = {
    "tape": "heads (equivariant)",
    "tape-ablations:mixing=heads-apart": "heads, cos and sin apart",
    "tape-ablations:mixing=channels": "channels",
    "tape-ablations:mixing=all": "heads and channels",
}
"""Encodings, and the axes that their updates mix."""

RATES = (1e-3, 3e-3, 1e-2)
SEED = 2000  # no table reports it
EVERY = 50  # steps between two measurements


def state_sizes(model: Decoder, batch: Batch, device: str) -> list[float]:
    """Return the root mean square of the state after each update, layer by layer."""
    found: list[float] = []

    def watched(update: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def measure(*args: Any) -> Tensor:
            state = update(*args)  # (B, G, T, D)
            found.append(float(state.float().square().mean().sqrt()))
            return state

        return measure

    updating = [encoding for encoding in model.encodings if encoding.updates]
    for encoding in updating:
        encoding.update_state = watched(encoding.update_state)
    with torch.no_grad():
        model(batch.tokens.to(device))
    for encoding in updating:
        del encoding.update_state
    return found


def run(encoding: str, rate: float, layers: int, device: str) -> dict[str, Any]:
    """Train a model and return its loss and the sizes of its states."""
    options = RunOptions(train={"lr": rate}, model={"layers": layers})
    resolved = resolve(options, TASK)
    model = resolved.make_model(plugins.load("encoding", encoding), SEED).to(device)
    unseen = resolved.task.held_out_batch(None, 0)
    sizes: dict[int, list[float]] = {}

    def batch(step: int) -> Batch:
        if step % EVERY == 0:
            sizes[step] = state_sizes(model, unseen, device)
        return resolved.task.batch(None, SEED, step)

    loss: float | None = None
    try:
        loss = train(Training(model, batch, resolved.train, SEED, device, "fp32")).loss
        sizes[resolved.train.steps] = state_sizes(model, unseen, device)
    except FloatingPointError:
        pass  # the loss is not finite
    return {
        "encoding": encoding,
        "rate": rate,
        "layers": layers,
        "steps": resolved.train.steps,
        "loss": loss,
        "sizes": sizes,
    }


def read(path: Path) -> list[dict[str, Any]]:
    """Return the stored trainings."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def show_size(size: float) -> str:
    """Return a size with two decimals, or with its power of ten if it is large."""
    return f"{size:.2f}" if size < 1000 else f"{size:.0e}".replace("e+", "e")


def show(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table of the trainings."""
    table = []
    for row in rows:
        steps = [*row["sizes"]]
        largest = [max(row["sizes"][step]) for step in steps]
        loss = "diverged" if row["loss"] is None else f"{row['loss']:.3f}"
        numbers = [show_size(size) for size in (max(largest), largest[-1])]
        table.append([VARIANTS[row["encoding"]], show_rate(row["rate"]), loss, *numbers])
    header = [
        "mixed axes",
        "learning rate",
        "loss (nats)",
        "largest magnitude",
        "magnitude after",
    ]
    return markdown_table(header, table, "lrrrr")


def parse() -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="file of the measurements")
    parser.add_argument("--show", action="store_true", help="print the table of the file")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--layers", type=int, default=6)
    return parser.parse_args()


def main() -> None:
    args = parse()
    if args.show:
        print(show(read(args.out)))
        return
    done = {(row["encoding"], row["rate"], row["layers"]) for row in read(args.out)}
    for rate in RATES:
        for encoding in VARIANTS:
            if (encoding, rate, args.layers) in done:
                continue
            row = run(encoding, rate, args.layers, args.device)
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(show([row]).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
