"""RoPE dropped from a trained model, and a temperature (Gelberg et al. 2025, arXiv 2512.12167)."""

import math

import torch
from torch import Tensor

from pe_bench.api import InputError, ModelConfig, Positions
from pe_bench.encodings.nope import NoPE


class DroPE(NoPE):
    """No positions; in evaluation queries are multiplied by 1 + temperature ln s, s at least 1.

    A model trained with `rope` continues with this encoding for a few per cent of the steps, at the
    same length. s is the length in evaluation divided by the training length. The two constants are
    quoted from secondary sources and not verified: the published code, which has no licence, reads
    a constant scale from a configuration.

    | paper | here |
    |---|---|
    | s is one number for a test | n/L0 for a query with n keys, or `factor` for all |
    | queries and keys normalised, as an option | `--model.qk_norm rms` |

    Args:
        temperature: 0.412 was used for models trained from scratch, 0.103 for pretrained ones.
        factor: s; None: s depends on the query, so that short texts do not change and a cache gives
            equal results.
    """

    family = "extension"
    colour = "#000000"
    marker = "X"

    variants = ("temperature=0.103,factor=4",)

    def __init__(
        self,
        model: ModelConfig,
        layer: int = 0,
        *,
        temperature: float = 0.412,
        factor: float | None = None,
    ) -> None:
        super().__init__(model, layer)
        if not 0 <= temperature < math.inf:
            raise InputError(f"drope:temperature must be at least 0, not {temperature}")
        if factor is not None and not 1 <= factor < math.inf:
            raise InputError(f"drope:factor must be at least 1, not {factor}")
        self.rate = temperature
        self.factor = factor

    def temperature(self, positions: Positions) -> Tensor | None:
        if self.training:
            return None
        growth = positions.count / self.model.train_length  # (B or 1, T)
        if self.factor is not None:
            growth = torch.full_like(growth, self.factor)
        scale = 1 + self.rate * growth.clamp(min=1).log()  # (B or 1, T)
        return scale[:, None]
