"""The optimizer of every training and its learning rate schedule."""

import math
from typing import Any

import torch
from torch import nn

from pe_bench.config import TrainConfig


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Return AdamW for the parameters that require gradients; only matrices have weight decay."""
    parameters = trained_parameters(model)
    matrices = [p for p in parameters if p.dim() > 1]
    vectors = [p for p in parameters if p.dim() <= 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=config.lr,
        betas=(0.9, config.beta2),
        weight_decay=config.weight_decay,
        fused=True,
    )


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
