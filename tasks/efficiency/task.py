"""Time and memory of an encoding, in one layer and in whole models, relative to RoPE."""

from functools import cached_property
from typing import Literal

import torch

from pe_bench.api import (
    BASE,
    LARGE,
    Batch,
    Column,
    Curve,
    Decoder,
    Encoding,
    EncodingSpec,
    Evaluation,
    Headline,
    Journal,
    MakeEncoding,
    Metric,
    Preset,
    Task,
    TaskContext,
    TrainConfig,
    Vocabulary,
)
from pe_bench.api.engine import load_plugin

from .bench import AUTO, BACKENDS, Bench, name_subset
from .cases import Limits, Meter

ROPE = EncodingSpec("rope")
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
PASSES = {
    "forward": "forward",
    "forward_backward": "forward and backward",
    "training_step": "training step",
    "prefill": "prompt",
    "decoding": "decoding",
}
DRAWN = (  # metrics with a curve over length, for the backend "auto"
    ("forward", "ms"),
    ("forward_backward", "ms"),
    ("forward_backward", "time_ratio"),
    ("forward_backward", "mib"),
)
KINDS = {
    "ms": Metric("time", "ms", higher_is_better=False),
    "time_ratio": Metric("time", "× reference", higher_is_better=False),
    "mib": Metric("memory", "MiB", higher_is_better=False),
    "memory_ratio": Metric("memory", "× reference", higher_is_better=False),
    "gflops": Metric("matrix products", "GFLOP", higher_is_better=False),
    "tokens_per_second": Metric("tokens per second", higher_is_better=True),
}


def name_metrics() -> dict[str, Metric]:
    """Return all metrics: every kind of metric for each pass."""
    metrics = {"cache_bytes": Metric("bytes per token", higher_is_better=False)}
    for name in PASSES:
        metrics |= {f"{name}_{kind}": metric for kind, metric in KINDS.items()}
    return metrics


class Efficiency(Task):
    """Time and memory cost of an encoding, relative to a reference in the same process.

    | subset | measured |
    |---|---|
    | `operator` | the attention of one layer and one sequence, forward, and forward and backward |
    | `training` | a step of AdamW: time, tokens per second, memory, operations of products |
    | `inference` | reading a prompt, then decoding with the cache, and the cache's bytes |

    The headline is the time of a training step divided by the time with `rope`: 1.1 is a tenth
    slower. The two alternate, so that a slow machine affects both. The ratio is the median over the
    repetitions, with its quartiles. On a GPU, CUDA events measure the time.
    Absolute times depend on the machine, the threads and the versions that a run records; tables
    never mix them.

    Every backend of attention is measured. The rows of `operator` use the backend that the engine
    selects; the rows of `operator-sdpa` use sdpa. The reference always uses its own best backend.
    Measurements that a backend does not support, or that would take too much memory or time (both
    predicted from shorter inputs), are left out. The notes in run.json give the reasons.

    Memory is the peak during a call minus the memory before it. It includes gradients, but not
    weights and the state of the optimizer. `operator` starts from given queries, keys and values;
    only with `projections` it includes the products with the layer's matrices. Position tables and
    biases are computed in every call, as in a model with one layer. Only operations of matrix
    products count, and fused causal attention counts all pairs of queries and keys.

    Presets `cpu` and `cpu-long` are for quiet cores: four layers at 1024 tokens, two at 4096.
    Preset `paper` has the sizes of the published table: one layer, 12 heads of 64, 1024 tokens,
    half precision.

    Args:
        reference: encoding in the denominator of ratios.
        shortest: tokens of the shortest input of `operator`; each further input is twice as long.
        longest: tokens of the longest input of `operator`.
        models: attention backends for whole models; "auto": the engine's choice.
        batch: number of sequences of a training step, and number of prompts.
        new_tokens: number of tokens to decode after a prompt.
        projections: whether to include the four matrices of the layer in `operator`.
        precision: precision of all calls; "run": the precision of the command.
        repeats: number of repetitions.
        seconds: maximum seconds for the repetitions of a call, and for one of them.
        memory: maximum GiB for a call.
    """

    headline = Headline("training_step_time_ratio", "training")
    all_subsets = ("operator", "training", "inference")
    axes = {"length": "tokens", "second": "backend of the attention"}
    vocabulary = Vocabulary(256, digit_ids=tuple(range(10)), separator_ids=(10,))
    metrics = name_metrics()
    measures_time = True
    check_options = {"shortest": 16, "longest": 32, "new_tokens": 2, "repeats": 3}
    presets = {
        "quick": Preset(
            TrainConfig(steps=0, batch_size=1, length=1024),
            LARGE.changed(layers=2),
            {"longest": 2048, "batch": 1, "new_tokens": 16, "repeats": 5, "seconds": 5.0},
        ),
        "cpu": Preset(
            TrainConfig(steps=0, batch_size=1, length=1024),
            LARGE.changed(layers=4),
            {
                "longest": 4096,
                "batch": 1,
                "new_tokens": 32,
                "repeats": 11,
                "seconds": 20.0,
                "memory": 8.0,
            },
        ),
        "cpu-long": Preset(
            TrainConfig(steps=0, batch_size=1, length=4096),
            LARGE.changed(layers=2),
            {
                "shortest": 4096,
                "longest": 8192,
                "batch": 1,
                "new_tokens": 32,
                "repeats": 7,
                "seconds": 40.0,
                "memory": 12.0,
            },
        ),
        "small": Preset(
            TrainConfig(steps=0, batch_size=8, length=1024),
            LARGE,
            {
                "longest": 8192,
                "models": "all",
                "batch": 8,
                "new_tokens": 64,
                "repeats": 20,
                "seconds": 10.0,
                "memory": 64.0,
            },
        ),
        "mid": Preset(  # the model and rows of the task `perplexity`, longer inputs
            TrainConfig(steps=0, batch_size=64, length=1024),
            BASE,
            {
                "longest": 16_384,
                "models": "all",
                "batch": 64,
                "new_tokens": 64,
                "repeats": 20,
                "seconds": 20.0,
                "memory": 64.0,
            },
        ),
        "paper": Preset(
            TrainConfig(steps=0, batch_size=1, length=1024),
            LARGE,
            {
                "shortest": 1024,
                "longest": 1024,
                "models": "all",
                "batch": 1,
                "new_tokens": 64,
                "projections": True,
                "precision": "bf16",
                "repeats": 100,
                "seconds": 30.0,
                "memory": 64.0,
            },
        ),
    }

    def __init__(
        self,
        context: TaskContext,
        *,
        reference: EncodingSpec = ROPE,
        shortest: int = 512,
        longest: int = 2048,
        models: Literal["auto", "all"] = "auto",
        batch: int = 1,
        new_tokens: int = 16,
        projections: bool = False,
        precision: Literal["run", "bf16", "fp16"] = "run",
        repeats: int = 5,
        seconds: float = 5.0,
        memory: float = 4.0,
    ) -> None:
        super().__init__(context)
        self.check_range(
            shortest=(shortest, 4, 2**20),
            longest=(longest, shortest, 2**20),
            batch=(batch, 1, 2**20),
            new_tokens=(new_tokens, 1, 2**20),
            repeats=(repeats, 3, 10_000),
        )
        self.make_reference: MakeEncoding = load_plugin("encoding", reference).make
        self.lengths = [shortest]
        while 2 * self.lengths[-1] <= longest:
            self.lengths.append(2 * self.lengths[-1])
        self.model_backends = BACKENDS if models == "all" else (AUTO,)
        self.batch_size = batch
        self.new_tokens = new_tokens
        self.projections = projections
        self.precision = precision
        self.limits = Limits(repeats, seconds, memory)

    @cached_property
    def max_eval_tokens(self) -> int:
        return max(self.lengths[-1], self.train_length + self.new_tokens)

    @cached_property
    def views(self) -> tuple[Column | Curve, ...]:
        columns = (
            Column("training", "training_step_memory_ratio"),
            Column("training", "training_step_tokens_per_second"),
            Column("inference", "prefill_time_ratio", PASSES["prefill"]),
            Column("inference", "decoding_time_ratio", PASSES["decoding"]),
            Column("inference", "cache_bytes", "cache"),
            Column("operator", "forward_backward_time_ratio", "attention"),
            Column("operator", "forward_backward_memory_ratio", "attention"),
        )
        drawn = [(AUTO, name, kind) for name, kind in DRAWN]
        drawn += [(each, "forward_backward", "ms") for each in BACKENDS if each != AUTO]
        curves = []
        for backend, name, kind in drawn:
            subset = name_subset("operator", backend)
            title = f"{PASSES[name]}, {backend}"
            curves.append(Curve(subset, f"{name}_{kind}", title, log_y=True))
        return (*columns, *curves)

    def skip(self, encoding: Encoding) -> str | None:
        """Return None: unsupported cases are left out one by one."""
        return None

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        generator = torch.Generator().manual_seed(0)
        size = (self.batch_size, self.length + 1)
        ids = torch.randint(self.vocabulary.vocab_size, size, generator=generator)
        return Batch(ids[:, :-1], ids[:, 1:])

    def evaluate(self, model: Decoder, subset: str, seed: int, journal: Journal) -> Evaluation:
        device = model.lm_head.weight.device.type
        bench = Bench(
            make_encoding=model.make_encoding,
            make_reference=self.make_reference,
            config=model.config,
            lengths=self.lengths,
            length=self.length,
            model_backends=self.model_backends,
            batch_size=self.batch_size,
            new_tokens=self.new_tokens,
            projections=self.projections,
            device=device,
            dtype=self._dtype(device),
        )
        meter = Meter(journal, self.limits, device)
        # The cases build their own models, with gradients and in the requested precision.
        with (
            torch.inference_mode(False),
            torch.autocast(device, enabled=False),
            torch.enable_grad(),
        ):
            rows = bench.measure(subset, meter)
        return Evaluation(rows, meter.notes())

    def _dtype(self, device: str) -> torch.dtype:
        """Return the dtype of queries, keys and values."""
        if self.precision != "run":
            return HALVES[self.precision]
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
        return torch.float32
