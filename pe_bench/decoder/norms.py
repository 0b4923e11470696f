"""Norms of a decoder, and factors for the outputs of attention and MLP."""

import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.config import ModelConfig


class OffsetRMSNorm(nn.RMSNorm):
    """RMSNorm with the gain 1 + weight (Gemma 2024, arXiv 2403.08295)."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension: (..., C) -> (..., C)."""
        return F.rms_norm(x, self.normalized_shape, 1 + self.weight, self.eps)


class Scale(nn.Module):
    """A constant factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the factor: (...) -> (...)."""
        return x * self.factor


def make_norm(config: ModelConfig, width: int) -> nn.RMSNorm | nn.LayerNorm:
    """Return a norm over the last dimension, of `width` channels."""
    if config.block.norm != "rms":
        has_parameters = config.block.norm == "layer"
        return nn.LayerNorm(width, config.norm_eps, elementwise_affine=has_parameters)
    cls = OffsetRMSNorm if config.block.norm_offset else nn.RMSNorm
    return cls(width, eps=config.norm_eps)


def make_input_norm(config: ModelConfig) -> nn.Module:
    """Return the input norm of attention or MLP; the identity if the model has none."""
    return nn.Identity() if config.block.norms == "output" else make_norm(config, config.width)


def make_output_norm(config: ModelConfig) -> nn.Module:
    """Return the norm or factor of the output of attention or MLP before the residual sum."""
    if config.block.norms != "input":
        return make_norm(config, config.width)
    if config.block.residual_scale != 1:
        return Scale(config.block.residual_scale)
    return nn.Identity()
