"""A lower bound of the memory that a training needs, to refuse models that are too large."""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import nn

from pe_bench.config import ModelConfig
from pe_bench.decoder.empty import without_memory
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.registry.plugins import Plugin
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.train.adaptation_methods import trains_all

BYTES_PER_PARAMETER = 16  # weight, gradient and two moments of AdamW, each in float32
BYTES_PER_TOKEN = 16  # id and target, each in int64
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_task_fits(task: ResolvedTask, device: str, precision: str, shards: int = 1) -> None:
    """Check that a decoder without positions and one training batch fit into memory.

    Args:
        task: the task.
        device: "cpu" or "cuda".
        precision: "fp32" or "bf16".
        shards: number of GPUs over which weights, gradients and optimizer states are sharded.

    Raises:
        InputError: they do not fit.
    """
    if task.start:
        check_task_fits(task.start, device, precision, shards)
    available = memory_of(device)
    model = task.model
    weights = _bytes_per_parameter(task, precision, shards) * decoder_parameters(model)
    if weights > available:
        parts = "weights, gradients and optimizer" if trains_all(task.train) else "weights"
        raise InputError(
            f"a model of {model.layers:,} layers and width {model.width:,} needs "
            f"{_size(weights)} for {parts}, but this machine has "
            f"{_size(available)}: use a smaller --model.width or fewer --model.layers"
        )
    batch = batch_bytes(task, device, precision) if task.train.steps else 0
    if weights + batch > available:
        raise InputError(
            f"a batch of {task.train.batch_size:,} sequences of {model.train_length:,} tokens "
            f"needs at least {_size(batch)}, but this machine has {_size(available)}: use a "
            "smaller --train.batch_size, or --train.micro_batch"
        )


def check_encoding_fits(instance: Encoding, encoding: Plugin, task: ResolvedTask) -> None:
    """Check that the encoding's own weights and tables fit into memory.

    Raises:
        InputError: they do not fit.
    """
    layers = 1 if instance.shared else task.model.layers
    needed = BYTES_PER_PARAMETER * layers * _numbers(instance)
    available = memory_of("cpu")  # every model is built on the CPU
    if needed > available:
        raise InputError(
            f"{encoding.label} needs {_size(needed)} for its own weights, but this machine has "
            f"{_size(available)}: use smaller options"
        )


def _bytes_per_parameter(task: ResolvedTask, precision: str, shards: int) -> float:
    if trains_all(task.train):  # in evaluation, one GPU has the whole model
        return max(4, BYTES_PER_PARAMETER / shards)
    return 2 if precision == "bf16" else 4


@cache
def decoder_parameters(model: ModelConfig) -> int:
    """Return the number of parameters of a decoder without positions."""
    with without_memory():
        one = _numbers(Decoder(replace(model, layers=1), Encoding))
        two = _numbers(Decoder(replace(model, layers=2), Encoding))
    return one + (model.layers - 1) * (two - one)


def batch_bytes(task: ResolvedTask, device: str, precision: str) -> int:
    """Return a lower bound of the bytes of a batch and of the activations of one slice of it.

    On a GPU a slice may be a single row, because training halves slices that do not fit.
    """
    train = task.train
    model = task.model
    rows = 1 if device == "cuda" else min(train.micro_batch or train.batch_size, train.batch_size)
    saved = 4 * model.width + 2 * model.mlp_width  # minimum of numbers per token for backward
    of_blocks = model.layers * saved
    if train.recompute:  # the input of each block, and all activations of one block at a time
        of_blocks = model.layers * model.width + saved
    activations = rows * model.train_length * of_blocks
    ids = train.batch_size * model.train_length * BYTES_PER_TOKEN
    return ids + activations * (2 if precision == "bf16" else 4)


def memory_of(device: str) -> int:
    """Return the bytes of a device's memory that this process may use."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[1])
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in LIMITS:
        text = Path(file).read_text(encoding="ascii").strip() if Path(file).is_file() else "max"
        if text.isdigit():
            total = min(total, int(text))
    return total


def _numbers(module: nn.Module) -> int:
    tensors = [*module.parameters(), *module.buffers()]
    return sum(tensor.numel() for tensor in tensors)


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}"
        count /= 1024
    return f"{count:,.0f} PiB"
