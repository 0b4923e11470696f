"""The optimizer of every training and its learning rate schedule."""

import math
from typing import Any

import torch
from torch import nn

from pe_bench.config import TrainConfig
from pe_bench.decoder.model import Decoder


def make_optimizer(model: Decoder, config: TrainConfig) -> torch.optim.AdamW:
    """Return AdamW for the parameters that require gradients; only matrices have weight decay.

    If `config.encoding_lr_factor` is not 1, the parameters of the encoding have groups with an
    "lr_factor".
    """
    factor = config.encoding_lr_factor
    groups: list[dict[str, Any]] = []
    if factor == 1:
        groups += _groups(trained_parameters(model))
    else:
        of_encoding = trained_parameters(model.encodings)
        known = {id(p) for p in of_encoding}
        groups += _groups([p for p in trained_parameters(model) if id(p) not in known])
        groups += [{**group, "lr_factor": factor} for group in _groups(of_encoding)]
    return torch.optim.AdamW(
        groups,
        lr=config.lr,
        betas=(0.9, config.beta2),
        weight_decay=config.weight_decay,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group: `lr` times its "lr_factor", if it has one."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_factor", 1.0)


def _groups(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Return parameter groups of AdamW: matrices, and vectors without weight decay."""
    matrices = [p for p in parameters if p.dim() > 1]
    vectors = [p for p in parameters if p.dim() <= 1]
    return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that require gradients."""
    return [p for p in model.parameters() if p.requires_grad]


def learning_rate(step: int, config: TrainConfig) -> float:
    """Return the learning rate of a step, counted from 0."""
    return config.lr * scale(step, config)


def scale(step: int, config: TrainConfig) -> float:
    """Return the factor of the peak learning rate at a step."""
    warmup = max(1, round(config.warmup * config.steps))
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, config.steps - warmup)
    if config.schedule == "linear":
        return 1 - done
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
