"""Compare a training step of this decoder with RoPE with those of other libraries, in one process.

    python benchmarks/decoders.py
    python benchmarks/decoders.py --device cuda --precision bf16 --layers 12 --batch 8

All models have the shape of a Llama with SwiGLU, RMSNorm and no biases. They alternate, so that a
slow machine affects all of them. Ratios are times divided by the time of this decoder, as medians
over the repetitions. A library that is not installed is left out with the reason, because none of
them is a dependency.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pe_bench
from pe_bench.config import ModelConfig
from pe_bench.decoder.model import Decoder
from pe_bench.reporting.markdown import markdown_table
from pe_bench.system.environment import describe
from pe_bench.tasks.efficiency.timing import quartiles, seconds_of

VOCABULARY = 256
OURS = "pe-bench"
LEAST = 3  # minimum number of repetitions


class Step:
    """A step of AdamW on one batch of random tokens.

    Args:
        model: the model, on the device.
        logits: maps (B, N) ids to (B, N, vocabulary) logits.
        args: shape and precision.
    """

    def __init__(
        self, model: nn.Module, logits: Callable[[Tensor], Tensor], args: argparse.Namespace
    ) -> None:
        self.model = model.train()
        self.logits = logits
        self.args = args
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        generator = torch.Generator().manual_seed(0)
        size = (args.batch, args.length + 1)
        self.ids = torch.randint(VOCABULARY, size, generator=generator).to(args.device)

    def __call__(self) -> None:
        """Run one step."""
        half = self.args.precision == "bf16"
        autocast = torch.autocast(self.args.device, torch.bfloat16, cache_enabled=False)
        with autocast if half else nullcontext():
            logits = self.logits(self.ids[:, :-1])  # (B, N, vocabulary)
        targets = self.ids[:, 1:].flatten()
        F.cross_entropy(logits.flatten(0, 1).float(), targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def parameters(self) -> int:
        """Number of the model's parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def ours(args: argparse.Namespace) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Return this decoder with RoPE, and the function that returns its logits."""
    config = ModelConfig(
        layers=args.layers,
        heads=args.heads,
        width=args.width,
        mlp_width=args.mlp_width,
        vocab_size=VOCABULARY,
        train_length=args.length,
    )
    model = Decoder(config, pe_bench.load_encoding("rope")).to(args.device)
    return model, model


def hugging_face(args: argparse.Namespace) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Return the Llama of transformers, and the function that returns its logits."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=args.width,
        intermediate_size=args.mlp_width,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        max_position_embeddings=args.length,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).to(args.device)
    return model, lambda ids: model(input_ids=ids, use_cache=False).logits


def litgpt(args: argparse.Namespace) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Return the Llama of litgpt, and the function that returns its logits."""
    from litgpt import GPT, Config

    config = Config(
        n_layer=args.layers,
        n_head=args.heads,
        n_embd=args.width,
        intermediate_size=args.mlp_width,
        block_size=args.length,
        padded_vocab_size=VOCABULARY,
        vocab_size=VOCABULARY,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
    )
    model = GPT(config).to(args.device)
    return model, model


def x_transformers(args: argparse.Namespace) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """Return a decoder of x-transformers of the same shape, and the function for its logits."""
    from x_transformers import Decoder as Layers
    from x_transformers import TransformerWrapper

    head_dim = args.width // args.heads
    layers = Layers(
        dim=args.width,
        depth=args.layers,
        heads=args.heads,
        attn_dim_head=head_dim,
        attn_flash=True,
        rotary_pos_emb=True,
        rotary_emb_dim=head_dim,
        use_rmsnorm=True,
        ff_mult=args.mlp_width / args.width,
        ff_glu=True,
        ff_swish=True,
        ff_no_bias=True,
    )
    model = TransformerWrapper(
        num_tokens=VOCABULARY,
        max_seq_len=args.length,
        use_abs_pos_emb=False,
        attn_layers=layers,
    ).to(args.device)
    return model, model


LIBRARIES: dict[str, Callable[[argparse.Namespace], Any]] = {
    OURS: ours,
    "transformers": hugging_face,
    "litgpt": litgpt,
    "x-transformers": x_transformers,
}


def make_steps(args: argparse.Namespace) -> tuple[dict[str, Step], dict[str, str]]:
    """Return a step of each library, and the reasons why others are left out."""
    steps = {}
    missing = {}
    for name, make in LIBRARIES.items():
        torch.manual_seed(0)
        try:
            model, logits = make(args)
            step = Step(model, logits, args)
            step()
        except Exception as error:
            if name == OURS:
                raise
            missing[name] = " ".join(f"{type(error).__name__}: {error}".split())
        else:
            steps[name] = step
    return steps, missing


def measure(steps: dict[str, Step], args: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of each repetition; the order rotates."""
    names = list(steps)
    times: dict[str, list[float]] = {name: [] for name in names}
    for step in steps.values():
        for _ in range(args.warm_up):
            step()
    started = time.monotonic()
    for repeat in range(args.repeats):
        if repeat >= LEAST and time.monotonic() - started > args.seconds:
            break
        first = repeat % len(names)
        for name in [*names[first:], *names[:first]]:
            times[name].append(seconds_of(steps[name], 1, args.device))
    return times


def describe_times(steps: dict[str, Step], times: dict[str, list[float]]) -> str:
    """Return a table: median and quartiles of times, and of ratios to this decoder."""
    rows = []
    for name, seconds in times.items():
        low, middle, high = quartiles([1000 * each for each in seconds])
        ratios = [one / two for one, two in zip(seconds, times[OURS], strict=True)]
        least, ratio, most = quartiles(ratios)
        rows.append(
            [
                f"{name} {version(name)}",
                f"{middle:.1f} ({low:.1f} to {high:.1f})",
                f"{ratio:.3f} ({least:.3f} to {most:.3f})",
                f"{steps[name].parameters:,}",
            ]
        )
    header = ["library", "training step, ms", "× pe-bench", "parameters"]
    return markdown_table(header, rows, "lrrr")


def version(name: str) -> str:
    """Return the version of an installed package; empty if unknown."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def parse(given: list[str] | None = None) -> argparse.Namespace:
    """Return the options from the command line, or from `given`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    sizes = {"layers": 4, "heads": 12, "width": 768, "mlp-width": 3072, "length": 1024, "batch": 1}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default: {value}")
    parser.add_argument("--repeats", type=int, default=10, help="default: 10")
    parser.add_argument("--warm-up", type=int, default=2, help="warm-up steps, 2")
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="maximum seconds for the repetitions, 300"
    )
    parser.add_argument("--out", type=Path, help="file for all times, JSON")
    return parser.parse_args(given)


def main() -> None:
    """Measure all installed libraries, print a table, and write a file if --out is given."""
    args = parse()
    steps, missing = make_steps(args)
    times = measure(steps, args)
    about = describe(args.device)
    print(describe_times(steps, times))
    print(
        f"\n{args.layers} layers x {args.width}, {args.heads} heads, MLP {args.mlp_width}, "
        f"{args.batch} x {args.length} tokens, {args.precision}; {about['device']}, "
        f"{about['threads']} threads, torch {about['versions']['torch']}"
    )
    for name, reason in missing.items():
        print(f"left out: {name} ({reason})")
    if args.out:
        content = {
            "options": {name: value for name, value in vars(args).items() if name != "out"},
            "machine": {"platform": platform.platform(), **about},
            "versions": {name: version(name) for name in times},
            "seconds": times,
            "left_out": missing,
        }
        args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
